"""The explorer of notebook 5: two feature matrices of the reader's own, by upload or by path."""

from __future__ import annotations

import html
import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from condnum.audit.tables import columns_html
from condnum.data.feature_stream import OPENERS
from condnum.errors import DataFormatError
from condnum.extras import require
from condnum.plots.own_data import own_data_figure
from condnum.teaching.own_data import PROBE_STEPS, OwnData, own_data
from condnum.teaching.own_pair import EXAMPLES
from condnum.widgets.controls import CONTROL_WIDTH, Check, Choice, Control, LogSlider
from condnum.widgets.explorer import Explorer

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")

#: Largest upload. Jupyter's connection breaks off above 10 MiB; larger files are read from a path.
UPLOAD_BYTES = 8 << 20


@dataclass(frozen=True)
class PathField(Control):
    """A line of text for a path, taken over on Enter."""

    def _widget(self, trait: Any) -> Any:
        """Return the text field."""
        return ipywidgets.Text

    hint: str = "path, then Enter; empty: the example"

    def _options(self, trait: Any) -> dict[str, Any]:
        """Wait for Enter: half a path is no file."""
        return {"continuous_update": False, "placeholder": self.hint}


def own_data_table(result: OwnData) -> pd.DataFrame:
    """Return spectra and probe curves in long form."""
    parts = [
        pd.DataFrame({"quantity": name, "x": range(1, len(task.sigma) + 1), "value": task.sigma})
        for name, task in (("sigma_P", result.pretrain), ("sigma_H", result.harmful))
    ]
    names = ("ratio_P", "ratio_P_immunized", "ratio_H", "ratio_H_immunized")
    for name, ratio in zip(names, result.probes.norm_ratio, strict=True):
        parts.append(pd.DataFrame({"quantity": name, "x": result.probes.steps, "value": ratio}))
    return pd.concat(parts, ignore_index=True)


def own_data_reading(result: OwnData) -> str:
    """Put the numbers into a table and the warnings below it."""
    heads = ("task", "N × D", "rank", "κ, compact", "κ, ridge ε", "steps, as is", "steps, after θ*")
    costs, last = result.costs, int(result.probes.steps[-1])
    rows = []
    for name, task, (raw, immunized) in (
        ("pre-training P", result.pretrain, costs[:2]),
        ("harmful H", result.harmful, costs[2:]),
    ):
        cells = (
            name, f"{task.rows:,d} × {len(result.columns)}", f"{task.compact.rank}",
            f"{task.compact.value:.4g}", f"{task.ridge.value:.4g}", _steps(raw, last),
            _steps(immunized, last),
        )  # fmt: skip
        rows.append("".join(f'<td style="padding:1px 14px 1px 0">{cell}</td>' for cell in cells))
    head = "".join(f'<th style="text-align:left;padding:1px 14px 1px 0">{text}</th>' for text in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    numbers = f'<table style="line-height:1.5"><tr>{head}</tr>{body}</table>'
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in result.warnings)
    return (
        f"{numbers}<p style='margin:6px 0'>{_verdict(result)}</p><ul style='margin:0'>{notes}</ul>"
        f"{columns_html(result.columns)}"
    )


def _verdict(result: OwnData) -> str:
    """Say what the ceiling and θ* promise, and what not."""
    ceiling = "∞" if math.isinf(result.ceiling) else f"{result.ceiling:.4g}"
    rises = "rises" if result.harmful_ratio > 1 else "falls as well, so D<sub>H</sub> is no harder to probe"
    return (
        f"<b>RIR ≤ {ceiling}</b> (compact), ≤ {result.ridge_limit:.3g} with ε = {result.ridge:.3g}. "
        f"θ* takes κ(H<sub>P</sub>) to {result.probes.condition[1]:.3g} (ii = {result.pretrain_ratio:.3g}) "
        f"and κ(H<sub>H</sub>) to {result.probes.condition[3]:.4g} (i = {result.harmful_ratio:.3g}): "
        f"it {rises}. "
        f"Misalignment of Eq. 10 at θ*: {result.misalignment:.2f}."
    )


def _steps(count: int, last: int) -> str:
    """Word a number of steps."""
    return f"more than {last:,d}" if count < 0 else f"{count:,d}"


