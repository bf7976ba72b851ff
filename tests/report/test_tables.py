"""Tables and words for people, kept as read in `tables.txt`: of the golden tables, and of numbers that demand
each sentence. `CONDNUM_GOLDEN=record pytest tests/report/test_tables.py` writes it anew.
"""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.report import deep_comparison, limits, release, tables
from condnum.report.verdicts import COLUMNS, verdict_rows
from condnum.studies.deep_cells import Chance
from condnum.studies.measure import TABLE_1

GOLDEN = Path(__file__).parents[1] / "golden"
AS_READ = Path(__file__).with_name("tables.txt")


def golden(name, **columns):
    return pd.read_csv(GOLDEN / f"{name}.csv").assign(seconds=1.5, **columns)


def shown():
    """Yield the tables and words of every report on the golden tables."""
    linear = golden("house-prices/summary")
    for name in ("harmful_ratio", "pretrain_ratio", "rir", "rir_std"):
        linear[f"published_{name}"] = [getattr(TABLE_1.get(m), name, np.nan) for m in linear["method"]]
    for convention, gauge in (("ridge", "as_trained"), ("compact", "unit")):
        yield tables.comparison_table(linear, convention=convention, gauge=gauge)
    yield tables.verdict(linear)
    yield tables.evidence_table(golden("house-prices/results"))
    yield tables.sensitivity_table(golden("earlier/digits/rtol_sensitivity"))
    yield tables.verdict(golden("digits/summary"))
    yield limits.null_table(golden("limits/null_spaces"))
    yield limits.limits_table(golden("limits/summary"))
    yield limits.measured_table(golden("limits/results"), "compact", "unit")
    yield release.switch_table(golden("reproduction-audit/waterfall"))
    nets = golden("deep/summary")
    for convention in ("compact", "ridge"):
        yield deep_comparison.net_table(nets, convention=convention)
    yield deep_comparison.published_note(nets)
    yield deep_comparison.probe_table(nets)
    yield deep_comparison.net_verdict(nets, *CHANCES)
    yield deep_comparison.evidence_table(golden("deep/results"))
    yield from demanded()


def demanded():
    """Yield the sentences that the golden tables do not call for."""
    linear = golden("house-prices/summary")
    for columns in (
        {"rir_ceiling": 12.5, "success_rate": 1.0, "rir_mean": 40.0},
        {"rir_ceiling": np.inf, "success_rate": 0.5, "harmful_ratio_mean": 0.5, "pretrain_ratio_mean": 4.0},
    ):
        yield tables.verdict(linear[linear["method"] == "ours"].assign(**columns))
    yield tables.probe_table(NORM_RATIOS)
    yield tables.probe_table(NORM_RATIOS.assign(value=1.0))
    for values in (
        {},
        {"accuracy_mean": 0.90, "convex_mean": 0.97},
        {"accuracy_mean": 0.99, "success_rate": 1 / 3},
        {"accuracy_mean": 0.995, "probe_final_mean": 0.93},
        {"test_pretrain_ratio_mean": 1.2},
    ):
        yield deep_comparison.net_verdict(net(values), *CHANCES)
    yield deep_comparison.published_note(net({}).assign(published_same=True))
    summary = golden("limits/summary").iloc[:3].assign(
        method=["ours", "imma", "optimal"], rir_share=[0.1, 0.01, 0.9], immunized=[2, 0, 2], seeds=2
    )  # fmt: skip
    yield limits.limits_table(summary.assign(rir_share_min=[0.05, 0.01, 0.9], rir_share_max=[0.2, 0.01, 0.9]))


#: What guessing reaches on five classes.
CHANCES = Chance(0.2, 0.25), Chance(0.2, 0.25)

NORM_RATIOS = pd.DataFrame(
    {
        "method": "ours", "seed": [0, 0, 0, 1, 1, 1] * 2, "task": ["pretrain"] * 6 + ["harmful"] * 6,
        "quantity": "norm_ratio", "x": [0.0, 10, 20] * 4,
        "value": [1, 1e-7, 1e-9, 1, 1e-2, 1e-8, 1, 0.5, 0.25, 1, 0.9, 1e-7],
    }
)  # fmt: skip


def net(values):
    """A summary of one net: θ₀ and ours, in both conventions."""
    summary = golden("deep/summary").iloc[[0, 1]].assign(
        seeds=3, accuracy_theta_0_mean=0.99, probe_final_mean=0.9, convex_mean=0.96,
        test_harmful_ratio_mean=4.0, test_pretrain_ratio_mean=1.0,
        rir_group_std_mean=0.456, rir_least_draw=0.9, rir_largest_draw=1.1, method=["initial", "ours"],
    )  # fmt: skip
    ours = {
        "harmful_ratio_mean": 8.0, "pretrain_ratio_mean": 0.5, "rir_mean": 16.0, "accuracy_mean": 0.95,
        "probe_final_mean": 0.4, "success_rate": 1.0, "convex_mean": 0.94, "test_success_rate": 2 / 3,
    } | values  # fmt: skip
    summary.loc[1, list(ours)] = list(ours.values())
    return pd.concat([summary.assign(convention=name) for name in ("compact", "ridge")])


