"""Table 3 and Figure 3: the last stage of a backbone is immunized, on photographs or digits."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.images import ImageData
from condnum.deep.backbone import Backbone, load_backbone, save_backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.pretraining import pretrain_backbone
from condnum.deep.probe import fit_head
from condnum.deep.rir import rir_sample
from condnum.deep.training.immunization import immunize_backbone
from condnum.deep.training.samples import Samples
from condnum.deep.training.settings import DeepSettings
from condnum.deep.transforms import ImageTransform, training_transform
from condnum.experiments.deep_measures import (
    DeepTasks,
    FeatureSets,
    doubts,
    facts,
    measured_features,
    net_arrays,
    net_of,
    tasks,
)
from condnum.experiments.deep_recipes import AS_LOADED, INITIAL, NEW_HEAD, WEIGHTS, Choice, net_method
from condnum.experiments.frame import Arrays, Cell, Outcome, Row, Run
from condnum.experiments.linear import first_of
from condnum.experiments.published import published
from condnum.files import output_folder, sha256_file
from condnum.page.style import MethodStyle, add_line, finish, lines_by_method, method_style, panels
from condnum.page.tables import count_of, label_text, spread

#: A model with what a row says of its training, what was said on the way, and images that do not decode.
Made: TypeAlias = tuple[Backbone, Row, Sequence[str], Sequence[Any]]

#: Images that go through a net at a time where it is measured.
BATCH = 64
#: Row of a model that is not trained here.
_LOADED: Row = {"steps": 0, "best_step": 0, "seconds": 0.0, "stop_reason": AS_LOADED}
#: Columns of Table 3 by the number of classes of D_H.
_HARMFUL = {196: "cars", 211: "country211"}


def cells(**parameters: Any) -> list[Cell]:
    """List θ₀ of each backbone and seed, then what each method makes of it."""
    return Choice(**parameters).cells()


def checksum(**parameters: Any) -> str:
    """Return the SHA-256 of the images, and of a file of weights."""
    return checksum_of(Choice(**parameters))


def checksum_of(choice: Choice) -> str:
    """Return the SHA-256 of what a choice reads."""
    weights = "" if choice.chosen_weights in WEIGHTS else sha256_file(Path(choice.chosen_weights))
    return f"{choice.tasks.checksum}{weights}"


def threads(*, full: bool, **parameters: Any) -> int | None:
    """Return the threads of a cell: one of several small ones, or all of them."""
    return 1 if Choice(full=full, **parameters).small else None


def compute(
    *,
    backbone: str,
    method: str,
    seed: int,
    images: dict[str, Any],
    transform: dict[str, Any],
    measure: dict[str, int],
    trunk_on_disk: bool,
    device: str,
    workers: int,
    beside: Path,
    training: Any,
    net: dict[str, Any] | None = None,
    after: Outcome | None = None,
) -> Outcome:
    """Make a net and measure it beside θ₀, whose own ratios are 1 by definition."""
    data, checkpoint = tasks(**images), beside.with_suffix(".checkpoint")
    trunk = beside.parent / "activations" if trunk_on_disk else None
    common: dict[str, Any] = {"seed": seed, "device": device, "workers": workers, "checkpoint": checkpoint}
    if isinstance(training, dict) and "file" in training:
        made: Made = load_backbone(training["file"]), _LOADED, (), ()
    elif after is None:
        assert net is not None
        made = _start(data, Backbone(backbone, seed=seed, **net), transform, training, trunk, **common)
    else:
        made = _immunized(data, net_of(after[1]), method, transform, training, trunk, **common)
    theta, row, said, unreadable = made
    arrays = net_arrays(theta)
    sample = rir_sample(len(data.benign), measure["groups"] * measure["group_size"], seed)
    options: dict[str, Any] = {"sample": sample, "transform": transform, "trunk": trunk}
    options |= {"device": device, "workers": workers}
    own = _features(data, arrays, **options)
    before = own if after is None else _features(data, after[1], **options)
    theta = theta.cpu()
    if after is None:
        for task, parts in (("P", own[:2]), ("H", own[2:])):
            arrays[f"X_{task}"] = np.concatenate([part.values for part in parts])
            arrays[f"y_{task}"] = np.concatenate([part.labels for part in parts])
        said = [*data.warnings, *doubts(theta, own.benign_test)]
    found, curves, warnings = measured_features(before, own, said, seed=seed, **measure)
    bad = {str(image) for image in [*unreadable, *(image for part in own for image in part.unreadable)]}
    warnings += [f"An image does not decode and is left out: {name}." for name in sorted(bad)]
    row = facts(images) | row | found
    row |= {"accuracy": head_accuracy(theta, own.benign_test), "checksum": theta.checksum}
    checkpoint.unlink(missing_ok=True)
    return row | {"warnings": " ".join(dict.fromkeys(warnings))}, arrays | curves


def _start(
    data: DeepTasks,
    backbone: Backbone,
    transform: dict[str, Any],
    training: Any,
    trunk: Path | None,
    *,
    seed: int,
    device: str,
    workers: int,
    checkpoint: Path,
) -> Made:
    """Train θ₀ on D_P, or fit its head if need be."""
    if training == AS_LOADED:
        return backbone, _LOADED, (), ()
    made_by = training_transform(backbone, **transform)
    if training == NEW_HEAD:
        started = time.perf_counter()
        rows = _of(backbone.to(device), data.benign, made_by, trunk, workers)
        fit_head(backbone, rows, seed=seed)
        row = {"seconds": time.perf_counter() - started, "stop_reason": "new head, logistic"}
        return backbone, _LOADED | row, (), rows.unreadable
    made = pretrain_backbone(
        backbone,
        data.benign,
        transform=made_by,
        seed=seed,
        device=device,
        workers=workers,
        checkpoint=checkpoint,
        **training,
    )
    return backbone, _LOADED | {"seconds": made.seconds, "stop_reason": "trained"}, (), made.unreadable


def _immunized(
    data: DeepTasks,
    theta_0: Backbone,
    method: str,
    transform: dict[str, Any],
    training: dict[str, Any],
    trunk: Path | None,
    **common: Any,
) -> Made:
    """Immunize θ₀ by a method."""
    made_by = training_transform(theta_0, **transform)
    done = immunize_backbone(
        theta_0,
        data.benign,
        data.harmful,
        method=net_method(method),
        settings=DeepSettings(**training),
        validation=data.benign_held,
        validation_H=data.harmful_held,
        transform_P=made_by,
        transform_H=made_by,
        activations=trunk,
        **common,
    )
    row = {name: getattr(done, name) for name in ("steps", "best_step", "seconds", "stop_reason")}
    return done.theta_I, row, done.warnings, done.unreadable


def _features(
    data: DeepTasks,
    arrays: Arrays,
    *,
    sample: NDArray[np.int64],
    transform: dict[str, Any],
    trunk: Path | None,
    device: str,
    workers: int,
) -> FeatureSets:
    """Return the features of a net on all sets."""
    backbone = net_of(arrays).to(device)
    made_by = training_transform(backbone, **transform)
    sets = ((data.benign, sample), (data.benign_test, None), (data.harmful, None), (data.harmful_test, None))
    return FeatureSets(*(_of(backbone, images, made_by, trunk, workers, rows) for images, rows in sets))


def _of(
    backbone: Backbone,
    images: ImageData,
    transform: ImageTransform,
    trunk: Path | None,
    workers: int,
    rows: NDArray[np.int64] | None = None,
) -> ImageFeatures:
    """Return the features of some images, or of all, from kept activations where there are some."""
    samples = Samples(images, transform.unaugmented, seed=0, workers=workers)
    if trunk is not None:
        samples.keep_activations(backbone, BATCH, trunk, rows)
    return samples.features(backbone, BATCH, rows)


def save_nets(run: Run, folder: str | Path) -> None:
    """Write nets to `<backbone>/seed-<n>[/<method>]`, and θ₀'s features as tables beside it."""
    for (_, row), arrays in zip(run.rows.iterrows(), run.arrays, strict=True):
        if "recipe" not in arrays:
            continue
        place = Path(folder, "".join(c if c.isalnum() or c in "._-" else "-" for c in row["backbone"]))
        place /= f"seed-{row['seed']}"
        notes = {"method": row["method"], "seed": str(row["seed"]), "data": row["data_checksum"]}
        initial = row["method"] == INITIAL
        file = place / "theta_0.safetensors" if initial else place / row["method"] / "theta_I.safetensors"
        output_folder(file.parent)
        save_backbone(net_of(arrays), file, notes=notes)
        for name in ("X_P", "y_P", "X_H", "y_H") if initial else ():
            np.save(output_folder(place / "features") / f"{name}.npy", arrays[name])


