"""What an experiment found: rows and arrays of its cells, a table, a sentence, and what made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from numpy.typing import NDArray

from condnum.files import write_json, write_tables
from condnum.page.notebook import RUN_TYPE

#: Coordinates and settings, as JSON holds them. For `after`, a cell that has to be finished before, `compute`
#: gets its outcome; for `beside`, which is empty, a path without suffix for what it keeps while it runs, in
#: a folder in which it may share files with other cells.
Cell: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Arrays: TypeAlias = dict[str, NDArray[Any]]
#: What a cell found: columns of the table of all cells, and long values beside them.
Outcome: TypeAlias = tuple[Row, Arrays]

#: In a folder of results: the tables and the record of the last whole run.
ROWS, TABLE, RECORD = "results.csv", "table.csv", "provenance.json"


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """What a run found."""

    experiment: Any
    name: str
    rows: pd.DataFrame  # a row per finished cell: its coordinates, and what it found
    arrays: list[Arrays]  # of the same cells
    failures: pd.DataFrame  # cells that failed, and why
    record: Mapping[str, Any]  # what somebody else needs to reproduce it
    table: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        taken = len(signature(self.experiment.table).parameters)
        object.__setattr__(self, "table", self.experiment.table(*(self.rows, self.arrays)[:taken]))

    @cached_property
    def sentence(self) -> str:
        """The answer."""
        return str(self.experiment.sentence(self.table))

    def __repr__(self) -> str:
        """Return the sentence and the table as text."""
        from condnum.page.tables import plain, written

        return f"{self.sentence}\n\n{plain(written(self.table))}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return sentence and failures, and for programs all of the run but its arrays."""
        from condnum.page.tables import formula_html

        claim, stop, rest = self.sentence.partition(". ")
        shown = f'<p class="answer"><b>{formula_html(claim + stop)}</b>{formula_html(rest)}</p>'
        if len(self.failures):
            shown += f"<h3>Cells that failed</h3>{self.failures.to_html(index=False)}"
        table = self.table.to_csv(index=False)
        kept = {"name": self.name, "sentence": self.sentence, "table": table, "record": self.record}
        return {"text/plain": repr(self), "text/html": shown, RUN_TYPE: kept}

    def show(self) -> None:
        """Show the sentence, the figure and the table in a notebook."""
        from IPython.display import HTML, display

        from condnum.page.tables import sortable, written

        display(self, self.experiment.figure(self), HTML(sortable(written(self.table))))

    @property
    def about(self) -> pd.DataFrame:
        """What made this run, in two columns."""
        record = dict(self.record)
        facts = {"data (SHA-256)": record["made_of"][-1], "code (SHA-256)": record["made_of"][1]}
        facts |= {
            name: record[name] for name in ("parameters", "cells", "seconds", "device", "versions", "source")
        }
        words = [
            ", ".join(f"{key}: {of}" for key, of in value.items())
            if isinstance(value, Mapping)
            else str(value)
            for value in facts.values()
        ]
        return pd.DataFrame({"what": list(facts), "value": words})

    def save(self, folder: str | Path) -> None:
        """Write the rows, the table and the record."""
        tables = {ROWS: self.rows, TABLE: self.table}
        write_tables(folder, tables)
        write_json(Path(folder) / RECORD, self.record)
