"""Tables for people: how values are written."""

import pandas as pd

from condnum.page import tables


def test_values_are_written_by_their_kind():
    values = ["r_ill_only", "<b>x", 1234, 0.5, float("inf"), True]
    assert [tables.cell(value) for value in values] == [
        "R<sub>ill</sub> only".replace(" ", tables.GAP), "&lt;b&gt;x", "1,234", "0.5", "∞", "yes"
    ]  # fmt: skip
    page = tables.as_html(pd.DataFrame({"rank K_P": [tables.label("r_ill_only")]}))
    assert "rank K<sub>P</sub>" in page
    assert "R<sub>ill</sub>" in page


def test_a_table_of_numbers_is_written_for_a_page_and_for_a_terminal():
    row = {
        "method": "r_ill_only", "rir_mean": 70.04, "rir_std": float("nan"), "immunized_ridge": 7, "of": 10,
        "benign_loss": 1e-12, "kept_mean": 0.5, "kept_std": 0.25, "steps": float("inf"),
    }  # fmt: skip
    written = tables.written(pd.DataFrame([row]))
    shown = [cell.replace(tables.GAP, " ") for cell in written.iloc[0]]
    assert shown == ["R<sub>ill</sub> only", "70.04", "7 of 10", "0 %", "50 ± 25 %", "∞"]
    assert "<" not in tables.plain(written)
    assert tables.sortable(written).count("<th>") == 6
