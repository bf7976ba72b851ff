"""Linear maps of features, whose outcome is known where labels shift the mean."""

import numpy as np

from condnum.studies.deep_linear import linear_defenses


def shifted(rows, classes, columns, seed, first=0):
    """Return rows whose class moves them along columns of their own."""
    drawn = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    X = drawn.normal(size=(rows, columns))
    X[:, first : first + classes] += 4 * np.eye(classes)[y]
    return X.astype(np.float32), y


def test_erasure_hides_the_classes_from_linear_heads_and_shuffled_labels_do_not():
    table = linear_defenses(*shifted(300, 3, 40, 0, first=20), *shifted(1500, 4, 40, 1), per_class=(0,))
    by = table.set_index("defense")
    plain, control, erased = (by.loc[name] for name in ("features of θ₀", "erase, shuffled labels", "erase"))
    assert plain["ridge_fresh_rows"] > 0.95
    assert control["ridge_fresh_rows"] > plain["ridge_fresh_rows"] - 0.1
    assert erased["ridge_own_rows"] < erased["chance_harmful"] + 0.1
    assert erased["ridge_fresh_rows"] < 0.6 < control["neighbors_fresh_rows"]
    assert by.loc["pareto", "linear_rir"] > 1
    assert by.loc["pareto", "ridge_fresh_rows"] > 0.9  # solved, whatever κ
    assert (table["benign_ridge"] > 0.9).all()