def test_every_table_reads_as_it_was_kept():
    parts = [part if isinstance(part, str) else part.to_csv(sep="\t", index=False) for part in shown()]
    text = "\n".join(part.strip() for part in parts).replace(tables.GAP, " ") + "\n"
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        AS_READ.write_text(text, encoding="utf-8")
    assert text.splitlines() == AS_READ.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("values", "said", "gone"),
    [
        ({"accuracy_theta_0_mean": 0.24}, "θ<sub>0</sub> does not solve D<sub>P</sub>", "immunized in"),
        ({"convex_mean": 0.25}, "θ<sub>0</sub> does not solve D<sub>H</sub>", "loses nothing"),
        ({"rir_group_std_mean": np.nan}, "RIR 16 (one group, 0.9 to", "±"),
    ],
)
def test_there_is_no_verdict_at_chance_and_no_spread_over_one_group(values, said, gone):
    both = net({"accuracy_mean": 0.95, "convex_mean": 0.97}).assign(test_rir_group_std_mean=np.nan)
    assert gone in deep_comparison.net_verdict(both, *CHANCES)
    words = deep_comparison.net_verdict(both.assign(**values), *CHANCES)
    assert said in words
    assert gone not in words
    assert ("by luck up to 25.0 %" in words) == ("rir" not in str(values))


def test_labels_keep_their_markup_and_foreign_names_are_text():
    page = tables.as_html(pd.DataFrame({"method": [tables.label("r_ill_only"), tables.label("<b>x")]}))
    assert "R<sub>ill</sub>" in page
    assert "&lt;b&gt;x" in page
    assert deep_comparison.net_label("<b>") == "&lt;b&gt;"


@pytest.mark.parametrize("convention", ["compact", "ridge"])
def test_the_verdict_comes_first_and_few_columns_follow(convention):
    summary = golden("house-prices/summary").assign(published_rir=2.0, published_rir_std=0.1)
    for table in (
        tables.comparison_table(summary, convention=convention, gauge="unit"),
        limits.measured_table(golden("limits/results"), convention, "unit"),
    ):
        assert [title.partition("<br>")[0] for title in table] == [
            "method", "immunized", "(i) ↑", "(ii) ↓", "RIR ↑", "RIR / ceiling",
        ]  # fmt: skip
    assert (
        list(deep_comparison.net_table(golden("deep/summary"), convention=convention))[2][:9] == "immunized"
    )


@given(st.floats(-1e-10, 1e-10), st.floats(2e-9, 1))
@settings(max_examples=20)
def test_round_off_of_1_is_not_above_1_and_more_is_shown(round_off, more):
    row = golden("house-prices/summary").query("method == 'identity'")
    assert "is above 1" not in tables.verdict(row.assign(pretrain_ratio_mean=1 + round_off))
    assert "(ii) = 1 is" not in tables.verdict(row.assign(pretrain_ratio_mean=1 + more))


def test_the_terminal_s_verdict_is_that_of_the_tables():
    rows = verdict_rows(GOLDEN / "digits")
    assert rows[0] == COLUMNS
    assert ("optimal", "ridge", "no, 0 of 2") in [row[:3] for row in rows]  # although its RIR is the largest
    summary = golden("digits/summary").query("gauge == 'unit'")
    assert [row[-1] for row in rows[1:]] == summary["rir_mean"].map(tables.number).tolist()
    assert [row[2].startswith("yes") for row in rows[1:]] == (summary["success_rate"] == 1).tolist()
    assert ("ours", "compact", "yes, 1 of 1") in [row[:3] for row in verdict_rows(GOLDEN / "attackers")]
    assert verdict_rows(GOLDEN / "corrections") == []


@pytest.mark.parametrize(
    ("kept", "verdict"), [(True, "yes"), (None, "not known (clause (c))"), (False, "no")]
)
def test_the_terminal_s_verdict_of_an_audit(kept, verdict, tmp_path):
    row = {"extractor": "theta", "baseline": "raw", "convention": "ridge", "gauge": "unit", "clause_a": True,
           "clause_b": True, "harmful_ratio": 2.5, "pretrain_ratio": None, "rir": "Infinity"}  # fmt: skip
    audit = {"measures": [row], "clause_c": {"theta": {"kept": kept}}}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    assert verdict_rows(tmp_path)[1:] == [("theta", "ridge", verdict, "2.5", "—", "∞")]
