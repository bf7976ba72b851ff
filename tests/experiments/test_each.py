"""What holds of every experiment: a run, one control alone, and lost cells have a page; what is refused."""

import json

import pytest

from condnum.errors import CondnumError
from condnum.experiments import (
    attackers,
    corrections,
    deep,
    deep_attackers,
    erasure,
    frame,
    house_prices,
    limits,
    mnist,
)
from condnum.page.tables import written

from .conftest import SMALL, finished, run

ALONE = [
    (experiment, {"methods": method, "seeds": 1})
    for experiment, methods in (
        (house_prices, ("identity", "initial", "erase")),
        (mnist, ("identity",)),
        (limits, ("identity", "erase")),
    )
    for method in methods
]
ALONE += [(attackers, {"methods": "identity"}), (attackers, {"methods": "erase"})]
ALONE += [(house_prices, {"full": False}), (erasure, {"data": "wine", "seeds": 1})]


def label(value):
    return frame.name_of(value) if hasattr(value, "compute") else str(value)


def has_a_page(found):
    """A table for people, a sentence that knows what it says, a figure, and what a notebook shows of it."""
    assert found.sentence.endswith(".")
    assert "nan" not in found.sentence
    assert len(written(found.table)) == len(found.table)
    found.experiment.figure(found)
    assert json.dumps(found._repr_mimebundle_())


@pytest.mark.parametrize("experiment", SMALL, ids=frame.name_of)
def test_a_run_has_a_page(experiment):
    assert finished(experiment).failures.empty
    has_a_page(finished(experiment))


@pytest.mark.parametrize(("experiment", "changes"), ALONE, ids=label)
def test_one_control_alone_has_a_page(experiment, changes):
    has_a_page(run(experiment, **changes))


@pytest.mark.parametrize(
    ("experiment", "column", "value"),
    [
        (house_prices, "method", "ours"),
        (mnist, "benign", 9),
        (attackers, "method", "raw"),
        (attackers, "attacker", "cg"),
        (erasure, "erased", erasure.RAW),
        (erasure, "erased", erasure.ERASED),
        (erasure, "erased", erasure.CONTROL),
        (corrections, "claim", "identity"),
    ],
    ids=label,
)
def test_cells_that_failed_leave_a_page(experiment, column, value):
    found = finished(experiment)
    of = found.rows[column] != value
    arrays = [arrays for arrays, kept in zip(found.arrays, of, strict=True) if kept]
    left = frame.Run(
        experiment, found.name, found.rows[of].reset_index(drop=True), arrays, found.failures, found.record
    )
    has_a_page(left)
    assert "not known" in left.sentence or experiment is not erasure


@pytest.mark.parametrize(
    ("experiment", "changes", "words"),
    [
        (mnist, {"methods": "nowhere.py"}, "nowhere.py does not exist"),
        (house_prices, {"data": "nowhere"}, "got 'nowhere'"),
        (house_prices, {"methods": "oors"}, "did you mean 'ours'"),
        (house_prices, {"seeds": 0}, "seeds must be an integer ≥ 1"),
        (mnist, {"pairs": "4-4"}, "pair '4-4': give two different digits"),
        (mnist, {"labels": "rest"}, "unknown labels 'rest'"),
        (limits, {"pairs": "4-7"}, "pairs '4-7' are pairs of digits, but embedded is a single pair"),
        (attackers, {"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        (attackers, {"attackers": "gdd"}, "unknown attacker 'gdd'; did you mean 'gd'"),
        (erasure, {"data": "wines"}, "unknown pair of tasks 'wines'; did you mean 'wine'"),
        (deep, {"preset": "resnet18-car"}, "did you mean 'resnet18-cars'"),
        (deep, {"weights": "nowhere.pt"}, "nowhere.pt: there is no such file"),
        (deep, {"group_size": 2000}, "D_P without what is held out has .* fewer than one group of 2000"),
        (deep_attackers, {"attackers": "lora-adam", "full": True}, "unknown deep attacker 'lora-adam'"),
        (deep_attackers, {"models": "nowhere"}, "nowhere has no theta_0.safetensors with"),
    ],
    ids=label,
)
def test_what_cannot_run_is_refused_before_anything_is_computed(experiment, changes, words):
    with pytest.raises(CondnumError, match=words):
        experiment.cells(**SMALL[experiment] | changes)
