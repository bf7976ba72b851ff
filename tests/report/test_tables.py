"""Tables for people, kept as read in `tables.txt`: of the golden tables, and of numbers beside them.

`CONDNUM_GOLDEN=record pytest tests/report/test_tables.py` writes it anew.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd

from condnum.report import deep_comparison, limits, tables
from condnum.studies.frame.record import verdict_rows
from condnum.studies.measure import TABLE_1

GOLDEN = Path(__file__).parents[1] / "golden"
AS_READ = Path(__file__).with_name("tables.txt")


def golden(name, **columns):
    return pd.read_csv(GOLDEN / f"{name}.csv").assign(seconds=1.5, **columns)


def shown():
    """Yield the tables of every report on the golden tables."""
    linear = golden("house-prices/summary")
    for name in ("harmful_ratio", "pretrain_ratio", "rir", "rir_std"):
        linear[f"published_{name}"] = [getattr(TABLE_1.get(m), name, np.nan) for m in linear["method"]]
    for convention, theta_scale in (("ridge", "as_trained"), ("compact", "unit")):
        yield tables.comparison_table(linear, convention=convention, theta_scale=theta_scale)
    yield tables.linear_evidence_table(golden("house-prices/results"))
    yield tables.sensitivity_table(golden("earlier/digits/rtol_sensitivity"))
    yield limits.null_table(golden("limits/null_spaces"))
    yield limits.limits_table(golden("limits/summary"))
    yield tables.switch_table(golden("reproduction-audit/waterfall"))
    nets = golden("deep/summary")
    for convention in ("compact", "ridge"):
        yield deep_comparison.net_table(nets, convention=convention)
    yield deep_comparison.published_note(nets)
    yield deep_comparison.evidence_table(golden("deep/results"))
    yield from demanded()


def demanded():
    """Yield what the golden tables do not call for."""
    yield deep_comparison.published_note(golden("deep/summary").assign(published_same=True))
    summary = golden("limits/summary").iloc[:3].assign(
        method=["ours", "imma", "max_rir"], rir_share=[0.1, 0.01, 0.9], immunized=[2, 0, 2], seeds=2
    )  # fmt: skip
    yield limits.limits_table(summary.assign(rir_share_min=[0.05, 0.01, 0.9], rir_share_max=[0.2, 0.01, 0.9]))


def test_every_table_reads_as_it_was_kept():
    parts = [part if isinstance(part, str) else part.to_csv(sep="\t", index=False) for part in shown()]
    text = "\n".join(part.strip() for part in parts).replace(tables.GAP, " ") + "\n"
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        AS_READ.write_text(text, encoding="utf-8")
    assert text.splitlines() == AS_READ.read_text(encoding="utf-8").splitlines()


def test_labels_keep_their_markup_and_foreign_names_are_text():
    page = tables.as_html(pd.DataFrame({"method": [tables.label("r_ill_only"), tables.label("<b>x")]}))
    assert "R<sub>ill</sub>" in page
    assert "&lt;b&gt;x" in page
    assert deep_comparison.net_label("<b>") == "&lt;b&gt;"


def test_the_terminal_s_verdict_is_that_of_the_tables():
    summary = golden("digits/summary")
    rows = {(row["method"], row["convention"]): row for row in verdict_rows(summary)}
    unit = summary[summary["theta_scale"] == "unit"]
    assert [row["RIR"] for row in rows.values()] == unit["rir_mean"].tolist()
    assert [row["immunized"][:3] == "yes" for row in rows.values()] == (unit["success_rate"] == 1).tolist()
    assert rows["max_rir", "ridge"]["immunized"] == "no, 0 of 2"  # although its RIR is the largest
    front = rows["pareto", "compact"]
    assert (front["immunized"], front["benign probe"] > 1e4) == ("yes, 2 of 2, benign task lost in 2", True)
    assert verdict_rows(golden("corrections/corrections")) == []
