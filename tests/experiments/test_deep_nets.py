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
from condnum.studies.deep_cells import (
    METHODS,
    STUDIES,
    DeepConfig,
    create_backbone,
    open_tasks,
    pretraining_table,
    rir_sample,
    task_transform,
    weights_source,
)
from condnum.studies.deep_tables import RESULT_COLUMNS, published_column
from condnum.studies.measure import TABLE_3
from condnum.studies.sweep import SweepError

SHORT = DeepConfig(
    "embedded",
    backbones=("test_resnet",),
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
DEFAULTS = {
    "data": "embedded", "pretrain": "", "harmful": "", "backbone": "", "weights": "", "preset": "",
    "methods": "", "seeds": 3, "epochs": 0, "pretrain_epochs": 0, "limit": 0, "image_size": 0,
    "groups": 20, "group_size": 100, "device": "cpu", "workers": 0,
}  # fmt: skip


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
    return deep_nets.run(SHORT, folder=folder, jobs=1), folder


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
            ({"weights": "w.pt"}, InvalidInputError, "weights in w.pt are of one backbone, but 2"),
            ({"device": "gpu"}, InvalidInputError, "unknown device 'gpu'"),
        ],
        ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else None,
    )
    def test_refused(self, values, error, message):
        with pytest.raises(error, match=message):
            DeepConfig(**values)

    def test_from_parameters(self):
        config = DeepConfig.from_parameters(**DEFAULTS)
        assert config.methods == METHODS == ("ours", "opt_kappa", "imma", "r_ill_only")
        assert config.chosen_backbones == ("test_resnet", "test_vit")
        assert config.tasks == ("digits-8x8:0-4", "digits-8x8:5-9")
        own = DeepConfig.from_parameters(**DEFAULTS | {"pretrain": "a", "harmful": "b", "methods": "imma"})
        assert (own.data, own.tasks, own.methods, own.chosen_weights) == (
            "images",
            ("a", "b"),
            ("imma",),
            "timm",
        )
        with pytest.raises(UnknownNameError, match="unknown method 'immma'"):
            DeepConfig.from_parameters(**DEFAULTS | {"methods": "immma"})

    def test_settings_of_a_preset_and_of_the_study(self):
        preset = DeepConfig(preset="vit-cars", epochs=1)
        assert preset.settings("test_vit", "ours") == deep_preset("vit-cars").with_overrides(epochs=1)
        for study in STUDIES:
            if study == "images":
                continue
            config = DeepConfig(data=study)
            for backbone in config.chosen_backbones:
                for method in METHODS:
                    assert config.settings(backbone, method).describe(method)
                    shorter = dataclasses.replace(config, epochs=2).settings(backbone, method)
                    assert (shorter.epochs, shorter.steps) == (2, None)

    def test_own_images_have_settings_that_adapt(self):
        config = DeepConfig("images", pretrain="a", harmful="b", backbones=("any_net",), group_size=50)
        assert config.settings("any_net", "ours") == DeepSettings(group_size=50)
        assert config.settings("any_net", "ours").weights == "adaptive"
        assert config.settings("any_net", "imma").steps == 100  # each costs as much as five of the others

    def test_weights_as_they_are_are_not_trained_unless_asked(self):
        config = DeepConfig("images", pretrain="a", harmful="b", backbones=("resnet18",))
        assert config.backbone("resnet18").pretraining is None
        trained = dataclasses.replace(config, pretrain_epochs=4).backbone("resnet18").pretraining
        assert trained["epochs"] == 4
        told = pretraining_table(config)["θ₀"].iloc[0]
        assert told == "timm's pre-trained weights; may have seen the held-out images, which θ_I has not"
        assert "without its held-out images" in pretraining_table(SHORT)["θ₀"].iloc[0]
        assert dataclasses.replace(config, weights="none").backbone("resnet18").pretraining["epochs"] == 30

    def test_weights_source(self, tmp_path):
        with pytest.raises(InvalidInputError, match=r"--weights nowhere\.pt: there is no such file"):
            weights_source("nowhere.pt")
        file = tmp_path / "w.pt"
        file.write_bytes(b"")
        assert weights_source(str(file)) == str(file)