class OwnDataExplorer(Explorer):
    """Condition numbers, ranks, alignment, ceiling and probe cost of two feature matrices.

    Args:
        **settings: `pretrain`, `harmful`, `key`, `drop`, `example`, `standardise`, `ridge`, `tolerance`,
            `goal`, `steps`.

    Raises:
        UnknownNameError: Another setting.
    """

    pretrain = traitlets.Unicode("", help="Features of the pre-training task: npy, npz, csv or parquet.")
    harmful = traitlets.Unicode("", help="Features of the harmful task, the same columns.")
    key = traitlets.Unicode("", help="Which array of an npz; two names with a comma: of X_P and of X_H.")
    drop = traitlets.Unicode("", help="Names of columns to leave out, with commas between.")
    example = traitlets.Enum(list(EXAMPLES), "diabetes", help="Shown while both paths are empty.")
    standardise = traitlets.Bool(False, help="Each task's columns to mean 0 and deviation 1.")
    ridge = traitlets.Float(1e-6, min=1e-9, max=1e3, help="ε of the ridge convention, in the units of K.")
    tolerance = traitlets.Float(
        1.0, min=1e-2, max=1e10, help="Eigenvalues above this multiple of D·eps·σ₁ count for the rank."
    )
    goal = traitlets.Float(1e-3, min=1e-6, max=0.5, help="Norm ratio (Eq. 16) that the probe must reach.")
    steps = traitlets.Enum(list(PROBE_STEPS), PROBE_STEPS[0], help="The longest probe; more takes longer.")

    controls = (
        PathField("pretrain", "X_P from path"),
        PathField("harmful", "X_H from path"),
        PathField("drop", "leave out", "columns", hint="label, id; then Enter"),
        PathField("key", "array", "of npz", hint="name, or two with a comma; then Enter"),
        Choice("example", "example", labels={"digits": "digits 4 and 7", "diabetes": "diabetes, 2 groups"}),
        Check("standardise", "standardise", "each task"),
        LogSlider("ridge", "ridge ε", "units of K"),
        LogSlider("tolerance", "rank tolerance", "× D·eps", step=0.25, continuous=False),
        LogSlider("goal", "goal", "norm ratio"),
        Choice("steps", "probe at most", "steps", labels={n: f"{n:,d}" for n in PROBE_STEPS}),
    )
    compute = staticmethod(own_data)
    figure = staticmethod(own_data_figure)
    data = staticmethod(own_data_table)
    reading = staticmethod(own_data_reading)

    def _panel(self) -> Any:
        """Put an upload button beside either path, and a red line below each field of text."""
        panel = super()._panel()
        self._folder = tempfile.TemporaryDirectory(prefix="condnum-upload-")  # goes with the explorer
        self.uploads = {}  # the upload button of each trait
        self.alerts = {trait: ipywidgets.HTML() for trait in ("pretrain", "harmful", "drop", "key")}
        for trait, label in (("pretrain", "Upload X_P"), ("harmful", "Upload X_H")):
            button = ipywidgets.FileUpload(
                accept=",".join(OPENERS), multiple=False, description=label, layout={"width": "auto"},
                tooltip=f"{', '.join(OPENERS)} up to {UPLOAD_BYTES >> 20} MiB; larger files by their path",
            )  # fmt: skip
            button.observe(partial(self._on_upload, trait), "value")
            self.uploads[trait] = button
        fields = [
            ipywidgets.VBox(
                [box, *([self.uploads[trait]] if trait in self.uploads else []), self.alerts[trait]],
                layout={"width": f"{CONTROL_WIDTH}px", "max_width": "100%"},
            )
            for trait, box in self.inputs.items()
            if trait in self.alerts
        ]
        panel.children = [*fields, *panel.children[len(fields) :]]
        return panel

    def receive(self, trait: str, name: str, content: bytes) -> None:
        """Take over a file: keep it in a folder of this explorer's and look at it.

        Args:
            trait: `pretrain` or `harmful`.
            name: The file's name; its ending says how it is read.
            content: Its bytes.

        Raises:
            DataFormatError: Too large for an upload.
        """
        if len(content) > UPLOAD_BYTES:
            error = DataFormatError(
                f"{name} has {len(content) / 2**20:.1f} MiB; uploads go through Jupyter's connection and end "
                f"at {UPLOAD_BYTES >> 20} MiB: put the file where the kernel runs and give its path."
            )
            error.field = trait
            raise error
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))  # the same name twice is two files
        path = folder / (Path(name.replace("\\", "/")).name or "upload")
        path.write_bytes(content)
        setattr(self, trait, str(path))

    def _on_upload(self, trait: str, change: Any) -> None:
        """Receive what the button holds, with errors in sight."""
        taken = False
        with self._visible_errors("the upload is not shown"):
            for file in change["new"]:
                self.receive(trait, file["name"], bytes(file["content"]))
            taken = True
        if not taken:
            self._blank()
