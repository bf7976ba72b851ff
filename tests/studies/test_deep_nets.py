"""The deep-net experiment as a library call: configuration, plans, a short run on the bundled digits."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors import safe_open

from condnum.deep import (
    Backbone,
    DeepSettings,
    evaluation_transform,
    extract_features,
    load_backbone,
    open_images,
    rir_from_features,
    rir_theta0,
    save_backbone,
)
from condnum.deep.features import head_accuracy
from condnum.deep.training.settings import deep_preset
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.studies import deep_nets
from condnum.studies.deep_cells import METHODS, RECIPES, rir_sample
from condnum.studies.deep_nets import DeepNets, model_file
from condnum.studies.deep_tables import RESULT_COLUMNS, published_column
from condnum.studies.measure import TABLE_3

SHORT = DeepNets(
    "embedded",
    backbone=("test_resnet",),
    methods=("ours", "r_ill_only"),
    seeds=1,
    epochs=8,
    pretrain_epochs=2,
    limit=30,
    groups=3,
    group_size=40,
    probe_epochs=4,
    image_size=16,
    device="cpu",
)


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


class TestConfig:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"data": "mnst"}, UnknownNameError, "unknown data 'mnst'; did you mean 'mnist'"),
            ({"methods": ("our",)}, UnknownNameError, "unknown method 'our'; did you mean 'ours'"),
            ({"methods": ()}, InvalidInputError, "no methods; give some of ours"),
            ({"seeds": 0}, InvalidInputError, "seeds must be an integer of at least 1, got 0"),
            ({"epochs": 0}, InvalidInputError, "epochs must be an integer of at least 1"),
            ({"group_size": 1}, InvalidInputError, "group_size must be an integer of at least 2"),
            ({"limit": True}, InvalidInputError, "limit must be an integer"),
            ({"preset": "resnet18-car"}, UnknownNameError, "did you mean 'resnet18-cars'"),
            ({"data": "images", "pretrain": "a"}, InvalidInputError, "need both tasks"),
            ({"weights": "w.pt"}, InvalidInputError, "--weights w.pt: there is no such file"),
            ({"device": "gpu"}, InvalidInputError, "unknown device 'gpu'"),
        ],
        ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else None,
    )
    def test_refused(self, values, error, message):
        with pytest.raises(error, match=message):
            DeepNets(**values)

    def test_from_parameters(self):
        config = DeepNets.from_parameters()
        assert config.methods == METHODS == ("ours", "opt_kappa", "imma", "r_ill_only")
        assert config.chosen_backbones == ("test_resnet", "test_vit")
        own = DeepNets.from_parameters(pretrain="a", harmful="b", methods="imma")
        assert (own.data, own.methods, own.chosen_weights) == ("images", ("imma",), "timm")

    def test_settings_of_a_preset_and_of_the_study(self):
        preset = DeepNets(preset="vit-cars", epochs=1)
        assert preset.settings("test_vit", "ours") == deep_preset("vit-cars").with_overrides(epochs=1)
        for study in RECIPES:
            if study == "images":
                continue
            config = DeepNets(data=study)
            for backbone in config.chosen_backbones:
                for method in METHODS:
                    assert config.settings(backbone, method).describe(method)
                    shorter = dataclasses.replace(config, epochs=2).settings(backbone, method)
                    assert (shorter.epochs, shorter.steps) == (2, None)

        config = DeepNets("images", pretrain="a", harmful="b", backbone=("any_net",), group_size=50)
        assert config.settings("any_net", "ours") == DeepSettings(group_size=50)
        assert config.settings("any_net", "ours").weights == "adaptive"
        assert config.settings("any_net", "imma").steps == 100  # each costs as much as five of the others

    def test_weights_as_they_are_are_not_trained_unless_asked(self):
        config = DeepNets("images", pretrain="a", harmful="b", backbone=("resnet18",))
        assert config.recipe("resnet18").pretraining is None
        trained = dataclasses.replace(config, pretrain_epochs=4).recipe("resnet18").pretraining
        assert trained["epochs"] == 4
        told = config.theta_0_table["θ₀"].iloc[0]
        assert told == "timm's pre-trained weights; may have seen the held-out images, which θ_I has not"
        assert "without its held-out images" in SHORT.theta_0_table["θ₀"].iloc[0]
        assert dataclasses.replace(config, weights="none").recipe("resnet18").pretraining["epochs"] == 30

    def test_a_file_of_weights_is_of_one_backbone(self, tmp_path):
        (file := tmp_path / "w.pt").write_bytes(b"")
        assert DeepNets(weights=str(file), backbone=("resnet18",)).chosen_weights == str(file)
        with pytest.raises(InvalidInputError, match="are of one backbone, but 2 are to run"):
            DeepNets(weights=str(file))


class TestTasks:
    def test_sets_and_checksum(self):
        tasks = SHORT.load()
        assert [len(data) for data in tasks.all] == [120, 30, 144, 120, 30, 146]
        seen = [set(data.positions.tolist()) for data in tasks.all[:2]]
        assert not seen[0] & seen[1]  # neither θ₀ nor θ_I is trained on what θ is chosen by
        assert tasks.pretrain_held.split == "train, held out"
        assert tasks.checksum == SHORT.load().checksum
        assert tasks.checksum != dataclasses.replace(SHORT, limit=29).load().checksum
        assert "digits-8x8:5-9 (120 images)" in tasks.title()
        message = r"D_P without what is held out has 120 image.*fewer than one group of 121"
        with pytest.raises(InvalidInputError, match=message):
            dataclasses.replace(SHORT, group_size=121).load()

    @pytest.mark.parametrize("coloured", [True, False])
    def test_coloured_images_are_mirrored_and_grey_ones_are_not(self, folder, coloured):
        data = (str(folder),) * 2 if coloured else ("digits-8x8:0-4", "digits-8x8:5-9")
        config = DeepNets("images", *data, weights="none", group_size=10, image_size=16)
        made = config.transform(config.load(), Backbone("test_resnet"))
        assert json.loads(made.description)["hflip"] == pytest.approx(0.5 * coloured)
        assert not made.still.random

    def test_sample_of_the_groups(self):
        data = open_images("digits-8x8:0-4")
        assert rir_sample(data, 2000, 0) is data
        sample = rir_sample(data, 100, 0)
        assert len(sample) == 110
        assert np.array_equal(sample.positions, rir_sample(data, 100, 0).positions)
        assert not np.array_equal(sample.positions, rir_sample(data, 100, 1).positions)

    def test_timm_head_and_other_classes(self, folder):
        root = str(folder)
        config = DeepNets(
            "images", pretrain=root, harmful=root, backbone=("test_resnet",), weights="timm", group_size=10
        )
        with pytest.raises(InvalidInputError, match=r"timm's head of test_resnet.*--pretrain-epochs N"):
            config.cells(config.load())

    def test_a_part_of_imagenet_keeps_the_order_of_the_head(self, tmp_path):
        root = paint(tmp_path / "imagenet", ("n01443537", "n01484850"), count=6)
        file = save_backbone(Backbone("test_resnet"), tmp_path / "w.safetensors")
        config = DeepNets(
            "images", pretrain=str(root), harmful="digits-8x8:5-9", backbone=("test_resnet",),
            weights=str(file), group_size=10,
        )  # fmt: skip
        tasks = config.load()
        assert tasks.imagenet_head
        assert set(tasks.pretrain.labels.tolist()) == {1, 2}
        assert len(tasks.pretrain_test.classes) == 1000
        assert config.create(tasks, "test_resnet", 0).num_classes == 1000
        fresh = dataclasses.replace(config, pretrain_epochs=1)
        assert fresh.load().pretrain.classes == ("n01443537", "n01484850")
        assert fresh.create(fresh.load(), "test_resnet", 0).num_classes == 2

    def test_unknown_backbone_and_missing_folder(self, tmp_path):
        with pytest.raises(UnknownNameError, match="unknown timm model 'resnet19'"):
            dataclasses.replace(SHORT, backbone=("resnet19",)).cells(SHORT.load())
        config = DeepNets("images", pretrain=str(tmp_path / "no"), harmful="digits-8x8:5-9")
        with pytest.raises(DataNotFoundError, match="no folder"):
            config.cells(config.load())


def test_a_start_for_each_seed_and_methods_that_come_after_it():
    def planned(**change):
        study = dataclasses.replace(SHORT, **change)
        return study.planned(study.load())

    cells = planned(seeds=2)
    starts, methods = cells[:2], cells[2:]
    assert [(cell["method"], cell["seed"]) for cell in starts] == [("initial", 0), ("initial", 1)]
    assert [cell.after for cell in methods] == [starts[0]] * 2 + [starts[1]] * 2
    for change in ({"epochs": 9}, {"pretrain_epochs": 3}, {"limit": 31}, {"groups": 4}, {"probe_epochs": 5}):
        assert not {cell.key for cell in methods} & {cell.key for cell in planned(**change) if cell.after}


class TestRun:
    def test_rows(self, finished):
        results = finished[0].results
        assert list(results.columns) == RESULT_COLUMNS
        assert len(results) == 3 * 2
        start = results[results["method"] == "initial"]
        # θ₀ is the yardstick itself: exactly 1, and therefore no success.
        assert (start[["harmful_ratio", "pretrain_ratio", "rir"]] == 1).all(axis=None)
        assert not start["success"].any()
        assert results["accuracy"].between(0, 1).all()
        assert (results["accuracy_theta_0"] == start["accuracy"].iloc[0]).all()
        assert not results.drop(columns="rir_group_std").isna().any(axis=None)

    def test_accuracy_and_ratios_are_those_of_the_saved_models(self, finished, tmp_path):
        run = finished[0]
        run.save(tmp_path)
        where = tmp_path / "test_resnet" / "seed-0"
        theta_0 = load_backbone(where / "theta_0.safetensors")
        theta_I = load_backbone(where / "ours" / "theta_I.safetensors")
        transform = evaluation_transform(theta_0, input_size=16, crop_pct=1.0)
        row = run.results[(run.results["method"] == "ours") & (run.results["convention"] == "compact")].iloc[
            0
        ]
        test = extract_features(theta_I, run.data.pretrain_test, transform)
        assert head_accuracy(theta_I, test) == row["accuracy"]
        sample = rir_sample(run.data.pretrain, 3 * 40, seed=0)
        again = rir_theta0(
            theta_0, theta_I, sample, run.data.harmful, groups=3, group_size=40, seed=0, transform=transform
        )
        assert row["rir"] == pytest.approx(again.rir, rel=1e-6)
        sets = (run.data.pretrain_test, run.data.harmful_test)
        features = [extract_features(theta, data, transform) for data in sets for theta in (theta_0, theta_I)]
        on_test = rir_from_features(*features, groups=3, group_size=40, seed=0)
        assert row["test_rir"] == pytest.approx(on_test.rir, rel=1e-6)
        assert row["rir_least_draw"] <= row["rir"] <= row["rir_largest_draw"]
        assert theta_I.checksum == row["checksum"] != theta_0.checksum

    def test_only_the_last_stage_and_the_head_change(self, finished, tmp_path):
        finished[0].save(tmp_path)
        where = tmp_path / "test_resnet" / "seed-0"
        with (
            safe_open(where / "theta_0.safetensors", "pt") as before,
            safe_open(where / "ours" / "theta_I.safetensors", "pt") as after,
        ):
            changed = {
                key for key in list(before.keys()) if not before.get_tensor(key).equal(after.get_tensor(key))
            }
            assert after.metadata()["method"] == "ours"
        assert changed
        assert {key.split(".")[0] for key in changed} <= {"layer4", "fc"}
        assert not any("running" in key for key in changed)

    def test_summary_and_curves(self, finished):
        summary = finished[0].summary  # beside the nearest published column, of another experiment
        row = summary[(summary["method"] == "ours") & (summary["convention"] == "compact")].iloc[0]
        assert row["published_rir"] == pytest.approx(3.467)
        assert not summary["published_same"].any()
        assert row["seeds"] == 1
        assert np.isnan(row["rir_std"])
        curves = finished[0].curves
        probe = curves[(curves["quantity"] == "probe_accuracy") & (curves["method"] == "ours")]
        assert probe["x"].tolist() == [0, 1, 2, 3, 4]
        results = finished[0].results.set_index(["method", "convention"])
        assert probe["value"].iloc[-1] == results.loc[("ours", "compact"), "probe_final"]
        assert {"convex_accuracy", "rir", "accuracy", "pretraining_loss"} <= set(curves["quantity"])

    def test_a_second_run_finds_everything_but_a_model_that_is_gone(self, finished):
        run, folder = finished
        for again, counts in (("found", (0, 3)), ("gone", (1, 2))):
            if again == "gone":
                model_file(run.cells[-1].cell).unlink()
            later = SHORT.run(out=folder, jobs=1)
            assert (later.report.computed, later.report.reused) == counts
            timed = ["seconds"]
            pd.testing.assert_frame_equal(later.results.drop(columns=timed), run.results.drop(columns=timed))
        assert not list(folder.rglob("*.checkpoint"))

    def test_a_single_cell_leaves_its_models_at_the_top(self, finished, tmp_path):
        alone = dataclasses.replace(SHORT, methods=("ours",))
        names = alone.run(out=finished[1], jobs=1).save(tmp_path)
        assert {"theta_0.safetensors", "theta_I.safetensors"} <= set(names)
        assert {path.name for path in tmp_path.iterdir()} == set(names)

    def test_models_of_a_run_without_a_folder_are_gone(self, tmp_path, finished):
        gone = [c._replace(cell=dataclasses.replace(c.cell, folder=str(tmp_path))) for c in finished[0].cells]
        with pytest.raises(DataNotFoundError, match="is gone"):
            dataclasses.replace(finished[0], cells=gone).save(tmp_path / "out")

    def test_tables_for_the_page(self, finished):
        run = finished[0]
        facts = run.provenance_table.set_index("what")["value"]
        assert facts["groups of Eq. 17"] == "3 of 40 training and of 40 test images, un-augmented"
        assert len(facts[facts.index.str.startswith("SHA-256")]) == 6
        assert SHORT.notes(run.cells, "unreadable").empty
        assert run.failures.empty
        assert list(SHORT.settings_table.columns) == ["backbone", "method", "settings"]

    def test_a_failed_method_keeps_the_others(self, monkeypatch, tmp_path):
        original = deep_nets.immunize_backbone

        def broken(*arguments, method, **options):
            if method == "r_ill_only":
                raise InvalidInputError("r_ill_only is broken")
            return original(*arguments, method=method, **options)

        monkeypatch.setattr(deep_nets, "immunize_backbone", broken)
        run = SHORT.run(out=tmp_path / "cells", jobs=1)
        assert set(run.results["method"]) == {"initial", "ours"}
        assert run.failures["error"].tolist() == ["InvalidInputError: r_ill_only is broken"]
        assert "failures.csv" in run.save(tmp_path / "out")


class TestWeightsFromAFile:
    @pytest.fixture
    def images(self, finished, tmp_path):
        """The bundled digits as the user's own tasks, with θ₀ of a finished run as weights."""
        finished[0].save(tmp_path)
        config = dataclasses.replace(
            SHORT, data="images", pretrain="digits-8x8:0-4", harmful="digits-8x8:5-9", pretrain_epochs=None
        )
        return config, tmp_path / "test_resnet" / "seed-0" / "theta_0.safetensors"

    def test_are_taken_as_they_are(self, images, tmp_path):
        config, file = images
        config = dataclasses.replace(config, weights=str(file), methods=("ours",))
        run = config.run(out=tmp_path / "cells", jobs=1)
        start = run.results[run.results["method"] == "initial"].iloc[0]
        assert start["checksum"] == load_backbone(file).checksum
        assert start["stop_reason"] == "as loaded"

    def test_that_do_not_fit_name_the_keys(self, images):
        config, file = images
        config = dataclasses.replace(config, weights=str(file), backbone=("resnet18",))
        with pytest.raises(DataFormatError, match=r"do not fit ResNet: .*missing: .*unexpected: "):
            config.run()

    def test_unreadable_images_are_listed(self, folder, tmp_path):
        root = folder
        (root / "train" / "cat" / "3.png").write_bytes(b"broken")
        config = dataclasses.replace(
            SHORT, data="images", pretrain=str(root), harmful="digits-8x8:5-9", weights="none",
            group_size=20, limit=None, methods=("ours",), image_size=12,
        )  # fmt: skip
        run = config.run(out=tmp_path / "cells", jobs=1)
        assert (run.results["unreadable"] == 1).all()
        assert "3.png" in config.notes(run.cells, "unreadable")["text"].iloc[0]


def _images(classes):
    digits = open_images("digits-8x8:0-4")
    return dataclasses.replace(digits, classes=tuple(str(c) for c in range(classes)))


@pytest.mark.parametrize(
    ("backbone", "pretrain", "harmful", "column", "same"),
    [
        ("resnet18", 1000, 196, ("resnet18", "cars"), True),
        ("resnet18.a1_in1k", 1000, 211, ("resnet18", "country211"), True),
        ("vit_base_patch16_clip_224", 1000, 196, ("vit", "cars"), True),
        ("resnet50", 1000, 196, ("resnet18", "cars"), False),
        ("vit_tiny_patch16_224", 1000, 211, ("vit", "cars"), False),
        ("resnet18", 5, 196, ("resnet18", "cars"), False),
    ],
)
def test_published_column(backbone, pretrain, harmful, column, same):
    tasks = dataclasses.replace(SHORT.load(), pretrain=_images(pretrain), harmful=_images(harmful))
    found, comparable = published_column(backbone, tasks)
    assert found is TABLE_3[column]
    assert comparable is same
