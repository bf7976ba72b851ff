"""Images of digits and pairs of them; what scikit-learn carries."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits

from condnum.data import Digits, Provenance, digit_pair, load_diabetes_tasks, load_small_digits
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError

ORIGIN = Provenance("embedded", "here", "toy", "", "", "", False, options={"split": "train"})


def make(labels, images=None):
    """1×2 images; image i holds the grey values (i, 0)."""
    labels = np.array(labels, dtype=np.uint8)
    if images is None:
        images = np.zeros((len(labels), 1, 2), dtype=np.uint8)
        images[:, 0, 0] = np.arange(len(labels))
    return Digits(images, labels, "toy", "ab" * 32, 100.0, 0.5, 0.25, ORIGIN)


@pytest.fixture
def digits():
    # positions of 3: 0 2 4 6; of 8: 1 5 7; of others: 3 8 9
    return make([3, 8, 3, 1, 3, 8, 3, 8, 1, 0])


def grey(X):
    """Undo (x/100 − 1/2)/(1/4) on the first pixel: the position of each image."""
    return np.round((X[:, 0] * 0.25 + 0.5) * 100).astype(int).tolist()


def test_pixels_by_hand_of_copies_that_cannot_be_written():
    images = np.array([[[2, 0]], [[1, 0]]], dtype=np.uint8)
    digits = make([1, 2], images)
    images[0] = 9
    assert digits.pixels(np.array([0])).tolist() == [[(0.02 - 0.5) / 0.25, -2.0]]
    assert digits.feature_names == ("r0c0", "r0c1")
    with pytest.raises(ValueError, match="read-only"):
        digits.labels[0] = 3


@pytest.mark.parametrize(("p", "h"), [(3, 8), (8, 3)])
def test_pair_is_cut_to_the_smaller_count_in_file_order(digits, p, h):
    pair = digit_pair(digits, p, h, labels="published")
    places = {3: [0, 2, 4], 8: [1, 5, 7]}
    assert (grey(pair.X_P), grey(pair.X_H)) == (places[p], places[h])
    assert (pair.pretrain_name, pair.harmful_name) == (f"digit {p}", f"digit {h}")
    assert (pair.y_P.tolist(), pair.y_H.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert pair.loss_sample[0] is pair.X_P
    assert pair.checksum == digits.checksum


def test_one_vs_rest_is_balanced_and_takes_turns(digits):
    pair = digit_pair(digits, 3, 8)
    for (X, y), digit, own in ((pair.loss_sample, 3, [0, 2, 4]), (pair.probe_sample, 8, [1, 5, 7])):
        assert y.tolist() == [1, 0, 1, 0, 1, 0]
        assert grey(X[y == 1]) == own
        rest = grey(X[y == 0])
        assert len(set(rest)) == 3
        assert all(digits.labels[i] != digit for i in rest)
    alone = digit_pair(make([3, 3, 3, 3, 8, 8, 8]), 3, 8)  # the other digit alone is rest enough
    assert sorted(grey(alone.loss_sample[0])) == [0, 1, 2, 4, 5, 6]
    few = digit_pair(digits, 3, 8, rows=2)
    assert (grey(few.X_P), few.loss_sample[0].shape) == ([0, 2], (4, 2))
    assert few.provenance.options == {
        "split": "train", "pretrain": 3, "harmful": 8, "labels": "one_vs_rest", "seed": 0, "rows": 2,
    }  # fmt: skip


def test_seed_draws_the_rest_only_by_a_generator_of_its_own(digits):
    before = np.random.get_state()[1].copy()  # ruff: ignore[numpy-legacy-random]
    draws = {tuple(grey(digit_pair(digits, 3, 8, seed=s).loss_sample[0])) for s in [*range(8), *range(8)]}
    assert 1 < len(draws) <= 8
    assert len({d[::2] for d in draws}) == 1
    assert np.array_equal(before, np.random.get_state()[1])  # ruff: ignore[numpy-legacy-random]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, 3), {}, "must differ, got 3 for both"),
        ((10, 3), {}, "pretrain must be a digit 0 to 9, got 10"),
        ((3, "8"), {}, "harmful must be a digit 0 to 9, got '8'"),
        ((True, 3), {}, "pretrain must be a digit 0 to 9, got True"),
        ((3, 9), {}, r"toy has 4 image\(s\) of 3 and 0 of 9; each digit needs 2 or more"),
        ((3, 8), {"rows": 1}, "rows must be an integer"),
        ((3, 8), {"labels": "publishd"}, "unknown labels 'publishd'; did you mean 'published'"),
    ],
)
def test_pairs_that_are_refused(digits, arguments, options, message):
    with pytest.raises(InvalidInputError, match=message):
        digit_pair(digits, *arguments, **options)


@pytest.mark.parametrize(
    ("labels", "images", "message"),
    [
        ([1, 12, 11], None, r"labels must be 0 to 9; 2 are not, the first at index 1: 12"),
        ([1, 2], np.zeros((3, 1, 2)), r"got \(3, 1, 2\) and \(2,\)"),
        ([1, 2], np.zeros((2, 4)), r"images \(N, h, w\) .* got \(2, 4\)"),
        ([], np.zeros((0, 1, 2)), "N ≥ 1"),
        ([1], np.full((1, 1, 2), 101), "grey values must be at most 100, got 101"),
    ],
)
def test_digits_that_are_refused(labels, images, message):
    with pytest.raises(DataFormatError, match=message):
        make(labels, images)


def test_small_digits():
    digits = load_small_digits()
    assert np.array_equal(digits.images, load_digits().images)
    assert digits.counts == tuple(np.bincount(load_digits().target))
    pixels = digits.pixels()
    # One mean and one deviation for all pixels; sums of 115 008 terms.
    assert (pixels.mean(), pixels.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1, abs=1e-12))
    pair = digit_pair(digits, 0, 1)
    assert pair.title().startswith("digits-8x8, embedded: 178 rows D_P, 178 rows D_H, D = 64")


@pytest.mark.parametrize(("features", "dimension"), [("clean", 8), ("published", 9)])
def test_diabetes(features, dimension):
    pair, raw = load_diabetes_tasks(features=features), load_diabetes(scaled=False)
    assert (pair.rows_pretrain, pair.rows_harmful, pair.dimension) == (235, 207, dimension)
    assert "bmi" not in pair.feature_names
    assert ("sex" in pair.feature_names) == (features == "published")
    for X, code in ((pair.X_P, 1), (pair.X_H, 2)):
        sigma = np.linalg.eigvalsh(X.T @ X)
        assert (sigma > dimension * np.finfo(float).eps * sigma[-1]).sum() == 8
        rows = raw.data[:, 1] == code
        y, target = (pair.y_P, raw.data[rows, 2]) if code == 1 else (pair.y_H, raw.target[rows])
        assert np.corrcoef(y, target)[0, 1] == pytest.approx(1)
        age = X[:, pair.feature_names.index("age")]
        assert np.corrcoef(age, raw.data[rows, 0])[0, 1] == pytest.approx(1)
        if features == "published":  # the split column is exactly zero
            assert not X[:, pair.feature_names.index("sex")].any()
    with pytest.raises(UnknownNameError, match="unknown feature set 'all'"):
        load_diabetes_tasks(features="all")
