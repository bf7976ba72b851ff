"""Plans: a key that sees all that a result depends on, and nothing else."""

import pickle

import numpy as np
import pytest

from condnum.errors import InvalidInputError
from condnum.studies.cell import CellPlan, DataReference

ARGUMENTS = {
    "experiment": "digit-pairs",
    "payload": {"method": "ours", "seed": 0, "digits": (3, 5)},
    "settings": {"steps": 9, "schedule": {"warm": True, "rates": [0.5, None]}},
    "data_checksum": "ab" * 32,
    "code_version": "1",
}


def plan(**changes):
    return CellPlan(**ARGUMENTS | changes)


def test_the_key_does_not_depend_on_the_order_of_names():
    payload = {"digits": [3, 5], "seed": 0, "method": "ours"}
    assert plan(payload=payload).key == plan().key
    assert plan(payload=payload) == plan()
    assert len({plan(), plan(payload=payload)}) == 1
    assert len(plan().key) == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"experiment": "house-prices"},
        {"payload": {"method": "ours", "seed": 1, "digits": [3, 5]}},
        {"payload": {"method": "ours", "seed": 0, "digits": [5, 3]}},
        {"settings": {}},
        {"data_checksum": "cd" * 32},
        {"code_version": "2"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_the_key_sees_everything(changes):
    assert plan(**changes).key != plan().key
    assert plan(**changes) != plan()


def test_the_key_is_the_same_in_every_version():
    simple = CellPlan("e", {"x": 1}, {}, "", "1")
    assert simple.key == "bfd481eba1587e58d108ee87ca0c654d667580cf5cd5a1a5d26c8c9e7c99bbb6"


def test_the_key_does_not_see_where_the_data_lie():
    here, there = (DataReference("mnist", source, "ab" * 32) for source in ("/data", "/scratch"))
    assert plan(data=here) == plan(data=there) == plan()


def test_a_plan_does_not_change_with_its_arguments():
    payload = {"seed": 0, "digits": [3, 5]}
    made = plan(payload=payload)
    before = made.key
    payload["digits"].append(7)
    payload["seed"] = 1
    assert made.key == before
    assert made.payload == {"seed": 0, "digits": [3, 5]}


def test_a_plan_survives_pickle():
    made = plan(data=DataReference("mnist", "auto", "ab" * 32))
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert copy.data == made.data


def test_label():
    assert plan().label == "digit-pairs: method=ours, seed=0, digits=[3, 5]"
    assert plan(payload={}).label == "digit-pairs"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"payload": {"seed": np.int64(3)}}, r"payload\['seed'\] of a cell is .*use text, finite numbers"),
        ({"settings": {"rate": float("inf")}}, r"settings\['rate'\] of a cell is inf"),
        ({"settings": {"deep": [{"x": {1, 2}}]}}, r"settings\['deep'\]"),
        ({"payload": {3: 5}}, "text for keys, got 3"),
        ({"payload": [3, 5]}, r"dictionary, got \[3, 5\]"),
        ({"code_version": 1}, "code_version of a cell must be text, got 1"),
        ({"data": DataReference("mnist", "auto", "cd" * 32)}, "data_checksum 'abab.* 'cdcd"),
    ],
    ids=["numpy", "infinite", "set", "key", "list", "version", "checksum"],
)
def test_what_json_does_not_hold_is_refused(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        plan(**changes)
