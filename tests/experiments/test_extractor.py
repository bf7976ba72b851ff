"""Extractors: what a store gives back is what was trained, digit for digit."""

import numpy as np

from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.measure import Extractor
from condnum.studies.store import ResultStore


def test_through_a_store_and_back(tmp_path):
    rng = np.random.default_rng(0)
    problem = ImmunizationProblem.from_data(*(rng.normal(size=shape) for shape in ((9, 3), 9, (8, 3), 8)))
    result = immunize(problem, "ours", seed=3, steps=4)
    made = Extractor.of(result)
    np.testing.assert_array_equal(made.theta, result.theta)
    with ResultStore(tmp_path) as store:
        store.put("a", *made.to_cell())
        read = Extractor.from_cell(*store.get("a"))
    assert (read.method, read.seed, read.steps, read.stop_reason) == ("ours", 3, 4, "steps")
    assert read.seconds == made.seconds
    np.testing.assert_array_equal(read.theta, made.theta)
    assert list(read.history) == list(made.history)
    for name, column in made.history.items():
        np.testing.assert_array_equal(read.history[name], column)
