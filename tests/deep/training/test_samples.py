"""Activations of the frozen trunk: one pass for all runs and nets on it."""

import numpy as np
import pytest

from condnum.deep import Backbone
from condnum.deep.features import extract_features
from condnum.deep.training.samples import Samples


class StoppedError(Exception):
    """What ends a run in the middle of a pass."""


@pytest.fixture
def passed(monkeypatch):
    """Return the images that went through a trunk, and after how many batches it stops."""
    seen, known = {"images": 0, "batches": 99}, Backbone.frozen_activations

    def watched(self, images):
        if len(images) > 1:  # a single one tells the shape
            if not seen["batches"]:
                raise StoppedError
            seen["batches"] -= 1
            seen["images"] += len(images)
        return known(self, images)

    monkeypatch.setattr(Backbone, "frozen_activations", watched)
    return seen


def samples(backbone, D_H, transform, folder, rows=None):
    found = Samples(D_H, transform, seed=0, workers=0)
    found.keep_activations(backbone, 32, folder, rows)
    return found


def test_a_pass_is_not_repeated_by_a_stopped_run_or_another_net_on_the_trunk(
    backbone, D_H, transform, tmp_path, passed
):
    passed["batches"] = 2
    with pytest.raises(StoppedError):
        samples(backbone, D_H, transform, tmp_path)
    passed["batches"] = 99
    samples(backbone, D_H, transform, tmp_path)
    assert passed["images"] == len(D_H) == 160
    for parameter in backbone.trainable_parameters():
        parameter.data *= 1.5
    again = samples(backbone, D_H, transform, tmp_path)
    assert passed["images"] == 160
    direct = extract_features(backbone, D_H, transform)
    found = again.features(backbone, 50)
    assert np.allclose(found.values, direct.values, rtol=1e-4, atol=1e-5 * np.abs(direct.values).max())
    assert np.array_equal(found.labels, direct.labels)
    samples(Backbone("test_resnet", num_classes=5, seed=2), D_H, transform, tmp_path)  # of another trunk
    assert passed["images"] == 320


def test_only_the_rows_that_are_asked_for_are_run(backbone, D_H, transform, tmp_path, passed):
    rows = np.array([3, 50, 51, 120])
    some = samples(backbone, D_H, transform, tmp_path, rows)
    assert passed["images"] == 4
    direct = extract_features(backbone, D_H.take(rows), transform).values
    assert np.allclose(some.features(backbone, 3, rows).values, direct, rtol=1e-4, atol=1e-5 * direct.max())
    samples(backbone, D_H, transform, tmp_path)
    assert passed["images"] == 160


def test_a_file_that_was_cut_off_is_made_again(backbone, D_H, transform, tmp_path, passed):
    samples(backbone, D_H, transform, tmp_path)
    for file in tmp_path.glob("*.done.npy"):
        file.write_bytes(file.read_bytes()[:40])
    samples(backbone, D_H, transform, tmp_path)
    assert passed["images"] == 320
