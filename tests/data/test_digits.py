import numpy as np
import pytest

from condnum.data import Digits, Provenance, digit_pair
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError

ORIGIN = Provenance("embedded", "here", "toy", "", "", "", False, options={"split": "train"})


def make(labels, images=None, **changes):
    """1×2 images; image i holds the grey values (i, 0)."""
    labels = np.array(labels, dtype=np.uint8)
    if images is None:
        images = np.zeros((len(labels), 1, 2), dtype=np.uint8)
        images[:, 0, 0] = np.arange(len(labels))
    fields = {
        "name": "toy",
        "checksum": "ab" * 32,
        "pixel_max": 100.0,
        "mean": 0.5,
        "std": 0.25,
        "provenance": ORIGIN,
    }
    return Digits(images, labels, **{**fields, **changes})


@pytest.fixture
def digits():
    # positions of 3: 0 2 4 6; of 8: 1 5 7; of others: 3 8 9
    return make([3, 8, 3, 1, 3, 8, 3, 8, 1, 0])


def grey(X):
    """Undo (x/100 − 1/2)/(1/4) on the first pixel: the position of each image."""
    return np.round((X[:, 0] * 0.25 + 0.5) * 100).astype(int).tolist()


def test_pixels_by_hand(digits):
    assert digits.pixels(np.array([2])).tolist() == [[(0.02 - 0.5) / 0.25, -2.0]]
    assert digits.pixels().shape == (10, 2)
    assert digits.feature_names == ("r0c0", "r0c1")
    assert digits.counts == (1, 2, 0, 4, 0, 0, 0, 0, 3, 0)
    assert len(digits) == 10


def test_images_are_copies_that_cannot_be_written():
    images = np.zeros((2, 1, 2), dtype=np.uint8)
    digits = make([1, 2], images)
    images[0] = 9
    assert not digits.images.any()
    with pytest.raises(ValueError, match="read-only"):
        digits.labels[0] = 3


def test_pair_is_cut_to_the_smaller_count_in_file_order(digits):
    pair = digit_pair(digits, 3, 8)
    assert grey(pair.X_P) == [0, 2, 4]
    assert grey(pair.X_H) == [1, 5, 7]
    assert (pair.pretrain_name, pair.harmful_name) == ("digit 3", "digit 8")
    assert pair.checksum == digits.checksum


def test_swapped_pair(digits):
    pair = digit_pair(digits, 8, 3)
    assert grey(pair.X_P) == [1, 5, 7]
    assert grey(pair.X_H) == [0, 2, 4]


def test_published_labels_are_one_class(digits):
    pair = digit_pair(digits, 3, 8, labels="published")
    assert pair.y_P.tolist() == [0, 0, 0]
    assert pair.y_H.tolist() == [1, 1, 1]
    assert pair.loss_sample[0] is pair.X_P
    assert pair.X_probe is None


def test_one_vs_rest_is_balanced_and_takes_turns(digits):
    pair = digit_pair(digits, 3, 8)
    for (X, y), digit, own in ((pair.loss_sample, 3, [0, 2, 4]), (pair.probe_sample, 8, [1, 5, 7])):
        assert y.tolist() == [1, 0, 1, 0, 1, 0]
        assert grey(X[y == 1]) == own
        rest = grey(X[y == 0])
        assert len(set(rest)) == 3
        assert all(digits.labels[i] != digit for i in rest)
    assert pair.y_P.tolist() == [1, 1, 1]


def test_seed_draws_the_rest_only(digits):
    draws = {tuple(grey(digit_pair(digits, 3, 8, seed=s).loss_sample[0])) for s in range(8)}
    assert len(draws) > 1
    assert len({d[::2] for d in draws}) == 1
    first, again = (digit_pair(digits, 3, 8, seed=4).probe_sample[0] for _ in range(2))
    assert np.array_equal(first, again)


def test_global_generator_is_left_alone(digits):
    np.random.seed(0)  # ruff: ignore[numpy-legacy-random]
    before = np.random.get_state()[1].copy()  # ruff: ignore[numpy-legacy-random]
    digit_pair(digits, 3, 8)
    assert np.array_equal(before, np.random.get_state()[1])  # ruff: ignore[numpy-legacy-random]


def test_rows_caps_the_count(digits):
    pair = digit_pair(digits, 3, 8, rows=2)
    assert grey(pair.X_P) == [0, 2]
    assert pair.loss_sample[0].shape == (4, 2)
    assert pair.provenance.options == {
        "split": "train", "pretrain": 3, "harmful": 8, "labels": "one_vs_rest", "seed": 0, "rows": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        pytest.param((3, 3), {}, "must differ, got 3 for both", id="same"),
        pytest.param((10, 3), {}, "pretrain must be a digit 0 to 9, got 10", id="large"),
        pytest.param((3, -1), {}, "harmful must be a digit 0 to 9, got -1", id="negative"),
        pytest.param((3, "8"), {}, "harmful must be a digit 0 to 9, got '8'", id="text"),
        pytest.param((True, 3), {}, "pretrain must be a digit 0 to 9, got True", id="bool"),
        pytest.param((3, 0), {}, r"toy has 4 image\(s\) of 3 and 1 of 0", id="one-image"),
        pytest.param((3, 9), {}, r"and 0 of 9; each digit needs 2 or more", id="no-image"),
        pytest.param((3, 8), {"rows": 1}, "rows must be an integer", id="rows"),
    ],
)
def test_refuses(digits, arguments, options, message):
    with pytest.raises(InvalidInputError, match=message):
        digit_pair(digits, *arguments, **options)


def test_unknown_labels(digits):
    with pytest.raises(UnknownNameError, match="unknown labels 'publishd'; did you mean 'published'"):
        digit_pair(digits, 3, 8, labels="publishd")


def test_the_other_digit_alone_is_rest_enough():
    pair = digit_pair(make([3, 3, 3, 3, 8, 8, 8]), 3, 8)
    assert sorted(grey(pair.loss_sample[0])) == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("labels", "images", "message"),
    [
        pytest.param(
            [1, 12, 11], None, r"labels must be 0 to 9; 2 are not, the first at index 1: 12", id="label"
        ),
        pytest.param([1, 2], np.zeros((3, 1, 2)), r"got \(3, 1, 2\) and \(2,\)", id="counts"),
        pytest.param([1, 2], np.zeros((2, 4)), r"images \(N, h, w\) .* got \(2, 4\)", id="flat"),
        pytest.param([], np.zeros((0, 1, 2)), "N ≥ 1", id="none"),
        pytest.param([1], np.full((1, 1, 2), 101), "grey values must be at most 100, got 101", id="grey"),
    ],
)
def test_bad_digits(labels, images, message):
    with pytest.raises(DataFormatError, match=message):
        make(labels, images)