# The table, the sentence and the figure.


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per backbone and method: means over seeds, on the training images as in Table 3."""
    lines = []
    order = list(dict.fromkeys(rows["backbone"]))
    for (backbone, method), own in sorted(
        rows.groupby(["backbone", "method"], sort=False), key=lambda group: order.index(group[0][0])
    ):
        known = _published(own.iloc[0]).get(str(method), {})
        ratios = {"rir": "compact_rir", "test_rir": "compact_test_rir"}
        ratios |= {name: f"compact_{name}" for name in ("harmful_ratio", "benign_ratio")}
        line: Row = {"pair": own["pair"].iloc[0], "backbone": backbone, "method": method}
        for name, column in ratios.items():
            line |= {f"{name}_mean": own[column].mean(), f"{name}_std": own[column].std()}
            if name == "rir":
                line |= {f"published_{of}": known.get(of, math.nan) for of in ("rir_mean", "rir_std")}
        for name, column in (("compact", "compact"), ("ridge", "ridge"), ("test", "compact_test")):
            line[f"immunized_{name}"] = int(own[f"{column}_success"].eq(True).sum())
        line |= {"of": len(own), "slowdown": own["slowdown"].median(), "steps": int(own["steps"].max())}
        for name, column in (("accuracy", "accuracy"), ("sgd", "probe_final"), ("solved", "convex")):
            line |= {f"{name}_mean": 100 * own[column].mean(), f"{name}_std": 100 * own[column].std()}
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
        level, style = 100 * own["convex"].mean(), style_of(str(method))
        add_line(
            figure, f"{style.label}, solved", [0, curves["epoch"].max()], [level, level], style.color, "dot",
            width=1.6, hovertemplate=f"solver: {level:.1f} %", legendgroup=method, showlegend=False, row=1,
            col=names.index(backbone) + 1,
        )  # fmt: skip
    figure.update_xaxes(title_text="epoch")
    figure.update_yaxes(title_text="test accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{run.rows['pair'].iloc[0]}. Line: mean over seeds; band: least to largest; dotted: solver"
    return finish(figure, "Linear probing of D<sub>H</sub> (Fig. 3)", note)
