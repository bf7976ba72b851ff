"""Words of the reproduction audit: they follow the numbers."""

import numpy as np
import pandas as pd
import pytest

from condnum.report.release import (
    audit_words,
    detail_table,
    effect_table,
    landing_words,
    stage_table,
    switch_table,
)
from condnum.studies.release_cells import AuditData


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


def effect(changes, **options):
    return effect_table(waterfall(changes, **options), 10)["in words"].tolist()


@pytest.mark.parametrize(
    ("floor", "compact", "words"),
    [
        (1.0, 1.0, "raises RIR in both conventions"),
        (-1.0, 0.5, "lowers RIR at the floor, raises compact RIR"),
        (0.0, 0.0, "changes nothing on these data"),
        (0.005, -1.0, "no clear change of RIR at the floor, lowers compact RIR"),
    ],
)
def test_an_effect_is_said_as_it_is(floor, compact, words):
    assert effect({"rows": {"ridge": floor, "compact": compact}}) == [words]


def test_an_effect_within_the_spread_is_none():
    assert effect({"rows": {"ridge": 0.3, "compact": 0.3}}, spread=0.4) == [
        "no clear change of RIR in either convention"
    ]


def test_a_switch_that_does_the_opposite_alone_is_named():
    (words,) = effect({"rows": {"ridge": 1.0, "compact": 1.0}}, alone={"rows": -1.0})
    assert words.endswith("alone it lowers it at the floor")


def test_the_largest_steps_and_the_disagreements_are_named():
    changes = {"rows": {"ridge": 2.0, "compact": -1.0}, "bias": {"ridge": -0.5, "compact": 0.2}}
    words = audit_words(waterfall(changes), 10)
    assert "most in turn is “rows” (× 100 " in words
    assert "lowers it most “bias of the extractor” (× 0.32 " in words
    assert (
        "opposite directions at 2 of 2 switches, each beyond its spread over seeds: "
        "rows, bias of the extractor" in words
    )
    assert "released 0 of 5, 0 of 5; corrected 2 of 5, 2 of 5" in words


def test_both_protocols_are_compared_at_equal_updates():
    changes = {"rows": {"ridge": 1.0, "compact": 0.0}, "epochs": {"ridge": 2.0, "compact": 1.0}}
    words = audit_words(waterfall(changes), 10)
    assert "40, RIR is 1,000 as released and 1,000 corrected (floor), 10 as released and 10" in words
    assert "same number of updates" not in audit_words(waterfall({"rows": changes["rows"]}), 10)


def test_no_disagreement_is_made_up():
    assert "opposite" not in audit_words(waterfall({"rows": {"ridge": 2.0, "compact": 1.0}}), 10)
    unclear = waterfall({"rows": {"ridge": 2.0, "compact": -1.0}}, spread=1.5)
    assert "opposite" not in audit_words(unclear, 10)


@pytest.mark.parametrize(("mean", "says"), [(2.0, ""), (0.9, "10% below it"), (4.4, "10% above it")])
def test_a_range_that_is_missed_is_said_to_be(mean, says):
    row = {
        "epochs": 10, "updates": 40, "seeds": 5, "rir_mean": mean, "rir_min": mean, "rir_max": mean,
        "reported_min": 1.0, "reported_max": 4.0, "inside": 0, "miss": mean / np.clip(mean, 1.0, 4.0),
    }  # fmt: skip
    words = landing_words(pd.DataFrame([row]))
    assert says in words
    assert ("the mean is" in words) == bool(says)
    assert landing_words(pd.DataFrame([row | {"reported_min": np.nan}])) == ""


@pytest.mark.parametrize("data", ["house-prices", "embedded", "mnist:4-7"])
def test_every_switch_is_explained(data):
    switches = AuditData.parse(data).switches
    table = switch_table(switches)
    assert len(table) == len(switches)
    assert (table.map(len) > 3).all().all()
    details = detail_table(switches)
    assert len(details) >= 5
    assert details.to_string().count("N − 1") == ("normalise" in switches)


def test_stages_in_numbers():
    table = stage_table(waterfall({"rows": {"ridge": 2.0, "compact": 1.0}}), 10, "cumulative")
    assert table["setting"].tolist() == ["released", "rows"]
    assert table["RIR, floor"].tolist() == ["1 (1 – 1)", "100 (100 – 100)"]
