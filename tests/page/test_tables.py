"""Tables for people: how values are written, and that each table says what its columns hold."""

from pathlib import Path

import pandas as pd
import pytest

from condnum.page import linear, tables
from condnum.studies.frame.record import verdict_rows
from condnum.studies.measure import TABLE_1

REPORTS = Path(__file__).parents[2] / "reports"


def committed(name, **columns):
    return pd.read_csv(REPORTS / f"{name}.csv").assign(seconds=1.5, **columns)


def row(table, **values):
    """Return the one row with these values, without markup and unbreakable spaces."""
    for name, value in values.items():
        table = table[table[name].str.replace(tables.GAP, " ").str.contains(value, regex=False)]
    (found,) = table.to_dict("records")
    return {name: text.replace(tables.GAP, " ") for name, text in found.items()}


def test_values_are_written_by_their_kind():
    values = ["r_ill_only", "<b>x", 1234, 0.5, float("inf"), True]
    assert [tables.cell(value) for value in values] == [
        "R<sub>ill</sub> only".replace(" ", tables.GAP), "&lt;b&gt;x", "1,234", "0.5", "∞", "yes"
    ]  # fmt: skip
    page = tables.as_html(pd.DataFrame({"rank K_P": [tables.label("r_ill_only")]}))
    assert "rank K<sub>P</sub>" in page
    assert "R<sub>ill</sub>" in page
    groups = pd.DataFrame({"g": [0, 0, 1], "steps": [5, 7, 3], "stop_reason": ["a_b", "c", "c"]})
    shown = tables.spans(groups, ["g"], {"steps": "steps", "stopped by": "stop_reason"})
    assert shown.replace(tables.GAP, " ", regex=True).values.tolist() == [["5 – 7", "a b, c"], ["3", "c"]]


def test_the_published_number_stands_below_the_obtained_one():
    summary = committed("house_prices/summary")
    summary["published_rir"] = [getattr(TABLE_1.get(m), "rir", float("nan")) for m in summary["method"]]
    table = linear.comparison_table(summary)
    table = table[table["κ"] == "ridge, θ as trained"]
    own = summary.query("method == 'opt_kappa' and convention == 'ridge' and theta_scale == 'as_trained'")
    cell = row(table, method="Opt κ")["RIR ↑<br><small>(published)</small>"]
    assert cell.startswith(f"{tables.number(own['rir_mean'].item())} ±")
    assert f"({tables.number(TABLE_1['opt_kappa'].rir)}" in cell


@pytest.mark.parametrize(
    ("table", "where", "column", "text"),
    [
        (linear.linear_evidence_table(committed("house_prices/results")), {"method": "IMMA"}, "stopped by",
         "steps"),
        (linear.null_table(committed("limits/house_prices/null_spaces")), {}, "D", "79"),
    ],
)  # fmt: skip
def test_each_table_has_its_columns(table, where, column, text):
    assert text in row(table, **where)[column]


def test_the_note_says_whether_published_numbers_compare():
    summary = committed("limits/house_prices/summary").iloc[:2]
    summary = summary.assign(immunized=2, seeds=2, rir_share=0.1, rir_share_max=0.2)
    shares = linear.limits_table(summary.assign(rir_share_min=[0.05, 0.1]))
    assert shares.iloc[0, -1].startswith("0.1 (0.05 – 0.2)")


def test_the_terminal_s_verdict_is_that_of_the_tables():
    summary = committed("house_prices/summary")
    rows = {(row["method"], row["convention"]): row for row in verdict_rows(summary)}
    unit = summary[summary["theta_scale"] == "unit"]
    assert [row["RIR"] for row in rows.values()] == unit["rir_mean"].tolist()
    assert [row["immunized"][:3] == "yes" for row in rows.values()] == (unit["success_rate"] == 1).tolist()
    assert rows["max_rir", "ridge"]["immunized"].startswith("no")  # although its RIR is the largest
