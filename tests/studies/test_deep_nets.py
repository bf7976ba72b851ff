"""The deep-net experiment as a library call: configuration, plans, a short run on the bundled digits."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from condnum.deep import (
    Backbone,
    DeepSettings,
    evaluation_transform,
    load_backbone,
    rir_theta0,
    save_backbone,
)
from condnum.deep.features import extract_features, head_accuracy
from condnum.deep.rir import rir_sample
from condnum.deep.training.settings import deep_preset, default_settings
from condnum.errors import DataNotFoundError
from condnum.studies.deep import DeepNets, model_file
from condnum.studies.deep_measures import doubts
from condnum.studies.deep_recipes import NET_METHODS

#: Nets that are made in seconds.
SHORT_NETS = {"backbone": ("test_resnet",), "seeds": 1, "pretrain_epochs": 2, "limit": 30, "groups": 3}
SHORT_NETS |= {"group_size": 40, "probe_epochs": 4, "image_size": 16, "device": "cpu"}
SHORT = DeepNets("embedded", methods=("ours", "r_ill_only"), epochs=8, **SHORT_NETS)


def paint(root, classes=("cat", "dog"), count=60):
    """Write grey images of 12 pixels a side, `count` in each class and split."""
    for split in ("train", "test"):
        for level, name in enumerate(classes):
            place = root / split / name
            place.mkdir(parents=True)
            for i in range(count):
                noise = np.random.default_rng([level, i, len(split)]).integers(0, 40, (12, 12, 3))
                Image.fromarray((noise + 40 + 140 * level).astype(np.uint8)).save(place / f"{i}.png")
    return root


@pytest.fixture
def folder(tmp_path):
    """Two classes of 60 images in each split."""
    return paint(tmp_path / "images")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run with its store."""
    folder = tmp_path_factory.mktemp("deep")
    return SHORT.run(out=folder, jobs=1), folder


def test_settings_of_presets_of_the_study_and_of_own_images():
    config = DeepNets()
    assert config.methods == NET_METHODS == ("ours", "opt_kappa", "imma", "r_ill_only")
    assert config.chosen_backbones == ("test_resnet", "test_vit")
    preset = DeepNets(preset="vit-cars", epochs=1)
    assert preset.settings("test_vit", "ours") == deep_preset("vit-cars").with_overrides(epochs=1)
    own = DeepNets(benign="a", harmful="b", backbone="resnet18", group_size=50)
    assert (own.data, own.chosen_weights) == ("images", "timm")
    assert own.settings("resnet18", "ours") == DeepSettings(group_size=50)
    assert own.settings("resnet18", "imma").steps == 100  # each costs as much as five of the others
    rule = DeepNets("mnist", methods=("erase", "ours"), group_size=50)
    assert rule.methods == ("ours", "erase")
    assert rule.settings("resnet18", "erase") == default_settings("erase").with_overrides(group_size=50)
    # Weights as they are are not trained unless asked.
    assert own.recipe("resnet18").pretraining is None
    assert dataclasses.replace(own, finetune_benign=4).recipe("resnet18").pretraining["epochs"] == 4
    drawn = dataclasses.replace(own, weights="none")
    assert drawn.recipe("resnet18").pretraining["epochs"] == 30


def test_photographs_that_are_not_here_say_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path))
    config = DeepNets("imagenette-cars")
    assert (config.chosen_backbones, config.chosen_weights) == (("tf_efficientnet_lite0",), "bundled")
    with pytest.raises(
        DataNotFoundError, match=r"no folder imagenette here or in .*CONDNUM_DATA .*train/CLASS"
    ):
        config.load()
    for name in ("imagenette", "cars"):
        paint(tmp_path / name, ("n01443537", "n01484850"), count=8)
    own = dataclasses.replace(config, benign=str(tmp_path / "cars"), harmful="cars", group_size=4)
    assert (own.data, own.side, own.load().imagenet_head) == ("imagenette-cars", 160, True)


class TestTasks:
    def test_sets_and_checksum(self):
        tasks = SHORT.load()
        assert [len(data) for data in tasks.all] == [120, 30, 144, 120, 30, 146]
        seen = [set(data.positions.tolist()) for data in tasks.all[:2]]
        assert not seen[0] & seen[1]  # neither θ₀ nor θ_I is trained on what θ is chosen by
        assert tasks.checksum == SHORT.load().checksum
        assert tasks.checksum != dataclasses.replace(SHORT, limit=29).load().checksum

    def test_a_part_of_imagenet_keeps_the_order_of_the_head(self, tmp_path):
        root = paint(tmp_path / "imagenet", ("n01443537", "n01484850"), count=6)
        file = save_backbone(Backbone("test_resnet"), tmp_path / "w.safetensors")
        config = DeepNets(
            "images", benign=str(root), harmful="digits-8x8:5-9", backbone=("test_resnet",),
            weights=str(file), group_size=10,
        )  # fmt: skip
        tasks = config.load()
        assert tasks.imagenet_head
        assert set(tasks.benign.labels.tolist()) == {1, 2}
        assert len(tasks.benign_test.classes) == 1000
        assert config.create(tasks, "test_resnet", 0).num_classes == 1000
        fresh = dataclasses.replace(config, finetune_benign=1)
        assert fresh.load().benign.classes == ("n01443537", "n01484850")
        assert fresh.create(fresh.load(), "test_resnet", 0).num_classes == 2


