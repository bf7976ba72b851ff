"""Table 3 and Figure 3: the last stage of a backbone is immunized, on photographs or digits."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data.files import find_folder
from condnum.data.images import ImageData, open_images
from condnum.deep.attack import HORIZONS, Target, attack
from condnum.deep.measure import (
    ROLES,
    check_count,
    descent_path,
    group_rir,
    head_accuracy,
    path_slowdown,
    rfd,
    rir_from_features,
    sgrc,
)
from condnum.deep.methods import get_net_method, net_method_names
from condnum.deep.net import Backbone, load_backbone, save_backbone
from condnum.deep.samples import ImageFeatures, Samples, evaluation_transform, hold_out
from condnum.deep.train import (
    DeepSettings,
    deep_preset,
    default_settings,
    fit_head,
    immunize_backbone,
    pretrain_backbone,
)
from condnum.errors import DataNotFoundError, InvalidInputError, check_integer, check_known, require
from condnum.experiments import linear
from condnum.experiments.frame import Arrays, Cell, Outcome, Row, Run
from condnum.experiments.linear import first_of
from condnum.experiments.published import published
from condnum.files import output_folder, sha256_file
from condnum.page.style import MethodStyle, add_line, finish, lines_by_method, method_style, panels
from condnum.page.tables import count_of, label_text, spread

#: Methods of Table 3, in display order; `erase`, which reads every block, and the same from transformed
#: images too are asked for by name.
METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
ERASE_TRANSFORMED = "erase_transformed"
#: Method of the cell that makes θ₀.
INITIAL = "initial"
#: The six sets of images: to train on, to choose by, to report on.
SETS = tuple(f"{task}{part}" for task in ("benign", "harmful") for part in ("", "_held", "_test"))
#: Those that are, and what is kept of their features of θ₀.
REPORTED, _PARTS = ("benign", "benign_test", "harmful", "harmful_test"), ("values", "labels", "indices")
#: Steps of 64 images in which a drawn net is trained on D_P.
_PRETRAINING_STEPS = 400
#: Side up to which `erase` trains every block, as each step then passes images through the whole net.
_SMALL_SIDE = 64
#: How often the groups of Eq. 17 are drawn: the first draw is reported, the others show how much is luck.
_DRAWS, _DRAW_STRIDE = 5, 1_000_003
#: A run of seconds.
_QUICK = {"seeds": 1, "limit": 30, "steps": 20, "pretrain_epochs": 2, "groups": 3, "group_size": 40}
#: Columns of Table 3 by the number of classes of D_H.
_HARMFUL = {196: "cars", 211: "country211"}
_WEIGHT = "weight."


@dataclass(frozen=True)
class Images:
    """A pair of tasks with its nets."""

    benign: str  # D_P, a name for `open_images`
    harmful: str  # D_H
    backbones: Mapping[str, Mapping[str, Any]]  # with arguments of timm.create_model
    weights: str = "none"  # none, timm, bundled
    side: int | None = 32  # None: what the weights were made for
    limit: int | None = None  # images per class and split


_PATCHES = {"patch_size": 8}
DATA = {
    "embedded": Images("digits-8x8:0-4", "digits-8x8:5-9", {"test_resnet": {}, "test_vit": _PATCHES}),
    "mnist": Images(
        "mnist:0-4",
        "mnist:5-9",
        {"resnet18": {}, "vit_tiny_patch16_224": {**_PATCHES, "depth": 6}},
        limit=1000,
    ),
    "imagenette-cars": Images("imagenette", "cars", {"tf_efficientnet_lite0": {}}, "bundled", 160),
    "images": Images("", "", {"resnet18": {}}, "timm", None),
}


@dataclass(frozen=True)
class Choice:
    """The parameters of the notebook that make and measure nets, checked."""

    data: str  # auto, or a key of `DATA`
    benign: str  # D_P, a name for `open_images`; "": that of the data
    harmful: str  # D_H
    backbone: Any  # timm names; empty: those of the data
    weights: str  # none (drawn), timm, bundled, or a file; "": those of the data
    preset: str  # settings of Table 4
    methods: Any  # empty: those of Table 3
    seeds: int  # seeds 0 … seeds − 1
    steps: int  # of immunization, at most; 0: the settings' own
    pretrain_epochs: int  # of training a drawn θ₀ on D_P; 0: 400 steps
    finetune_benign: int  # epochs of loaded weights on D_P, with a new head; 0: as they are
    limit: int  # images per class and split; 0: that of the data
    image_size: int  # side; 0: that of the data, else the backbone's
    groups: int  # of Eq. 17
    group_size: int
    device: str
    workers: int  # processes that decode
    full: bool
    probe_passes: int = 50  # of Fig. 3
    names: tuple[str, ...] = field(init=False, default=())  # of the methods
    asked: tuple[str, ...] = field(init=False, default=())  # backbones that were named

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        for name in ("seeds", "groups", "probe_passes"):
            check_integer(name, getattr(self, name), 1)
        for name in ("steps", "pretrain_epochs", "finetune_benign", "image_size", "workers", "limit"):
            check_integer(name, getattr(self, name), 0)
        check_integer("group_size", self.group_size, 2)
        if bool(self.benign) != bool(self.harmful) or (self.data == "images" and not self.benign):
            raise InvalidInputError(
                "your own images need both tasks: give --benign (D_P) and --harmful (D_H), each a "
                "folder or mnist:0-4; without them, --data embedded uses the bundled digits."
            )
        check_known("data", self.data, ("auto", *DATA))
        data = "images" if self.benign else self.data
        if data == "auto":
            data = "imagenette-cars" if self.full and _photographs_are_here() else "embedded"
        weights = self.weights or DATA[data].weights
        if weights not in ("none", "timm", "bundled"):
            weights = str(Path(weights).expanduser())
            if not Path(weights).is_file():
                raise DataNotFoundError(
                    f"--weights {self.weights}: there is no such file; give a .safetensors file or a state "
                    "dict, or none (initialize θ₀ at random and train it on D_P), timm (download timm's "
                    "weights) or bundled (those of the extra 'pretrained')."
                )
        if self.preset:
            deep_preset(self.preset)
        words = self.backbone.split(",") if isinstance(self.backbone, str) else self.backbone
        backbones = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
        made: dict[str, Any] = {
            "data": data,
            "benign": self.benign or DATA[data].benign,
            "harmful": self.harmful or DATA[data].harmful,
            "weights": weights,
            "backbone": backbones or tuple(DATA[data].backbones),
            "names": _methods(self.methods),
            "asked": backbones,
            "limit": self.limit or DATA[data].limit,
            "device": str(resolve_device(self.device)),
        }
        if not self.full:
            made |= {**_QUICK, "backbone": made["backbone"][:1], "limit": min(self.limit or 30, 30)}
        self.__dict__.update(made)

    @property
    def side(self) -> int | None:
        """Side of the images; None: what the backbone's weights were made for."""
        return self.image_size or DATA[self.data].side

    @property
    def sets(self) -> dict[str, ImageData]:
        """The images of both tasks."""
        return images_of(self.benign, self.harmful, self.limit or 0)

    @property
    def small(self) -> bool:
        """Whether cells side by side gain more than threads do."""
        return (self.side or 224) <= _SMALL_SIDE and self.device == "cpu"

    def settings(self, method: str) -> DeepSettings:
        """Return a method's settings: a preset, or its own, and one rule for all images and nets."""
        known = get_net_method("erase" if method == ERASE_TRANSFORMED else method)
        chosen = (
            deep_preset(self.preset) if self.preset and known.name != "erase" else default_settings(known)
        )
        if chosen.whole and (self.side or 224) > _SMALL_SIDE and method != ERASE_TRANSFORMED:
            chosen = chosen.with_overrides(whole=False, steps=DeepSettings.steps)
        if method == ERASE_TRANSFORMED:  # the best θ would be that which hides from images as they are
            chosen = chosen.with_overrides(transformed=True, keep="last")
        steps = {"steps": self.steps} if self.steps else {}
        return chosen.with_overrides(group_size=self.group_size, **steps)

    def net(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the arguments of `Backbone`, and how θ₀ is made of it."""
        timm, side = require("timm", "deep"), self.side
        cfg = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
        fixed = {"img_size": side} if side and getattr(cfg, "fixed_input_size", False) else {}
        classes = len(self.sets["benign"].classes)
        loaded: Any = {"none": False, "timm": True}.get(self.weights, self.weights)
        arguments = {"pretrained": loaded, **fixed, **DATA[self.data].backbones.get(name, {})}
        own = Backbone(name, **arguments)  # what cannot be made fails now
        made = "trained" if self.weights == "none" or self.finetune_benign else "new head"
        made = "as loaded" if made == "new head" and own.num_classes == classes else made
        return arguments | {"num_classes": classes}, made

    @property
    def common(self) -> Cell:
        """What every cell has."""
        return {
            "images": {"benign": self.benign, "harmful": self.harmful, "limit": self.limit or 0},
            "side": self.side,
            "crop": self.weights == "none" or self.small,  # else as the weights were trained
            "measure": {name: getattr(self, name) for name in ("groups", "group_size", "probe_passes")},
            "device": self.device,
            "workers": self.workers,
            "beside": "",
        }

    def cells(self) -> list[Cell]:
        """List what makes θ₀, then the methods, each from its θ₀."""
        for task, letter in (("benign", "P"), ("harmful", "H")):
            check_count(len(self.sets[task]), f"D_{letter} without what is held out", self.group_size)
        starts, methods = list[Cell](), list[Cell]()
        for name in self.backbone:
            net, made = self.net(name)
            for seed in range(self.seeds):
                start = {"backbone": name, "method": INITIAL, "seed": seed, **self.common}
                epochs = self.pretrain_epochs or self.finetune_benign
                starts.append(start | {"training": {"made": made, "epochs": epochs, "net": net}})
                methods += [
                    {"backbone": name, "method": method, "seed": seed, **self.common}
                    | {"training": asdict(self.settings(method)), "after": starts[-1]}
                    for method in self.names
                ]
        return [*starts, *methods]


def _photographs_are_here() -> bool:
    try:
        find_folder(DATA["imagenette-cars"].benign), find_folder(DATA["imagenette-cars"].harmful)
    except DataNotFoundError:
        return False
    return True


def _methods(given: Any) -> tuple[str, ...]:
    """Return names of methods for nets in display order, of files and objects that define one too."""
    words = given.split(",") if isinstance(given, str) else given
    named = [word.strip() if isinstance(word, str) else word for word in words if word != ""]
    plain = [word for word in named if isinstance(word, str) and not word.endswith(".py")]
    for word in plain:
        check_known("method", word, known_methods())
    own = [word for word in named if word not in plain]
    names = [*plain, *(get_net_method(name).name for name in linear.read_methods(own, ()))]
    return tuple(name for name in known_methods() if name in names) or METHODS


def known_methods() -> tuple[str, ...]:
    """Return what can be asked for: the methods for nets, in display order, yours among them."""
    return (*net_method_names(), ERASE_TRANSFORMED)


@cache
def images_of(benign: str, harmful: str, limit: int) -> dict[str, ImageData]:
    """Open the six sets; a limit keeps the same images for every seed of the run."""
    found: dict[str, ImageData] = {}
    for task, name in (("benign", benign), ("harmful", harmful)):
        data = open_images(name, limit=limit or None)
        rest, held = hold_out(data.labels, [0, 2])
        found[task] = data.take(rest)
        found[f"{task}_held"] = replace(data.take(held), split=f"{data.split}, held out")
        classes = None if name.partition(":")[0] in ("mnist", "digits-8x8") else data.classes
        found[f"{task}_test"] = open_images(name, "test", limit=limit or None, classes=classes)
    return found


def cells(**parameters: Any) -> list[Cell]:
    """List θ₀ of each backbone and seed, then what each method makes of it."""
    return Choice(**parameters).cells()


def checksum(**parameters: Any) -> str:
    """Return the SHA-256 of the images, and of a file of weights."""
    choice = Choice(**parameters)
    sums = [data.checksum for data in choice.sets.values()]
    if choice.weights not in ("none", "timm", "bundled"):
        sums.append(sha256_file(Path(choice.weights)))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def threads(*, full: bool, **parameters: Any) -> int | None:
    """Return the threads of a cell: one of several small ones, or all of them."""
    return 1 if Choice(full=full, **parameters).small else None


def compute(
    *,
    backbone: str,
    method: str,
    seed: int,
    images: dict[str, Any],
    side: int | None,
    crop: bool,
    measure: dict[str, int],
    device: str,
    workers: int,
    beside: Path,
    training: dict[str, Any],
    after: Outcome | None = None,
) -> Outcome:
    """Make a net and measure it beside θ₀, whose own ratios are 1 by definition."""
    sets, checkpoint = images_of(**images), beside.with_suffix(".checkpoint")
    place, started = beside.parent / "activations", time.perf_counter()
    row: Row = {"steps": 0, "best_step": 0, "stop_reason": ""}
    if "file" in training:
        theta = load_backbone(training["file"]).to(device)
    else:
        theta = net_of(after[1]) if after else Backbone(backbone, seed=seed, **training["net"])
        theta = theta.to(device)
    transform = evaluation_transform(theta, input_size=side, **({"crop_pct": 1.0} if crop else {}))
    samples = {name: Samples(sets[name], transform, workers=workers) for name in SETS}
    said: list[str] = [text for data in sets.values() for text in data.warnings]
    if after is None and training.get("made") == "trained":
        epochs = training["epochs"] or math.ceil(_PRETRAINING_STEPS * 64 / len(sets["benign"]))
        pretrain_backbone(theta, samples["benign"].keep(), epochs=epochs, seed=seed)
        samples["benign"] = Samples(sets["benign"], transform, workers=workers)
    elif after is None and training.get("made") == "new head":
        fit_head(theta, samples["benign"].keep(theta, place).features(theta))
    elif after is not None and "file" not in training:
        made = immunize_backbone(
            theta, sets["benign"], sets["harmful"],
            method="erase" if method == ERASE_TRANSFORMED else method, settings=DeepSettings(**training),
            validation=sets["benign_held"], validation_H=sets["harmful_held"], transform=transform, seed=seed,
            device=device, workers=workers, checkpoint=checkpoint, activations=place,
        )  # fmt: skip
        theta, said = made.theta_I.to(device), [*said, *made.warnings]
        row |= {name: getattr(made, name) for name in ("steps", "best_step", "stop_reason")}
    row["seconds"] = time.perf_counter() - started
    own = {name: samples[name].keep(theta, place).features(theta) for name in REPORTED}
    arrays = net_arrays(theta)
    if after is None:
        arrays |= {f"{name}.{part}": getattr(of, part) for name, of in own.items() for part in _PARTS}
        before = own
    else:
        kept = {name: {part: after[1][f"{name}.{part}"] for part in _PARTS} for name in REPORTED}
        before = {name: ImageFeatures(**parts) for name, parts in kept.items()}  # type: ignore[arg-type]
    found, curves, warnings = _measured(before, own, seed=seed, after=after, **measure)
    row |= _facts(images) | found | {"accuracy": head_accuracy(theta, own["benign_test"])}
    most = float(np.bincount(own["benign_test"].labels).max() / len(own["benign_test"]))
    if after is None and row["accuracy"] <= most:
        said.append(
            f"θ₀ does not solve D_P: its test accuracy is {row['accuracy']:.1%}, and always predicting the "
            f"most frequent class gives {most:.1%}; train it longer (--pretrain-epochs)."
        )
    bad = sorted({str(image) for of in samples.values() for image in of.unreadable})
    warnings = [*said, *warnings, *(f"An image does not decode and is left out: {name}." for name in bad)]
    checkpoint.unlink(missing_ok=True)
    return row | {"warnings": " ".join(dict.fromkeys(warnings))}, arrays | curves


def _measured(
    before: Mapping[str, ImageFeatures],
    own: Mapping[str, ImageFeatures],
    *,
    seed: int,
    after: Outcome | None,
    groups: int,
    group_size: int,
    probe_passes: int,
) -> tuple[Row, Arrays, list[str]]:
    """Return row, curves and warnings of a net: Eq. 17, Fig. 3's probe and a solver on D_H, SGRC and RFD."""
    row: Row = {"dimension": own["benign"].values.shape[1]}
    warnings = list[str]()
    for images in ("", "_test"):
        sets = [of[f"{task}{images}"] for task in ("benign", "harmful") for of in (before, own)]
        sizes: dict[str, Any] = {"groups": groups, "group_size": min(group_size, *map(len, sets))}
        found = rir_from_features(*sets, seed=seed, **sizes)
        new = [text for text in found.warnings if text not in warnings]
        warnings += [f"test images: {text}" if images else text for text in new]
        for convention in ("compact", "ridge", "averaged", "averaged_ridge"):
            estimate = getattr(found, convention)
            for name in ("harmful_ratio", "benign_ratio", "rir", "rir_std", "success"):
                row[f"{convention}{images}_{name}"] = getattr(estimate, name)
        others = (seed + _DRAW_STRIDE * draw for draw in range(1, _DRAWS))
        draws = [found.rir, *(group_rir(sets[:2], sets[2:], seed=other, **sizes).rir for other in others)]
        row |= {f"rir{images}_least_draw": min(draws), f"rir{images}_largest_draw": max(draws)}
        for index, role in enumerate(() if images else ROLES):
            row[f"kappa_{role}"] = float(np.median(found.compact.kappas[index]))
            row[f"rank_{role}"] = int(np.median(found.compact.ranks[index]))
    target = Target.of_features(own["harmful"], own["harmful_test"])
    probe = attack(target, "head-sgd", passes=probe_passes, seed=seed)
    paths = [descent_path(of["harmful"], of["harmful_test"]) for of in (before, own)]
    arrays = {"probe": probe.accuracy}
    other = probe.accuracy if after is None else after[1]["probe"]
    if after is None:  # A against A
        arrays["again"] = again = attack(
            target, "head-sgd", passes=probe_passes, seed=seed, again=True
        ).accuracy
    row |= {"slowdown": path_slowdown(*paths), "chance": probe.chance, "probe_rate": probe.chosen}
    row |= {f"probe_{epoch}": probe.after(min(epoch, probe_passes)) for epoch in HORIZONS}
    row["sgrc"] = float(sgrc(other[-1], (again if after is None else probe.accuracy)[-1]))
    for name, signed in (("rfd", False), ("rfd_signed", True)):
        row[name] = rfd(other[1:], (again if after is None else probe.accuracy)[1:], signed=signed)
    row["ridge"] = attack(target, "ridge", seed=seed).final
    if probe.at_edge:
        warnings.append("The best learning rate of the probe is at the edge of its grid.")
    return row, arrays, warnings


def _facts(images: dict[str, Any]) -> Row:
    """Return what a row says of the images."""
    data = images_of(**images)
    P, H = (
        images[task] if "/" not in images[task] else "/".join(Path(images[task]).parts[-2:])
        for task in ("benign", "harmful")
    )
    sums = hashlib.sha256("\n".join(of.checksum for of in data.values()).encode()).hexdigest()
    return {
        "pair": f"{P} → {H.removeprefix(P.partition(':')[0] + ':')}",
        "data_checksum": sums,
        "benign_classes": len(data["benign"].classes),
        "harmful_classes": len(data["harmful"].classes),
    }


def net_arrays(backbone: Backbone) -> Arrays:
    """Return a net of timm as arrays: its weights, and how it is made."""
    recipe = {"net": backbone.name, "trainable": backbone.trainable, **(backbone.model_arguments or {})}
    state = {f"{_WEIGHT}{key}": of.cpu().numpy() for key, of in backbone.model.state_dict().items()}
    return {"recipe": np.array(json.dumps(recipe | {"num_classes": backbone.num_classes})), **state}


def net_of(arrays: Arrays) -> Backbone:
    """Return the net of `net_arrays`, in evaluation mode on the CPU."""
    backbone = Backbone(**json.loads(str(arrays["recipe"])))
    state = {
        name.removeprefix(_WEIGHT): torch.from_numpy(of.copy())
        for name, of in arrays.items()
        if name.startswith(_WEIGHT)
    }
    backbone.model.load_state_dict(state)
    return backbone


def save_nets(run: Run, folder: str | Path) -> None:
    """Write nets to `<backbone>/seed-<n>[/<method>]`, and θ₀'s features as tables beside it."""
    for (_, row), arrays in zip(run.rows.iterrows(), run.arrays, strict=True):
        if "recipe" not in arrays:
            continue
        place = Path(folder, "".join(c if c.isalnum() or c in "._-" else "-" for c in row["backbone"]))
        place /= f"seed-{row['seed']}"
        notes = {"method": row["method"], "seed": str(row["seed"])}
        initial = row["method"] == INITIAL
        file = place / "theta_0.safetensors" if initial else place / row["method"] / "theta_I.safetensors"
        output_folder(file.parent)
        save_backbone(net_of(arrays), file, notes=notes)
        for task, letter in (("benign", "P"), ("harmful", "H")) if initial else ():
            for part, name in (("values", "X"), ("labels", "y")):
                rows = np.concatenate([arrays[f"{task}{split}.{part}"] for split in ("", "_test")])
                np.save(output_folder(place / "features") / f"{name}_{letter}.npy", rows)


# The table, the sentence and the figure.


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per backbone and method: means over seeds, on the training images as in Table 3."""
    lines = []
    order = list(dict.fromkeys(rows["backbone"]))
    for (backbone, method), own in sorted(
        rows.groupby(["backbone", "method"], sort=False), key=lambda group: order.index(group[0][0])
    ):
        known = _published(own.iloc[0]).get(str(method), {})
        ratios = {"rir": "compact_rir", "test_rir": "compact_test_rir", "averaged_rir": "averaged_rir"}
        ratios |= {name: f"compact_{name}" for name in ("harmful_ratio", "benign_ratio")}
        line: Row = {"pair": own["pair"].iloc[0], "backbone": backbone, "method": method}
        for name, column in ratios.items():
            line |= {f"{name}_mean": own[column].mean(), f"{name}_std": own[column].std()}
            if name == "rir":
                line |= {f"published_{of}": known.get(of, math.nan) for of in ("rir_mean", "rir_std")}
        for name, column in (("compact", "compact"), ("ridge", "ridge"), ("test", "compact_test")):
            line[f"immunized_{name}"] = int(own[f"{column}_success"].eq(True).sum())
        line |= {"of": len(own), "slowdown": own["slowdown"].median(), "steps": int(own["steps"].max())}
        own = own.assign(sgd=own["probe_50"], solved=own["ridge"])
        for name in ("accuracy", "sgd", "solved"):
            line |= {f"{name}_mean": 100 * own[name].mean(), f"{name}_std": 100 * own[name].std()}
        for name in ("sgrc", "rfd", "rfd_signed"):
            line |= {f"{name}_mean": own[name].mean(), f"{name}_std": own[name].std()}
        lines.append(line)
    return pd.DataFrame(lines)


def _published(row: Any) -> dict[str, dict[str, Any]]:
    """Return the column of Table 3 that is nearest: its architecture, and its harmful data set."""
    family = "vit" if "vit" in str(row["backbone"]).lower() else "resnet18"
    harmful = _HARMFUL.get(int(row["harmful_classes"]))
    return published(3, family, harmful) if harmful else {}


def sentence(table: pd.DataFrame) -> str:
    """Return what one method does to each backbone: counts, accuracy, and D_H by SGD and solved."""
    said = []
    for (pair, backbone), own in table.groupby(["pair", "backbone"], sort=False):
        at = own.set_index("method")
        row = at.loc[first_of([*at.index])]
        known = spread(row["published_rir_mean"], row["published_rir_std"], 4)
        paper = f" (Table 3, ImageNet: {known})" if math.isfinite(row["published_rir_mean"]) else ""

        def beside(name: str, row: pd.Series = row, at: pd.DataFrame = at) -> str:
            start = f" (θ₀: {at.at[INITIAL, name]:.1f} %)" if INITIAL in at.index else ""
            return f"{row[name]:.1f} %{start}"

        said.append(
            f"On {pair}, {label_text(row.name)} immunizes {backbone} in "
            f"{count_of(row['immunized_compact'], row['of'])} seeds with RIR_θ0 "
            f"{spread(row['rir_mean'], row['rir_std'])}{paper} with an accuracy of "
            f"{beside('accuracy_mean')} on D_P; on D_H, SGD on a new head reaches {beside('sgd_mean')}, "
            f"and a solver {beside('solved_mean')}."
        )
    return " ".join(said)


def style_of(method: str) -> MethodStyle:
    """Return a method's style; θ₀ is not an immunized model, and drawn unlike any of them."""
    start = MethodStyle("θ<sub>0</sub> (not immunized)", "#666666", "dash")
    return start if method == INITIAL else method_style(method)


def figure(run: Run) -> Any:
    """Draw Fig. 3: SGD on a new head for D_H at its best learning rate, and the optimum of the same probe.

    A panel per backbone; the dotted level in the color of a method is what a solver reaches.
    """
    names = list(dict.fromkeys(run.rows["backbone"]))
    curves = pd.concat(
        pd.DataFrame({"epoch": np.arange(len(of["probe"])), "value": 100 * of["probe"]}).assign(
            **row[["backbone", "method", "seed"]]
        )
        for (_, row), of in zip(run.rows.iterrows(), run.arrays, strict=True)
    )
    curves["backbone"] = pd.Categorical(curves["backbone"], names)
    figure = panels(cols=len(names), subplot_titles=names, horizontal_spacing=0.07)
    lines_by_method(
        figure, curves, "epoch", "value", panel="backbone", columns=len(names), style=style_of,
        geometric=False, hovertemplate="epoch %{x}: %{y:.1f} %",
    )  # fmt: skip
    for (backbone, method), own in run.rows.groupby(["backbone", "method"], sort=False):
        level, style = 100 * own["ridge"].mean(), style_of(str(method))
        add_line(
            figure, f"{style.label}, solved", [0, curves["epoch"].max()], [level, level], style.color, "dot",
            width=1.6, hovertemplate=f"solver: {level:.1f} %", legendgroup=method, showlegend=False, row=1,
            col=names.index(backbone) + 1,
        )  # fmt: skip
    figure.update_xaxes(title_text="epoch")
    figure.update_yaxes(title_text="test accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{run.rows['pair'].iloc[0]}. Line: mean over seeds; band: least to largest; dotted: solver"
    return finish(figure, "Linear probing of D<sub>H</sub> (Fig. 3)", note)