class TestTasks:
    def test_sets_and_checksum(self):
        tasks = open_tasks(SHORT)
        assert [len(data) for data in tasks.all] == [120, 30, 144, 120, 30, 146]
        seen = [set(data.positions.tolist()) for data in tasks.all[:2]]
        assert not seen[0] & seen[1]  # neither θ₀ nor θ_I is trained on what θ is chosen by
        assert tasks.pretrain_held.split == "train, held out"
        assert tasks.checksum == open_tasks(SHORT).checksum
        assert tasks.checksum != open_tasks(dataclasses.replace(SHORT, limit=29)).checksum
        assert "digits-8x8:5-9 (120 images)" in tasks.title()

    def test_fewer_images_than_a_group(self):
        with pytest.raises(
            InvalidInputError,
            match=r"D_P without what is held out has 120 image.*fewer than one group of 121",
        ):
            open_tasks(dataclasses.replace(SHORT, group_size=121))

    @pytest.mark.parametrize("coloured", [True, False])
    def test_coloured_images_are_mirrored_and_grey_ones_are_not(self, folder, coloured):
        data = (str(folder),) * 2 if coloured else ("digits-8x8:0-4", "digits-8x8:5-9")
        config = DeepConfig("images", *data, weights="none", group_size=10, image_size=16)
        made = task_transform(config, open_tasks(config), Backbone("test_resnet"))
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
        config = DeepConfig(
            "images", pretrain=root, harmful=root, backbones=("test_resnet",), weights="timm", group_size=10
        )
        with pytest.raises(InvalidInputError, match=r"timm's head of test_resnet.*--pretrain-epochs N"):
            deep_nets.prepare(config)

    def test_a_part_of_imagenet_keeps_the_order_of_the_head(self, tmp_path):
        root = paint(tmp_path / "imagenet", ("n01443537", "n01484850"), count=6)
        file = save_backbone(Backbone("test_resnet"), tmp_path / "w.safetensors")
        config = DeepConfig(
            "images", pretrain=str(root), harmful="digits-8x8:5-9", backbones=("test_resnet",),
            weights=str(file), group_size=10,
        )  # fmt: skip
        tasks = open_tasks(config)
        assert tasks.imagenet_head
        assert set(tasks.pretrain.labels.tolist()) == {1, 2}
        assert len(tasks.pretrain_test.classes) == 1000
        assert create_backbone(config, tasks, "test_resnet", 0).num_classes == 1000
        fresh = dataclasses.replace(config, pretrain_epochs=1)
        assert open_tasks(fresh).pretrain.classes == ("n01443537", "n01484850")
        assert create_backbone(fresh, open_tasks(fresh), "test_resnet", 0).num_classes == 2

    def test_unknown_backbone_and_missing_folder(self, tmp_path):
        with pytest.raises(UnknownNameError, match="unknown timm model 'resnet19'"):
            deep_nets.prepare(dataclasses.replace(SHORT, backbones=("resnet19",)))
        config = DeepConfig("images", pretrain=str(tmp_path / "no"), harmful="digits-8x8:5-9")
        with pytest.raises(DataNotFoundError, match="no folder"):
            deep_nets.prepare(config)


class TestPlans:
    def test_a_start_for_each_seed_and_methods_that_name_it(self):
        prepared = deep_nets.prepare(dataclasses.replace(SHORT, seeds=2))
        starts, methods = deep_nets.plans(prepared)
        assert [plan.payload["seed"] for plan in starts] == [0, 1]
        assert len(methods) == 4
        assert {plan.payload["start"] for plan in methods} == {plan.key for plan in starts}

    @pytest.mark.parametrize(
        "change",
        [{"epochs": 9}, {"pretrain_epochs": 3}, {"limit": 31}, {"groups": 4}, {"probe_epochs": 5}],
        ids=lambda change: next(iter(change)),
    )
    def test_key_sees_what_the_result_depends_on(self, change):
        def keys(config):
            return {plan.key for plan in deep_nets.plans(deep_nets.prepare(config))[1]}

        assert not keys(SHORT) & keys(dataclasses.replace(SHORT, **change))


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
        test = extract_features(theta_I, run.tasks.pretrain_test, transform)
        assert head_accuracy(theta_I, test) == row["accuracy"]
        sample = rir_sample(run.tasks.pretrain, 3 * 40, seed=0)
        again = rir_theta0(
            theta_0, theta_I, sample, run.tasks.harmful, groups=3, group_size=40, seed=0, transform=transform
        )
        assert row["rir"] == pytest.approx(again.rir, rel=1e-6)
        sets = (run.tasks.pretrain_test, run.tasks.harmful_test)
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

    def test_summary_shows_the_nearest_published_column_and_says_that_it_is_another_experiment(
        self, finished
    ):
        summary = finished[0].summary
        row = summary[(summary["method"] == "ours") & (summary["convention"] == "compact")].iloc[0]
        assert row["published_rir"] == pytest.approx(3.467)
        assert not summary["published_same"].any()
        assert row["seeds"] == 1
        assert np.isnan(row["rir_std"])

    def test_curves(self, finished):
        curves = finished[0].curves
        probe = curves[(curves["quantity"] == "probe_accuracy") & (curves["method"] == "ours")]
        assert probe["x"].tolist() == [0, 1, 2, 3, 4]
        results = finished[0].results.set_index(["method", "convention"])
        assert probe["value"].iloc[-1] == results.loc[("ours", "compact"), "probe_final"]
        assert {"convex_accuracy", "rir", "accuracy", "pretraining_loss"} <= set(curves["quantity"])

    def test_a_second_run_finds_everything_in_the_store(self, finished):
        again = deep_nets.run(SHORT, folder=finished[1], jobs=1)
        assert [sweep.computed for sweep in again.sweeps] == [0, 0]
        pd.testing.assert_frame_equal(again.results, finished[0].results)

    def test_a_model_that_is_gone_is_made_again_the_same(self, finished):
        run, folder = finished
        run.models[-1].unlink()
        again = deep_nets.run(SHORT, folder=folder, jobs=1)
        assert [sweep.computed for sweep in again.sweeps] == [0, 1]
        timed = ["seconds"]
        pd.testing.assert_frame_equal(again.results.drop(columns=timed), run.results.drop(columns=timed))

    def test_no_checkpoint_is_left(self, finished):
        assert not list(finished[1].rglob("*.checkpoint"))

    def test_a_single_cell_leaves_its_models_at_the_top(self, finished, tmp_path):
        alone = dataclasses.replace(SHORT, methods=("ours",))
        names = deep_nets.run(alone, folder=finished[1], jobs=1).save(tmp_path)
        assert {"theta_0.safetensors", "theta_I.safetensors"} <= set(names)
        assert {path.name for path in tmp_path.iterdir()} == set(names)

    def test_models_of_a_run_without_a_folder_are_gone(self, tmp_path, finished):
        run = dataclasses.replace(finished[0], models=[tmp_path / "gone"] * 3)
        with pytest.raises(DataNotFoundError, match="is gone"):
            run.save(tmp_path / "out")

    def test_tables_for_the_page(self, finished):
        run = finished[0]
        facts = run.provenance_table.set_index("what")["value"]
        assert facts["groups of Eq. 17"] == "3 of 40 training and of 40 test images, un-augmented"
        assert len(facts[facts.index.str.startswith("SHA-256")]) == 6
        assert run.unreadable.empty
        assert run.failures.empty
        assert list(run.config.settings_table.columns) == ["backbone", "method", "settings"]


