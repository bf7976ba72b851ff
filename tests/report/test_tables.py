"""Tables and words for people: kept as read (`tables.txt`), and each sentence where the numbers demand it.

`CONDNUM_GOLDEN=record pytest tests/report/test_tables.py` writes `tables.txt` anew.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.report import deep_comparison, limits, release, tables
from condnum.studies.measure import TABLE_1
from condnum.studies.release_cells import AuditData

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
    yield tables.sensitivity_table(golden("digits/rtol_sensitivity"))
    yield tables.verdict(golden("digits/summary"))
    names = ("summary", "null_spaces", "overshoots")
    summary, spaces, overshoots = (golden(f"limits/{name}") for name in names)
    yield limits.words(summary, spaces, overshoots, RACE)
    yield limits.null_table(spaces)
    yield limits.summary_table(summary)
    yield limits.measured_table(golden("limits/results"), "compact", "unit")
    yield limits.overshoot_table(overshoots)
    yield limits.race_table(RACE)
    waterfall = golden("reproduction-audit/waterfall")
    yield release.landing_table(golden("reproduction-audit/landing"))
    yield release.audit_words(waterfall, 10)
    yield release.stage_table(waterfall, 10, "cumulative")
    yield release.effect_table(waterfall, 10)
    nets = golden("deep/summary")
    for convention in ("compact", "ridge"):
        yield deep_comparison.net_table(nets, convention=convention)
    yield deep_comparison.published_note(nets)
    yield deep_comparison.probe_table(nets)
    yield deep_comparison.net_verdict(nets)
    yield deep_comparison.evidence_table(golden("deep/results"))


NAMES = {"dataset": "toy", "pretrain_task": "digit 4", "harmful_task": "digit 7"}
RACE = pd.DataFrame(
    {**NAMES, "contestant": ["generalised eigenproblem", "Cholesky factor", "Algorithm 1"],
     "steps": [0, 0, 1000], "ridge": 0.1, "seconds": [0.25, 0.0125, 50.0],
     "times_faster": [200.0, 4000.0, 1.0], "rir": [500.0, 500.0, 5.0],
     "rir_ceiling": 500.0, "rir_share": [1.0, 1.0, 0.01], "pretrain_ratio": 0.1, "harmful_ratio": 5.0}
)  # fmt: skip


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


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"rir_ceiling": 12.5}, "above 12.5 (compact) or 12.5 (ridge"),
        ({"rir_ceiling": np.inf}, "no upper limit (ridge, ε = 1e-6: at most ∞)"),
        ({"success_rate": 1.0, "rir_mean": 40.0}, "compact: immunized in all 2 seeds (mean RIR 40)"),
        (
            {"success_rate": 0.5, "harmful_ratio_mean": 0.5, "pretrain_ratio_mean": 4.0},
            "immunized in 1 of 2 seeds, on average (i) = 0.5 is not above 1 and (ii) = 4 is above 1",
        ),
    ],
)
def test_a_verdict_names_what_fails(columns, words):
    assert words in tables.verdict(golden("house-prices/summary").assign(**columns))


def test_steps_to_a_small_norm_ratio():
    curves = pd.DataFrame(
        {
            "method": "ours", "seed": [0, 0, 0, 1, 1, 1] * 2, "task": ["pretrain"] * 6 + ["harmful"] * 6,
            "quantity": "norm_ratio", "x": [0.0, 10, 20] * 4,
            "value": [1, 1e-7, 1e-9, 1, 1e-2, 1e-8, 1, 0.5, 0.25, 1, 0.9, 1e-7],
        }
    )  # fmt: skip
    (row,) = tables.probe_table(curves).to_dict("records")
    assert [text.replace(tables.GAP, " ") for text in row.values()] == [
        "Ours (Algorithm 1)", "1e-9 – 1e-8", "10 – 20", "1e-7 – 0.25", "20 (1 of 2 seeds: > 20)",
    ]  # fmt: skip
    assert "> 20" in tables.probe_table(curves.assign(value=1.0)).iloc[0].tolist()


OURS = {
    "harmful_ratio_mean": 8.0, "pretrain_ratio_mean": 0.5, "rir_mean": 16.0, "accuracy_mean": 0.95,
    "probe_final_mean": 0.4, "success_rate": 1.0, "convex_mean": 0.94, "test_success_rate": 2 / 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "loses 4.0 points of D<sub>P</sub> test accuracy."),
        ({"accuracy_mean": 0.90}, "loses 9.0 points of D<sub>P</sub> test accuracy, more than the 5.9"),
        ({"accuracy_mean": 0.99}, "keeps D<sub>P</sub> test accuracy"),
        ({"accuracy_mean": 0.995}, "gains 0.5 points"),
        ({}, "(i) = 8, (ii) = 0.5, RIR 16 (± 0.46 over groups, 0.9 to 1.1 over draws of the groups)"),
        ({"success_rate": 1 / 3}, "immunized in 1 of 3 seeds"),
        ({"test_pretrain_ratio_mean": 1.2}, "immunized in 2 of 3 seeds, <b>(ii) is above 1</b>."),
        ({}, "reaches 90.0 % on θ<sub>0</sub> and is lowest on Ours\u00a0(Algorithm\u00a01), 40.0 %"),
        ({"probe_final_mean": 0.93}, "no method lowers what plain gradient descent reaches"),
        ({}, "94.0 %, 2.0 points below θ<sub>0</sub>'s: so much is lost information"),
        ({"convex_mean": 0.97}, "97.0 %, no less than on θ<sub>0</sub>: an informed attacker loses nothing"),
    ],
)
def test_words_on_a_net(values, words):
    summary = golden("deep/summary").iloc[[0, 1]].assign(
        seeds=3, accuracy_theta_0_mean=0.99, probe_final_mean=0.9, convex_mean=0.96,
        test_harmful_ratio_mean=4.0, test_pretrain_ratio_mean=1.0,
        rir_group_std_mean=0.456, rir_least_draw=0.9, rir_largest_draw=1.1, method=["initial", "ours"],
    )  # fmt: skip
    summary.loc[1, list(OURS | values)] = list((OURS | values).values())
    both = pd.concat([summary.assign(convention=name) for name in ("compact", "ridge")])
    assert words in deep_comparison.net_verdict(both)
    assert "Table 3 for this backbone" in deep_comparison.published_note(both.assign(published_same=True))


@pytest.mark.parametrize(
    ("worst", "said"),
    [(-0.2, "none of 90 extractors lies beyond it"), (1e-9, "round-off"), (0.03, "overshoots it by 3.0e-02")],
)
def test_words_on_limits(worst, said):
    summary = golden("limits/summary").iloc[:3].assign(
        method=["ours", "imma", "optimal"], rir_share=[0.1, 0.01, 0.9], immunized=[2, 0, 2], seeds=2
    )  # fmt: skip
    spaces = golden("limits/null_spaces").assign(harmful_only=3, harmful_energy=0.25)
    beyond = pd.DataFrame([{**NAMES, "kind": "random", "points": 90, "overshoot": worst, "largest_share": 1}])
    words = limits.words(summary, spaces, beyond, RACE[:0])
    assert said in words
    assert "Ours\u00a0(Algorithm\u00a01) comes closest, with 0.1 of the ceiling. Imm" in words  # not θ*
    assert "1 of 1 pair have no ceiling" in words
    assert "race" not in words
    table = limits.summary_table(
        summary.assign(rir_share_min=[0.05, 0.01, 0.9], rir_share_max=[0.2, 0.01, 0.9])
    )
    assert table["RIR / ceiling"].tolist() == ["0.1 (0.05 – 0.2)", "0.01", "0.9"]


def waterfall(changes, *, spread=0.01, alone=None):
    """A waterfall: change of log10 RIR by switch and convention."""
    rows = []
    for convention in ("ridge", "compact"):
        level = 0.0
        path = [("released", np.nan), *((name, both[convention]) for name, both in changes.items())]
        for index, (switch, change) in enumerate(path):
            level += np.nan_to_num(change)
            row = {
                "path": "cumulative", "start_epochs": 10, "index": index, "switch": switch, "updates": 40,
                "convention": convention, "seeds": 5, "rir": 10**level, "rir_min": 10**level,
                "rir_max": 10**level, "change": change, "change_std": spread, "factor": 10**change,
                "immunized": index,
            }  # fmt: skip
            rows.append(row)
            if index:
                own = change if alone is None else alone[switch]
                rows.append(row | {"path": "alone", "change": own, "factor": 10**own})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("floor", "compact", "options", "words"),
    [
        (1.0, 1.0, {}, "raises RIR in both conventions"),
        (-1.0, 0.5, {}, "lowers RIR at the floor, raises compact RIR"),
        (0.0, 0.0, {}, "changes nothing on these data"),
        (0.005, -1.0, {}, "no clear change of RIR at the floor, lowers compact RIR"),
        (0.3, 0.3, {"spread": 0.4}, "no clear change of RIR in either convention"),
        (
            1.0,
            1.0,
            {"alone": {"rows": -1.0}},
            "raises RIR in both conventions; alone it lowers it at the floor",
        ),
    ],
)
def test_an_effect_is_said_as_it_is(floor, compact, options, words):
    table = waterfall({"rows": {"ridge": floor, "compact": compact}}, **options)
    assert release.effect_table(table, 10)["in words"].tolist() == [words]


def test_words_on_the_release():
    changes = {"rows": {"ridge": 2.0, "compact": -1.0}, "epochs": {"ridge": -0.5, "compact": 0.2}}
    words = release.audit_words(waterfall(changes), 10)
    assert "most in turn is “rows” (× 100 " in words
    assert "lowers it most “number of updates” (× 0.32 " in words
    assert (
        "opposite directions at 2 of 2 switches, each beyond its spread over seeds: rows, number of" in words
    )
    assert "released 0 of 5, 0 of 5; corrected 2 of 5, 2 of 5" in words
    assert "40, RIR is 31.62 as released and 31.62 corrected (floor), 0.158 as released and 0.158" in words
    unclear = release.audit_words(waterfall({"rows": changes["rows"]}, spread=2.5), 10)
    assert "opposite" not in unclear
    assert "same number of updates" not in unclear


@pytest.mark.parametrize(("mean", "says"), [(2.0, ""), (0.9, "10% below it"), (4.4, "10% above it")])
def test_a_range_that_is_missed_is_said_to_be(mean, says):
    row = {
        "epochs": 10, "updates": 40, "seeds": 5, "rir_mean": mean, "rir_min": mean, "rir_max": mean,
        "reported_min": 1.0, "reported_max": 4.0, "inside": 0, "miss": mean / np.clip(mean, 1.0, 4.0),
    }  # fmt: skip
    words = release.landing_words(pd.DataFrame([row]))
    assert says in words
    assert ("the mean is" in words) == bool(says)
    assert release.landing_words(pd.DataFrame([row | {"reported_min": np.nan}])) == ""


@pytest.mark.parametrize("data", ["house-prices", "embedded", "mnist:4-7"])
def test_every_switch_is_explained(data):
    switches = AuditData.parse(data).switches
    assert (release.switch_table(switches).map(len) > 3).all().all()
    assert len(release.switch_table(switches)) == len(switches)
    assert release.detail_table(switches).to_string().count("N − 1") == ("normalise" in switches)
