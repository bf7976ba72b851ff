"""Tables for people: how values are written, and that each table says what its columns hold."""

from pathlib import Path

import pandas as pd
from condnum.studies.frame.record import verdict_rows

from condnum.page import deep, tables

REPORTS = Path(__file__).parents[2] / "reports"


def committed(name, **columns):
    return pd.read_csv(REPORTS / f"{name}.csv").assign(seconds=1.5, **columns)


def test_values_are_written_by_their_kind():
    values = ["r_ill_only", "<b>x", 1234, 0.5, float("inf"), True]
    assert [tables.cell(value) for value in values] == [
        "R<sub>ill</sub> only".replace(" ", tables.GAP), "&lt;b&gt;x", "1,234", "0.5", "∞", "yes"
    ]  # fmt: skip
    assert deep.net_label("<b>") == "&lt;b&gt;"
    page = tables.as_html(pd.DataFrame({"rank K_P": [tables.label("r_ill_only")]}))
    assert "rank K<sub>P</sub>" in page
    assert "R<sub>ill</sub>" in page


def test_the_note_says_whether_published_numbers_compare():
    assert "for orientation only" in deep.published_note(committed("deep/mnist/summary"))
    same = deep.published_note(committed("deep/mnist/summary").assign(published_same=True))
    assert "those of Table 3 for this backbone" in same


def test_the_terminal_s_verdict_is_that_of_the_tables():
    summary = committed("house_prices/summary")
    rows = {(row["method"], row["convention"]): row for row in verdict_rows(summary)}
    unit = summary[summary["theta_scale"] == "unit"]
    assert [row["RIR"] for row in rows.values()] == unit["rir_mean"].tolist()
    assert [row["immunized"][:3] == "yes" for row in rows.values()] == (unit["success_rate"] == 1).tolist()
    assert rows["max_rir", "ridge"]["immunized"].startswith("no")  # although its RIR is the largest
