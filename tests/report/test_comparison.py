"""Tables for people: every text by hand."""

import numpy as np
import pandas as pd
import pytest

from condnum.report import tables as comparison
from condnum.studies.measure import TABLE_1, summary_table


@pytest.fixture
def results():
    rows = []
    for method, seed, harmful, pretrain, success in (
        ("ours", 0, 10.0, 0.5, True),
        ("ours", 1, 30.0, 0.5, True),
        ("imma", 0, 8.0, 4.0, False),
        ("imma", 1, 8.0, 4.0, False),
    ):
        for convention, gauge in (("compact", "unit"), ("ridge", "unit"), ("ridge", "as_trained")):
            rows.append(
                {
                    "dataset": "toy",
                    "method": method,
                    "seed": seed,
                    "convention": convention,
                    "gauge": gauge,
                    "harmful_ratio": harmful,
                    "pretrain_ratio": pretrain,
                    "rir": harmful / pretrain,
                    "success": success,
                    "rank_pretrain": 3,
                    "rank_harmful": 3 + seed,
                    "rir_ceiling": np.inf if convention == "compact" else 900.0,
                    "rir_share": np.nan if convention == "compact" else 0.02,
                    "theta_condition": 2.0,
                    "loss_gap": 1e-15 if method == "ours" else 0.02,
                    "steps": 100,
                    "seconds": 0.5,
                    "stop_reason": "closed_form",
                }
            )
    return pd.DataFrame(rows)


def plain(texts):
    return [text.replace("\u00a0", " ") for text in texts]


def test_obtained_stands_beside_published(results):
    summary = summary_table(results, TABLE_1)
    table = comparison.comparison_table(summary, convention="ridge", gauge="as_trained")
    assert plain(table["method"]) == ["Ours (Algorithm 1)", "IMMA"]
    assert plain(table["(i) ↑"]) == ["20 ± 14", "8 ± 0"]
    assert plain(table["(i) ↑ published"]) == ["18.92 ± 2.056", "7.053 ± 1.662"]
    assert plain(table["RIR ↑"]) == ["40 ± 28", "2 ± 0"]
    assert plain(table["immunized"]) == ["2 of 2", "0 of 2"]


def test_no_published_columns_without_published_numbers(results):
    table = comparison.comparison_table(summary_table(results, {}), convention="compact", gauge="unit")
    assert not [column for column in table.columns if "published" in column]


def test_a_single_seed_has_no_spread(results):
    summary = summary_table(results[results["seed"] == 0], {})
    table = comparison.comparison_table(summary, convention="compact", gauge="unit")
    assert table["RIR ↑"].tolist() == ["20", "2"]


def test_evidence(results):
    table = comparison.evidence_table(results)
    assert plain(table["rank H_H"]) == ["3 – 4", "3 – 4"]
    assert table["loss gap, clause (c)"].tolist() == ["0 (to round-off)", "0.02"]
    assert table["RIR ceiling"].tolist() == ["∞", "∞"]
    assert table["stopped by"].tolist() == ["closed form"] * 2


def test_the_share_of_the_ceiling_stands_beside_rir(results):
    summary = summary_table(results, {})
    ridge = comparison.comparison_table(summary, convention="ridge", gauge="unit")
    assert ridge["RIR ceiling"].tolist() == ["900", "900"]
    assert ridge["RIR / ceiling"].tolist() == ["0.02", "0.02"]
    compact = comparison.comparison_table(summary, convention="compact", gauge="unit")
    assert compact["RIR / ceiling"].tolist() == ["—", "—"]


def test_verdict_names_what_fails(results):
    text = plain([comparison.verdict(summary_table(results, {}))])[0]
    assert "no upper limit (ridge, ε = 1e-6: at most 900)" in text
    assert "<b>Ours (Algorithm 1)</b>: compact: immunized in all 2 seeds (mean RIR 40)" in text
    assert "<b>IMMA</b>: compact: immunized in 0 of 2 seeds, on average (ii) = 4 is above 1" in text


def test_verdict_states_a_finite_ceiling(results):
    results["rir_ceiling"] = 12.5
    assert "above 12.5 (compact) or 12.5 (ridge" in comparison.verdict(summary_table(results, {}))


def test_probe_table():
    curves = pd.DataFrame(
        {
            "method": "ours",
            "seed": [0, 0, 0, 1, 1, 1] * 2,
            "task": ["pretrain"] * 6 + ["harmful"] * 6,
            "quantity": "norm_ratio",
            "x": [0.0, 10, 20] * 4,
            "value": [1, 1e-7, 1e-9, 1, 1e-2, 1e-8, 1, 0.5, 0.25, 1, 0.9, 1e-7],
        }
    )
    (row,) = comparison.probe_table(curves).to_dict("records")
    assert plain(row.values()) == [
        "Ours (Algorithm 1)",
        "1e-9 – 1e-8",
        "10 – 20",
        "1e-7 – 0.25",
        "20 (1 of 2 seeds: > 20)",
    ]


def test_html_keeps_labels_markup_and_escapes_foreign_names():
    frame = pd.DataFrame({"method": [comparison._label("r_ill_only"), comparison._label("<b>x")]})
    page = comparison.as_html(frame)
    assert "R<sub>ill</sub>" in page
    assert "&lt;b&gt;x" in page