class TestFailures:
    def test_a_failed_method_keeps_the_others(self, finished, monkeypatch, tmp_path):
        from condnum.studies import deep_cells as deep_cell

        original = deep_cell.immunize_backbone

        def broken(*arguments, method, **options):
            if method == "r_ill_only":
                raise InvalidInputError("r_ill_only is broken")
            return original(*arguments, method=method, **options)

        monkeypatch.setattr(deep_cell, "immunize_backbone", broken)
        run = deep_nets.run(SHORT, folder=tmp_path / "cells", jobs=1)
        assert set(run.results["method"]) == {"initial", "ours"}
        assert run.failures["error"].tolist() == ["InvalidInputError: r_ill_only is broken"]
        assert "failures.csv" in run.save(tmp_path / "out")

    def test_every_theta_0_failed(self, monkeypatch, tmp_path):
        from condnum.studies import deep_cells as deep_cell

        def broken(*_):
            raise InvalidInputError("no such thing")

        monkeypatch.setattr(deep_cell, "make_theta_0", broken)
        with pytest.raises(SweepError, match=r"no cell succeeded: 1 failed.*no such thing"):
            deep_nets.run(SHORT, folder=tmp_path, jobs=1)


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
        run = deep_nets.run(config, folder=tmp_path / "cells", jobs=1)
        start = run.results[run.results["method"] == "initial"].iloc[0]
        assert start["checksum"] == load_backbone(file).checksum
        assert start["stop_reason"] == "as loaded"

    def test_that_do_not_fit_name_the_keys(self, images):
        config, file = images
        config = dataclasses.replace(config, weights=str(file), backbones=("resnet18",))
        with pytest.raises(DataFormatError, match=r"do not fit ResNet: .*missing: .*unexpected: "):
            deep_nets.run(config)

    def test_unreadable_images_are_listed(self, folder, tmp_path):
        root = folder
        (root / "train" / "cat" / "3.png").write_bytes(b"broken")
        config = dataclasses.replace(
            SHORT, data="images", pretrain=str(root), harmful="digits-8x8:5-9", weights="none",
            group_size=20, limit=None, methods=("ours",), image_size=12,
        )  # fmt: skip
        run = deep_nets.run(config, folder=tmp_path / "cells", jobs=1)
        assert (run.results["unreadable"] == 1).all()
        assert "3.png" in run.unreadable["text"].iloc[0]


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
    tasks = dataclasses.replace(open_tasks(SHORT), pretrain=_images(pretrain), harmful=_images(harmful))
    found, comparable = published_column(backbone, tasks)
    assert found is TABLE_3[column]
    assert comparable is same
