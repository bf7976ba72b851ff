"""The experiments of the two scales of `condnum reproduce`: what each runs, on which data, how long."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from condnum.data.resolver import data_folders
from condnum.errors import UnknownNameError, check_known


@dataclass(frozen=True)
class Experiment:
    """One command, what it needs, and how it is shown."""

    name: str  # of its folder and page: "house-prices"
    title: str
    summary: str  # one sentence
    command: str  # without --out and --jobs; "{cars}" is a folder of images under a data folder
    data: tuple[str, ...] = ()  # names of `condnum.data.catalog` whose checksums decide about reuse
    parallel: bool = True  # whether it takes --jobs
    core_seconds: float = 0.0  # of one core, about; 0 if not known

    @property
    def typed(self) -> str:
        """The command as it can be typed."""
        return re.sub(r"[{}]", "", self.command)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The command after `condnum`, folders of images filled in; None if one is not here."""
        here = {
            name: folder / name
            for folder in reversed(data_folders())
            for name in self.images
            if (folder / name).is_dir()
        }
        if set(self.images) - set(here):
            return None
        return tuple(word.format_map(here) for word in self.command.split()[1:])

    @property
    def images(self) -> list[str]:
        """The names of its folders of images."""
        return re.findall(r"{(\w+)}", self.command)


_HOUSE_PRICES = Experiment(
    "house-prices",
    "House prices (Table 1, Figure 1)",
    "The Ames house prices: every method of the paper, two controls and the closed forms, five seeds.",
    "condnum run house-prices --seeds 5",
    ("house-prices",),
    core_seconds=130,
)
_LIMITS = Experiment(
    "limits",
    "House prices: how much is possible",
    "RIR ceilings against ε, the front of (i) and (ii), and each method's share of the ceiling.",
    "condnum run limits",
    ("house-prices",),
    core_seconds=1100,
)
_ATTACKERS = Experiment(
    "attackers",
    "House prices: the attack panel",
    "Thirteen training algorithms, each at its best, against raw, initial and immunized features.",
    "condnum run attackers",
    ("house-prices",),
    parallel=False,
    core_seconds=50,
)
_RELEASE = Experiment(
    "reproduction-audit",
    "House prices: why numbers differ",
    "The choices of the authors' release, turned into the corrected ones one at a time.",
    "condnum run reproduction-audit",
    ("house-prices",),
    core_seconds=400,
)
_CORRECTIONS = Experiment(
    "corrections",
    "Where the paper is wrong",
    "Each theoretical correction with its counter-example, computed on the spot.",
    "condnum run corrections",
    parallel=False,
    core_seconds=12,
)

#: The paper's data and every kind of experiment, at what two cores do in minutes.
_QUICK = (
    _HOUSE_PRICES,
    Experiment(
        "mnist",
        "MNIST, 20 of 90 digit pairs (Table 2, Figure 2)",
        "Each digit as D_P against the next one and the third after it, one seed, the published 30 epochs.",
        "condnum run mnist --seeds 1 --steps 30 --methods ours,opt_kappa,imma,r_ill_only --pairs "
        + ",".join(f"{digit}-{(digit + step) % 10}" for digit in range(10) for step in (1, 3)),
        ("mnist",),
        core_seconds=180,
    ),
    Experiment(
        "deep",
        "Small nets on 8×8 digits (in place of Table 3, Figure 3)",
        "A small ResNet and a small ViT, trained on digits 0–4, immunized against digits 5–9.",
        "condnum run deep --seeds 1",
        ("digits-8x8",),
        core_seconds=110,
    ),
    Experiment(
        "deep-attackers",
        "Small net on 8×8 digits: what an attacker meets",
        "Head, frozen trunk, last stage and all weights of θ₀, θ_I and the net from scratch; A against A.",
        "condnum run deep-attackers --backbone test_resnet --seeds 1 --shots 0 --steps 32 --trials 3 "
        "--repeats 4 --curvature-rows 32 "
        "--attackers head-sgd,whitened,ridge,logistic,trunk,stage-adamw,all-adamw",
        ("digits-8x8",),
        core_seconds=115,
    ),
    replace(_LIMITS, command="condnum run limits --seeds 1", core_seconds=50),
    _ATTACKERS,
    replace(
        _RELEASE,
        summary=f"{_RELEASE.summary} From ten epochs of the release, one seed.",
        command="condnum run reproduction-audit --seeds 1 --epochs 10 --ends 0",
        core_seconds=37,
    ),
    _CORRECTIONS,
)

#: Rows of Table 3: backbone in words and timm's name of it, data set in words, and both in a preset's name.
_NETS = (
    ("ResNet18", "resnet18", "Stanford Cars", "resnet18-cars"),
    ("ResNet18", "resnet18", "Country211", "resnet18-country211"),
    ("ViT", "vit_base_patch16_clip_224", "Stanford Cars", "vit-cars"),
    ("ViT", "vit_base_patch16_clip_224", "Country211", "vit-country211"),
)

_FULL = (
    _HOUSE_PRICES,
    _CORRECTIONS,
    _RELEASE,
    _LIMITS,
    _ATTACKERS,
    Experiment(
        "limits-mnist",
        "MNIST: how much is possible",
        "The same limits for five pairs of digits.",
        "condnum run limits --data mnist",
        ("mnist",),
        core_seconds=410,
    ),
    Experiment(
        "attackers-mnist",
        "MNIST 4 against 9: the attack panel",
        "Thirteen training algorithms against raw, initial and immunized pixels.",
        "condnum run attackers --data mnist:4-9",
        ("mnist",),
        parallel=False,
        core_seconds=910,
    ),
    Experiment(
        "deep-mnist",
        "Deep nets on MNIST 0–4 against 5–9 (as Table 3, Figure 3)",
        "ResNet18 and a ViT, trained on digits 0–4, immunized against digits 5–9, three seeds.",
        "condnum run deep --data mnist",
        ("mnist", "mnist-test"),
        core_seconds=4300,
    ),
    Experiment(
        "deep-attackers-mnist",
        "Deep attacks on MNIST nets",
        "What the nets of the line above are worth against head, trunk, LoRA, last stage and all weights.",
        "condnum run deep-attackers --data mnist",
        ("mnist", "mnist-test"),
        core_seconds=1350,
    ),
    Experiment(
        "mnist",
        "MNIST, 90 digit pairs (Table 2, Figure 2)",
        "Ninety ordered pairs of digits, four methods of the paper and the closed form, three seeds.",
        "condnum run mnist",
        ("mnist",),
        core_seconds=5600,
    ),
    *(
        Experiment(
            f"deep-{preset}",
            f"{net}, ImageNet against {images} (Table 3, Figure 3)",
            "The published deep-net experiment, on images that you have.",
            f"condnum run deep --backbone {backbone} --pretrain {{imagenet}} "
            f"--harmful {{{preset.partition('-')[2]}}} --preset {preset}",
        )
        for net, backbone, images, preset in _NETS
    ),
)

#: By name.
SCALES = {"quick": _QUICK, "full": _FULL}


def experiments(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments of a scale, in the order in which they run.

    Examples:
        >>> [experiment.name for experiment in experiments("quick", ["limits", "mnist"])]
        ['mnist', 'limits']
    """
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, list(SCALES))
    names = [experiment.name for experiment in SCALES[scale]]
    for name in only:
        check_known("experiment", name, names)
    return tuple(experiment for experiment in SCALES[scale] if not only or experiment.name in only)
