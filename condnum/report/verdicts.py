"""The verdict by Definition 3.1 of every method in a folder of results, as the terminal shows it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from condnum.report.tables import number

#: Columns of the table of verdicts.
VERDICT_COLUMNS = ("method", "convention", "immunized", "(i)", "(ii)", "RIR")


def verdict_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return a row per method and convention, headed by `VERDICT_COLUMNS`; none if nothing is judged.

    (i), (ii) and RIR are means, with θ at unit scale; `immunized` counts the single verdicts.
    """
    if (folder / "audit.json").exists():
        rows = list(_audited(folder))
    else:
        rows = [row for name in ("summary.csv", "immunization.csv") for row in _summarized(folder / name)]
    return [VERDICT_COLUMNS, *rows] if rows else []


def _audited(folder: Path) -> Iterator[tuple[str, ...]]:
    """Read the measurements of an audit."""
    found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    table = pd.DataFrame(found["measures"]).query("theta_scale == 'unit'")
    for row in table.to_dict("records"):
        kept = found["clause_c"][row["extractor"]]["kept"]
        good = row["clause_a"] and row["clause_b"]
        verdict = "not known (clause (c))" if good and kept is None else "yes" if good and kept else "no"
        label = row["extractor"] + f" against {row['baseline']}" * (row["baseline"] != "raw")
        yield (label, row["convention"], verdict, *_ratios(row))


def _summarized(path: Path) -> Iterator[tuple[str, ...]]:
    """Read a table with a row per method, averaged over seeds or of one extractor."""
    if not path.exists():
        return
    table = pd.read_csv(path).rename(columns=lambda name: name.removesuffix("_mean"))
    if not {"convention", "harmful_ratio"} <= set(table):
        return
    if "theta_scale" in table:
        table = table[table["theta_scale"] == "unit"]
    for row in table.to_dict("records"):
        count = int(row.get("seeds", 1) * row.get("pairs", 1))
        good = round(float(row["success_rate" if "success_rate" in row else "success"]) * count)
        verdict = "yes" if good == count else "no" if not good else "in part"
        label = ", ".join(str(row[name]) for name in ("backbone", "method", "extractor") if name in row)
        yield (label, row["convention"], f"{verdict}, {good} of {count}", *_ratios(row))


def _ratios(row: dict[str, float]) -> tuple[str, ...]:
    """Format (i), (ii) and RIR; audit.json has infinities as words and null for what is not known."""
    values = (row["harmful_ratio"], row["pretrain_ratio"], row["rir"])
    return tuple("—" if value is None else number(float(value)) for value in values)
