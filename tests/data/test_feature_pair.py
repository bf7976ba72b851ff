"""Two tables as one pair: matched columns, dropped rows, warnings."""

import numpy as np
import pytest

from condnum.data.feature_pair import match_tables
from condnum.data.feature_table import FeatureTable
from condnum.errors import InvalidInputError

RNG = np.random.default_rng(0)


def table(X, names=None, eps=2.0**-52):
    X = np.asarray(X, dtype=float)
    columns = tuple(names) if names else tuple(f"x{i}" for i in range(X.shape[1]))
    return FeatureTable(X, columns, names is not None, eps, "memory")


def test_a_clean_pair_is_left_as_it_is():
    P, H = RNG.normal(size=(9, 3)), RNG.normal(size=(8, 3))
    pair = match_tables(table(P), table(H, eps=2.0**-23))
    np.testing.assert_array_equal(pair.X_P, P)
    np.testing.assert_array_equal(pair.X_H, H)
    assert (pair.warnings, pair.dimension, pair.stored_eps) == ((), 3, 2.0**-23)


def test_names_decide_the_order_and_what_is_left_out():
    P, H = RNG.normal(size=(9, 3)), RNG.normal(size=(8, 3))
    pair = match_tables(table(P, "abc"), table(H, "cad"))
    assert pair.columns == ("a", "c")
    np.testing.assert_array_equal(pair.X_H, H[:, [1, 0]])
    assert pair.warnings == (
        "Different columns: 1 that only X_P has left out (b).",
        "Different columns: 1 that only X_H has left out (d).",
    )


def test_one_file_with_names_is_matched_by_position():
    pair = match_tables(table(RNG.normal(size=(4, 2)), "ab"), table(RNG.normal(size=(4, 2))))
    assert pair.columns == ("a", "b")
    assert "by position" in pair.warnings[0]


def test_rows_with_gaps_constant_columns_and_few_rows_are_told():
    P = RNG.normal(size=(5, 3))
    P[1:3, 0] = np.nan
    P[:, 2] = 7
    pair = match_tables(table(P), table(RNG.normal(size=(2, 3))))
    assert pair.X_P.shape == (3, 3)
    assert np.isfinite(pair.X_P).all()
    assert pair.warnings[0] == "X_P: 2 of 5 rows have missing entries and are left out."
    assert "X_P: 1 constant column(s) (x2)" in pair.warnings[1]
    assert "X_H has fewer rows than columns (N = 2 < D = 3)" in pair.warnings[2]
    assert len(pair.warnings) == 3


@pytest.mark.parametrize(
    ("P", "H", "message"),
    [
        (table(np.ones((3, 2))), table(np.ones((3, 4))), "2 columns and X_H has 4"),
        (table(np.ones((3, 2)), "ab"), table(np.ones((3, 2)), "cd"), "no column in common"),
        (table(np.ones((3, 2)), "aa"), table(np.ones((3, 2)), "ab"), "'a' twice"),
        (table([[1, np.nan], [2, 3]]), table(np.ones((3, 2))), r"X_P has 1 row\(s\) without missing"),
    ],
    ids=["widths", "nothing-in-common", "name-twice", "no-complete-rows"],
)
def test_pairs_that_cannot_be_matched(P, H, message):
    with pytest.raises(InvalidInputError, match=message):
        match_tables(P, H)
