"""A reproduction made by hand: one run with a table and a figure, two that failed, one not asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from condnum.report.reproduce import ExperimentRecord, ReproductionRecord

PLOTLY = "application/vnd.plotly.v1+json"
CHECKSUM = "ab" * 32


def make_entry(name: str, command: str, status: str = "finished", **changes: Any) -> ExperimentRecord:
    values = {
        "name": name,
        "title": f"Title of {name}",
        "summary": "One sentence.",
        "kind": "experiment",
        "command": command,
        "status": status,
        "folder": name if status != "not run" else None,
        "error": "",
        "seconds": 12.34,
        "fingerprint": None,
    }
    return ExperimentRecord(**(values | changes))


def make_record(*entries: ExperimentRecord, scale: str = "quick") -> ReproductionRecord:
    return ReproductionRecord(
        scale=scale,
        started_utc="2030-01-02T03:04:05+00:00",
        seconds=100.0,
        source={"revision": "0123456789abcdef" * 2, "dirty": False},
        versions={"python": "3.11", "condnum": "0.1.0"},
        device={"name": "a processor"},
        experiments=entries,
    )


def make_run(folder: Path, data: str = "diabetes", **tables: pd.DataFrame) -> Path:
    """Write a run folder: notebook, provenance, tables."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = go.Figure(go.Scatter(x=np.arange(1.0, 4.0), y=np.array([1.0, 0.5, 1 / 3]), mode="lines"))
    figure.update_layout(title_text="A figure of κ", template="plotly_white")
    node = new_notebook()
    node.cells = [
        new_markdown_cell(
            "# The title\n\nSome words on $\\kappa$.\n\n## The run\n\nA heading that is taken."
        ),
        new_code_cell("draw()", outputs=[new_output("display_data", data={PLOTLY: figure.to_plotly_json()})]),
        new_code_cell(
            "table()",
            outputs=[new_output("display_data", data={"text/html": "<table><tr><td>1</td></tr></table>"})],
        ),
    ]
    text = json.dumps(node, default=lambda array: array.tolist())
    nbformat.write(nbformat.reads(text, as_version=4), folder / "report.ipynb")
    provenance = {
        "versions": {"python": "3.11", "torch": "2.15"},
        "platform": {"system": "Linux"},
        "device": {"device": "cpu", "name": "a processor", "threads": 2},
        "command": "condnum run",
        "parameters": {"seeds": 2, "methods": "", "note": "<i>"},
        "seeds": [0, 1],
        "data": {data: CHECKSUM},
        "source": {"revision": "f" * 40, "dirty": True},
        "started_utc": "2030-01-02T03:04:05+00:00",
        "duration_seconds": 83.0,
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def entry() -> Callable[..., ExperimentRecord]:
    """`entry("digits", "condnum run digits")`: an experiment's record."""
    return make_entry


@pytest.fixture
def record() -> Callable[..., ReproductionRecord]:
    """`record(*entries)`: a reproduction's record."""
    return make_record


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """`write_run(folder, results=table)`: a run folder."""
    return make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A reproduction with a finished lesson, one failed experiment with an older result, one waiting."""
    base = tmp_path / "reproduction"
    make_run(base / "lesson", results=pd.DataFrame({"a": [1, 2]}))
    make_run(base / "old")
    make_record(
        make_entry("lesson", "condnum run notebook lesson", kind="lesson"),
        make_entry("old", "condnum run limits", "failed", error="it broke at <b>x</b>; mend it."),
        make_entry("gone", "condnum run deep --harmful cars", "failed", folder=None, error="no space left"),
        make_entry("waiting", "condnum run mnist", "waiting", folder=None),
        make_entry("unasked", "condnum run attackers", "not run", error="was not asked for"),
    ).save(base)
    return base


@pytest.fixture
def built(root: Path, tmp_path: Path) -> Path:
    """The site of `root`."""
    from condnum.report.site import build_site

    return build_site(root, tmp_path / "reports").parent


@pytest.fixture
def soup_of(built: Path) -> Callable[[str], Any]:
    """Parse a page of the site."""
    from bs4 import BeautifulSoup

    return lambda name: BeautifulSoup((built / name).read_text("utf-8"), "html.parser")
