"""`reports/index.html`: what has run here, joined with the published numbers, and the committed results."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from bs4 import BeautifulSoup

from condnum.files import asset, shipped, write_text
from condnum.page.html import answer_cell, page_of
from condnum.page.notebook import RUN_TYPE, first_heading, read_notebook
from condnum.page.reproduce import SPINE
from condnum.page.run import PAGE, REPORT
from condnum.page.tables import as_html, formula_html, mark_tables, sortable, written

#: Columns of the tables in which a method stands beside the paper.
COMPARED = (
    "method", "rir_mean", "rir_std", "published_rir_mean", "published_rir_std", "steps", "published_steps",
    "immunized_ridge", "immunized_compact", "of", "benign_steps", "harmful_steps", "accuracy_mean",
    "accuracy_std", "sgd_mean", "sgd_std", "solved_mean", "solved_std",
)  # fmt: skip


@dataclass(frozen=True)
class Executed:
    """A run, as its executed notebook tells it."""

    name: str
    folder: Path

    @cached_property
    def notebook(self) -> Any:
        """The executed notebook."""
        return read_notebook(self.folder / REPORT)

    @cached_property
    def kept(self) -> Mapping[str, Any]:
        """Sentence, table and record."""
        cell = answer_cell(self.notebook)
        outputs = cell.outputs if cell else []
        found = [output["data"][RUN_TYPE] for output in outputs if RUN_TYPE in output.get("data", {})]
        return found[0] if found else {}

    @property
    def title(self) -> str:
        """The heading of the notebook."""
        return first_heading(self.notebook) or self.name

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table of the run."""
        return pd.read_csv(StringIO(self.kept["table"]))

    @property
    def when(self) -> str:
        """When, at which revision and how long."""
        record = self.kept["record"]
        source = record.get("source") or {}
        day = datetime.fromisoformat(record["started_utc"]).strftime("%Y-%m-%d %H:%M UTC")
        at = (
            f", revision {source['revision'][:8]}{' with changes' if source.get('dirty') else ''}"
            if source
            else ""
        )
        return f"{day}{at}, {record['seconds']:,.0f} s"


def executed(root: Path) -> list[Executed]:
    """Return the finished runs below a folder, a folder each."""
    found = [Executed(path.parent.name, path.parent) for path in sorted(root.glob(f"*/{REPORT}"))]
    return [run for run in found if run.kept]


def write_results(root: Path, target: Path, errors: Mapping[str, str]) -> Path:
    """Write the page of the results, with links to the pages of the runs below `root`."""

    def place(path: Path) -> str:
        return os.path.relpath(path, target)

    def page(run: Executed) -> str:
        """Return where the page of a run lies; of a committed one there is the notebook alone."""
        return place(run.folder / (PAGE if (run.folder / PAGE).exists() else REPORT))

    body = results_body(root, page, place, errors)
    whole = page_of(f"<h1>Results: obtained and published</h1>{body}", title="condnum: results")
    return write_text(target / "index.html", whole)


def results_body(
    root: Path,
    page: Callable[[Executed], str],
    place: Callable[[Path], str],
    errors: Mapping[str, str] | None = None,
) -> str:
    """Return, of each experiment, its answer, its table if the paper has one, and the way to its page.

    `root` has the runs of this machine; committed ones stand in for those that did not run here.
    """
    reports, failed = shipped("reports"), errors or {}
    own, committed = ({run.name.replace("_", "-"): run for run in executed(of)} for of in (root, reports))
    names = [*SPINE, *(name for name in {**own, **committed} if name not in SPINE)]
    parts = [asset("page/results.html")]
    for name in names:
        if name in failed:
            parts.append(f'<p class="answer"><b>{name} failed.</b> {formula_html(failed[name])}</p>')
        if (run := own.get(name) or committed.get(name)) is None:
            continue
        compared = run.table.get("published_rir_mean", pd.Series(dtype=float)).notna().any()
        shown = run.table[[of for of in COMPARED if of in run.table]]
        parts += [
            f'<h2 id="{name}">{formula_html(run.title)}</h2>',
            f'<p class="answer">{formula_html(run.kept["sentence"])}</p>',
            sortable(written(shown)) if compared else "",  # of the others the page has the table
            f'<p class="note">{"" if name in own else "Committed result, not of this machine: "}{run.when}. '
            f'<a href="{page(run)}">The whole page of {name}</a></p>',
        ]
    parts += ["<h2>Earlier results</h2>", _earlier(reports, place)]
    soup = BeautifulSoup("\n".join(parts), "html.parser")
    mark_tables(soup)
    return str(soup)


def _earlier(reports: Path, place: Callable[[Path], str]) -> str:
    """Return the table of `reports/README.md`: results that take hours, with the revision that made them."""
    row = r"(?m)^\| \[(\w+)\]\((\S+)\) \| (.*?) \| (.*?) \| .*? \|$"
    lines = [
        {
            "folder": f'<a href="{place(reports / link)}">{name}</a>',
            "question": formula_html(question),
            "answer": re.sub(r"`(.*?)`", r"<code>\1</code>", formula_html(answer)),
        }
        for name, link, question, answer in re.findall(row, (reports / "README.md").read_text("utf-8"))
    ]
    return as_html(pd.DataFrame(lines))
