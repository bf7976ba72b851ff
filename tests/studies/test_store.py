"""The store: what is finished stays, what is damaged is not finished, one writer at a time."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError, OutputError
from condnum.studies.frame import ResultStore


@pytest.fixture
def filled(tmp_path):
    """A closed store with two finished cells, one of them with arrays, and one that failed."""
    with ResultStore(tmp_path / "cells") as store:
        store.put("a", {"kappa": 2.5, "name": "α", "none": None, "flag": np.bool_(1), "n": np.int64(3)})
        store.put("b", {"inf": np.inf}, {"history": np.arange(1000.0), "file": np.array(["x", "yz"])})
        store.fail("c", "ValueError: singular")
    return tmp_path / "cells"


def test_round_trip(filled):
    with ResultStore(filled) as store:
        assert store.get("a") == ({"kappa": 2.5, "name": "α", "none": None, "flag": True, "n": 3}, {})
        row, arrays = store.get("b")
        assert row == {"inf": np.inf}
        np.testing.assert_array_equal(arrays["history"], np.arange(1000.0))
        assert arrays["file"].tolist() == ["x", "yz"]
        assert store.get("c") is store.get("d") is None
    assert (filled / "c.failed").read_text() == "ValueError: singular"


def test_a_result_replaces_a_failure_and_an_older_result(filled):
    with ResultStore(filled) as store:
        store.put("c", {"kappa": 1})
        store.put("b", {"kappa": 4}, {"history": np.ones(3)})
        assert not list(filled.glob("*.failed"))
        assert store.get("b").arrays["history"].tolist() == [1, 1, 1]
        store.fail("b", "the model is gone")
        assert store.get("b") is None
        with pytest.raises(InvalidInputError, match="column 'history' of a cell is a list"):
            store.put("d", {"history": [1, 2]})


def test_no_pickle_is_loaded_and_leftovers_of_a_killed_writer_go(filled):
    np.savez(filled / "b.npz", history=np.array([{}], dtype=object))
    (leftover := filled / ".b-x1.npz").write_bytes(b"half")
    with ResultStore(filled) as store:
        assert store.get("b") is None
        assert not leftover.exists()


def test_a_second_writer_is_refused(tmp_path):
    folder = tmp_path / "cells"
    with ResultStore(folder) as store:
        store.put("a", {"x": 1})
        with pytest.raises(OutputError, match="another run is writing to"):
            ResultStore(folder)
        store.put("b", {"x": 2})
    with ResultStore(folder) as store:
        assert store.get("b").row == {"x": 2}
