"""The linear experiment on tasks of one's own."""

import numpy as np
import pandas as pd
import pytest

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import DescentSettings
from condnum.studies import house_prices
from condnum.studies.house_prices import HousePricesConfig
from condnum.studies.pair_study import compare_methods


@pytest.fixture(scope="module")
def pair() -> TaskPair:
    rng = np.random.default_rng(0)
    X_P, X_H = rng.normal(size=(50, 4)), rng.normal(size=(40, 4)) * [3, 1, 1, 0.2]
    return TaskPair.from_arrays(X_P, X_P[:, 0], X_H, X_H @ [1, 2, 3, 4], name="toy")


def test_arrays_become_a_pair_with_a_checksum_of_their_values(pair):
    again = TaskPair.from_arrays(pair.X_P, pair.y_P, pair.X_H, pair.y_H)
    assert again.checksum == pair.checksum
    assert len(pair.checksum) == 64
    other = TaskPair.from_arrays(pair.X_P + 1e-12, pair.y_P, pair.X_H, pair.y_H)
    assert other.checksum != pair.checksum
    assert pair.feature_names == ("x1", "x2", "x3", "x4")
    assert pair.title().startswith("toy, given arrays: 50 rows D_P, 40 rows D_H, D = 4")


@pytest.mark.parametrize(
    ("X_P", "text"),
    [
        ([1.0, 2.0], r"X_P must be \(N, D\)"),
        ([[np.nan, 1.0], [1.0, 0.0]], "non-finite"),
        ("abc", "real numbers"),
    ],
    ids=["vector", "nan", "words"],
)
def test_arrays_that_are_no_tasks(X_P, text):
    with pytest.raises(InvalidInputError, match=text):
        TaskPair.from_arrays(X_P, [1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])


def test_methods_seeds_and_tables(pair, tmp_path):
    settings = {"ours": DescentSettings(steps=20, learning_rate=0.05)}
    study = compare_methods(pair, ["ours", "identity", "optimal"], seeds=2, settings=settings)
    assert study.explanations == []
    assert [(e.method, e.seed) for e in study.extractors] == [
        ("ours", 0), ("ours", 1), ("identity", 0), ("optimal", 0),
    ]  # fmt: skip
    assert study.extractors[0].steps == 20
    optimal = study.results.query("method == 'optimal' and convention == 'compact'")
    assert optimal["rir_share"].item() == pytest.approx(1, rel=1e-9)  # θ* attains the ceiling
    assert study.summary["published_rir"].isna().all()
    assert study.save(tmp_path) == ["results.csv", "summary.csv", "curves.parquet"]
    assert set(pd.read_parquet(tmp_path / "curves.parquet")["quantity"]) >= {"norm_ratio", "spectrum"}


def test_the_same_numbers_as_the_house_price_experiment():
    config = HousePricesConfig("embedded", ("ours",), seeds=1, epochs=30)
    run = house_prices.run(config)
    study = compare_methods(
        load_diabetes_tasks(features=config.features),
        ["ours"],
        seeds=1,
        settings={"ours": config.settings("ours")},
    )
    columns = ["harmful_ratio", "pretrain_ratio", "rir"]
    np.testing.assert_allclose(study.results[columns], run.results[columns], rtol=1e-9)


def test_nothing_to_compare(pair):
    with pytest.raises(InvalidInputError, match="at least one seed"):
        compare_methods(pair, ["ours"], seeds=0)
    with pytest.raises(InvalidInputError, match="one method"):
        compare_methods(pair, [])
    with pytest.raises(UnknownNameError, match="did you mean 'ours'"):
        compare_methods(pair, ["our"])


def test_ours_tunes_itself_and_says_what_came_of_it(pair):
    study = compare_methods(pair, ["ours", "front"], seeds=1)
    assert len(study.explanations) == 1
    assert study.explanations[0].startswith("ours, seed 0: Definition 3.1 is ")
    compact = study.results.query("convention == 'compact'").set_index("method")
    assert compact["success"].tolist() == [True, True]
