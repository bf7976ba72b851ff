"""What `condnum reproduce` runs at each scale: one command of the command line an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from condnum.data.resolver import data_folders
from condnum.errors import UnknownNameError

Scale = Literal["quick", "full"]
Kind = Literal["experiment", "lesson"]


@dataclass(frozen=True)
class Experiment:
    """One command, with what it needs and how it is shown."""

    name: str  # of its folder and page: "house-prices"
    title: str
    summary: str  # one sentence
    words: tuple[str, ...]  # after `condnum`, without --out and --jobs; "{imagenet}" is a folder of images
    data: tuple[str, ...] = ()  # names of `condnum.data.catalog` whose checksums decide about reuse
    folders: tuple[str, ...] = ()  # folders of images that no command fetches, under a data folder
    after: tuple[str, ...] = ()  # experiments that a reader needs first; they run before it
    kind: Kind = "experiment"
    parallel: bool = True  # whether it takes --jobs

    def command(self) -> tuple[str, ...] | None:
        """Return the words with the folders of images filled in; None if a folder is not here."""
        places = {name: _image_folder(name) for name in self.folders}
        if None in places.values():
            return None
        return tuple(word.format_map(places) if word.startswith("{") else word for word in self.words)

    @property
    def missing(self) -> str:
        """What to do when `command` is None."""
        names = " and ".join(f"{name}/" for name in self.folders)
        shown = " ".join(word.strip("{}") if word.startswith("{") else word for word in self.words)
        return (
            f"needs the images of {names}, which nobody may hand on and nothing here downloads; put them "
            f"into a data folder ({', '.join(str(folder) for folder in data_folders())}), or run it on "
            f"folders of your own: condnum {shown}"
        )


#: Of the 90 ordered pairs (D_P, D_H), those of each digit with the next one and with the third after it: each
#: digit is twice on either side.
QUICK_PAIRS = tuple((digit, (digit + step) % 10) for digit in range(10) for step in (1, 3))

_HOUSE_PRICES = Experiment(
    "house-prices",
    "House prices (Table 1, Figure 1)",
    "The Ames house prices: every method of the paper, two controls and the closed forms, five seeds.",
    ("run", "house-prices", "--seeds", "5"),
    ("house-prices",),
)
_LIMITS = Experiment(
    "limits",
    "House prices: how much is possible",
    "RIR ceilings against ε, the front of (i) and (ii), and each method's share of the ceiling.",
    ("run", "limits"),
    ("house-prices",),
    after=("house-prices",),
)
_ATTACKERS = Experiment(
    "attackers",
    "House prices: the attack panel",
    "Thirteen training algorithms, each at its best, against raw, initial and immunized features.",
    ("run", "attackers"),
    ("house-prices",),
    after=("house-prices",),
    parallel=False,
)
_RELEASE = Experiment(
    "reproduction-audit",
    "House prices: why numbers differ",
    "The choices of the authors' release, turned into the corrected ones one at a time.",
    ("run", "reproduction-audit"),
    ("house-prices",),
    after=("house-prices",),
)
_CORRECTIONS = Experiment(
    "corrections",
    "Where the paper is wrong",
    "Each theoretical correction with its counter-example, computed on the spot.",
    ("run", "notebook", "corrections"),
    kind="lesson",
    parallel=False,
)

#: The paper's data and every kind of experiment, at what two cores do in minutes.
_QUICK = (
    _HOUSE_PRICES,
    Experiment(
        "mnist",
        "MNIST, 20 of 90 digit pairs (Table 2, Figure 2)",
        "Each digit as D_P against the next one and the third after it, one seed, the published 30 epochs.",
        (
            *("run", "mnist", "--seeds", "1", "--epochs", "30"),
            *("--methods", "ours,opt_kappa,imma,r_ill_only"),
            *("--pairs", ",".join(f"{pretrain}-{harmful}" for pretrain, harmful in QUICK_PAIRS)),
        ),
        ("mnist",),
    ),
    Experiment(
        "deep",
        "Small nets on 8×8 digits (in place of Table 3, Figure 3)",
        "A small ResNet and a small ViT, trained on digits 0–4, immunized against digits 5–9.",
        ("run", "deep", "--seeds", "1"),
        ("digits-8x8",),
    ),
    replace(_LIMITS, words=(*_LIMITS.words, "--seeds", "1")),
    _ATTACKERS,
    replace(
        _RELEASE,
        summary=f"{_RELEASE.summary} From ten epochs of the release, one seed.",
        words=("run", "reproduction-audit", "--seeds", "1", "--epochs", "10", "--ends", "0"),
    ),
    _CORRECTIONS,
)


def _deep(backbone: str, harmful: str, preset: str, label: str) -> Experiment:
    """Return a row of Table 3, which needs images that the reader has."""
    return Experiment(
        f"deep-{preset}",
        f"{label} (Table 3, Figure 3)",
        "The published deep-net experiment, on images that you have.",
        (
            *("run", "deep", "--backbone", backbone, "--pretrain", "{imagenet}"),
            *("--harmful", f"{{{harmful}}}", "--preset", preset),
        ),
        folders=("imagenet", harmful),
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
        "The same limits for five pairs of digits, and the closed form against 1000 steps of Algorithm 1.",
        ("run", "limits", "--data", "mnist"),
        ("mnist",),
    ),
    Experiment(
        "attackers-mnist",
        "MNIST 4 against 9: the attack panel",
        "Thirteen training algorithms against raw, initial and immunized pixels.",
        ("run", "attackers", "--data", "mnist:4-9"),
        ("mnist",),
        parallel=False,
    ),
    Experiment(
        "deep-mnist",
        "Deep nets on MNIST 0–4 against 5–9 (as Table 3, Figure 3)",
        "ResNet18 and a ViT, trained on digits 0–4, immunized against digits 5–9, three seeds.",
        ("run", "deep", "--data", "mnist"),
        ("mnist", "mnist-test"),
    ),
    Experiment(
        "mnist",
        "MNIST, 90 digit pairs (Table 2, Figure 2)",
        "Ninety ordered pairs of digits, four methods of the paper and the closed form, three seeds.",
        ("run", "mnist"),
        ("mnist",),
    ),
    _deep("resnet18", "cars", "resnet18-cars", "ResNet18, ImageNet against Stanford Cars"),
    _deep("resnet18", "country211", "resnet18-country211", "ResNet18, ImageNet against Country211"),
    _deep("vit_base_patch16_clip_224", "cars", "vit-cars", "ViT, ImageNet against Stanford Cars"),
    _deep("vit_base_patch16_clip_224", "country211", "vit-country211", "ViT, ImageNet against Country211"),
)

_SCALES: dict[str, tuple[Experiment, ...]] = {"quick": _QUICK, "full": _FULL}


def experiments(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments of a scale, those that others build on first.

    Args:
        scale: `quick` (the paper's data, minutes) or `full` (everything, hours).
        only: Names; empty for all. What they build on is not added: it is only read beside them.

    Returns:
        Experiments in the order in which they run.

    Raises:
        UnknownNameError: No such scale or experiment.

    Examples:
        >>> [experiment.name for experiment in experiments("quick", ["limits", "mnist"])]
        ['mnist', 'limits']
    """
    if scale not in _SCALES:
        raise UnknownNameError("scale", scale, list(get_args(Scale)))
    every = _SCALES[scale]
    names = [experiment.name for experiment in every]
    for name in only:
        if name not in names:
            raise UnknownNameError("experiment", name, names)
    return tuple(_ordered(experiment for experiment in every if not only or experiment.name in only))


def _ordered(chosen: Iterable[Experiment]) -> list[Experiment]:
    """Sort so that each comes after what it names, and else as listed."""
    waiting = list(chosen)
    names, done = {experiment.name for experiment in waiting}, list[Experiment]()
    while waiting:
        ready = next(e for e in waiting if not (set(e.after) & names) - {d.name for d in done})
        waiting.remove(ready)
        done.append(ready)
    return done


def _image_folder(name: str) -> str | None:
    """Return the first folder of images of this name in the data folders."""
    return next((str(place / name) for place in data_folders() if (place / name).is_dir()), None)