class TestRun:
    def test_accuracy_and_ratios_are_those_of_the_saved_models(self, finished, tmp_path):
        run = finished[0]
        run.save(tmp_path)
        files = [tmp_path / "test_resnet" / "seed-0" / name for name in ("theta_0", "ours/theta_I")]
        files = [file.with_suffix(".safetensors") for file in files]
        theta_0, theta_I = map(load_backbone, files)
        transform = evaluation_transform(theta_0, input_size=16, crop_pct=1.0)
        row = run.tables["results"].query("method == 'ours' and convention == 'compact'").iloc[0]
        test = extract_features(theta_I, run.data.benign_test, transform)
        assert head_accuracy(theta_I, test) == row["accuracy"]
        tables = {file.stem: np.load(file) for file in files[0].with_name("features").glob("*.npy")}
        assert np.array_equal(tables["y_H"], np.r_[run.data.harmful.labels, run.data.harmful_test.labels])
        known = extract_features(theta_0, run.data.harmful_test, transform).values
        assert np.allclose(tables["X_H"][-len(known) :], known, atol=1e-5)
        benign, groups = run.data.benign, {"groups": 3, "group_size": 40}
        sample = benign.take(rir_sample(len(benign), 3 * 40, seed=0))
        again = rir_theta0(theta_0, theta_I, sample, run.data.harmful, seed=0, transform=transform, **groups)
        assert row["rir"] == pytest.approx(again.rir, rel=1e-6)
        assert row["rir_least_draw"] <= row["rir"] <= row["rir_largest_draw"]
        assert theta_I.checksum == row["checksum"] != theta_0.checksum
        with safe_open(files[0], "pt") as before, safe_open(files[1], "pt") as after:
            names = list(before.keys())
            changed = {key for key in names if not before.get_tensor(key).equal(after.get_tensor(key))}
            assert after.metadata()["method"] == "ours"
        assert {key.split(".")[0] for key in changed} == {"layer4", "fc"}  # the last stage and the head
        assert not any("running" in key for key in changed)

    def test_a_second_run_finds_everything_but_a_model_that_is_gone(self, finished, tmp_path):
        run, folder = finished
        for again, counts in (("found", (0, 3)), ("gone", (1, 2))):
            if again == "gone":
                model_file(run.cells[-1].cell).unlink()
            later = SHORT.run(out=folder, jobs=1)
            assert (later.computed, later.reused) == counts
            tables = (one.tables["results"].drop(columns="seconds") for one in (later, run))
            pd.testing.assert_frame_equal(*tables)
        assert not list(folder.rglob("*.checkpoint"))
        alone = dataclasses.replace(SHORT, methods=("ours",)).run(out=folder, jobs=1)
        kept = "test_resnet/seed-0/ours/theta_I.safetensors"
        assert kept in alone.save(tmp_path / "alone")
        assert (tmp_path / "alone" / kept).is_file()

    def test_a_head_with_the_labels_in_another_order_is_noticed(self, finished):
        run, _ = finished
        theta_0 = load_backbone(model_file(run.cells[0].cell))
        transform = evaluation_transform(theta_0, input_size=16, crop_pct=1.0)
        test = extract_features(theta_0, run.data.benign_test, transform)
        said = theta_0.head(torch.tensor(test.values)).argmax(dim=1).numpy()
        test = dataclasses.replace(test, labels=said)  # as if θ₀ were always right
        assert not doubts(run.data, theta_0, test)
        for part in (theta_0.head.weight, theta_0.head.bias):
            part.data = part.data.roll(1, 0)
        (warning,) = doubts(run.data, theta_0, test)
        assert "θ₀ does not solve D_P: its test accuracy is 0.0 %" in warning

    def test_unreadable_images_are_listed(self, folder):
        (folder / "train" / "cat" / "3.png").write_bytes(b"broken")
        config = dataclasses.replace(
            SHORT, benign=str(folder), harmful="digits-8x8:5-9", weights="none", group_size=20, limit=None,
            image_size=12, methods=("ours",), epochs=1, pretrain_epochs=1,
        )  # fmt: skip
        run = config.run(jobs=1)
        assert (run.tables["results"]["unreadable"] == 1).all()
        assert "3.png" in config.notes(run.cells, "unreadable")["text"].iloc[0]
