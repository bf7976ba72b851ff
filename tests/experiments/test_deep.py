"""The deep experiments: what the parameters choose, a short run on digits, attacks on its nets."""

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from test_readme import PAGES, fences

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
from condnum.errors import CondnumError, DataNotFoundError
from condnum.experiments import deep, deep_attackers, frame
from condnum.experiments.deep_measures import tasks
from condnum.experiments.deep_recipes import NET_METHODS, Choice
from condnum.methods import METHODS

PUBLISHED = {
    **dict.fromkeys(("benign", "harmful", "backbone", "weights", "preset", "methods"), ""),
    **dict.fromkeys(("epochs", "pretrain_epochs", "finetune_benign", "limit", "image_size", "workers"), 0),
    **{"data": "embedded", "seeds": 3, "augmentation": "none", "groups": 20, "group_size": 100},
    **{"device": "cpu", "full": True},
}
#: Nets that are made in seconds.
SHORT = PUBLISHED | {"backbone": "test_resnet", "seeds": 1, "epochs": 2, "pretrain_epochs": 2, "limit": 30}
SHORT |= {"groups": 3, "group_size": 40, "image_size": 16, "methods": "ours,r_ill_only"}
ATTACKS = SHORT | {"models": "", "methods": "", "attackers": "head-sgd,ridge", "shots": "6,0", "steps": 4}
ATTACKS |= {"trials": 1, "repeats": 2, "batch_size": 32, "test_images": 60}
QUIET = {"jobs": 1, "quiet": True}


def choice(**changes):
    return Choice(**(PUBLISHED | changes))


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run, and the folder of its nets."""
    run = frame.run(deep, **SHORT, **QUIET)
    folder = tmp_path_factory.mktemp("nets")
    deep.save_nets(run, folder)
    return run, folder


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A short run of attacks; the second method is that of the guide, in a file of its own."""
    file = tmp_path_factory.mktemp("own") / "log_kappa_of_nets.py"
    file.write_text(fences(PAGES["condnum/site/pages/howto/own_study.md"], "python")[0], encoding="utf-8")
    yield frame.run(deep_attackers, **ATTACKS | {"methods": f"ours,{file}"}, **QUIET)
    METHODS.pop("log_kappa")


def test_settings_are_those_of_presets_of_the_recipe_and_of_own_images():
    config = choice()
    assert config.methods == NET_METHODS == ("ours", "opt_kappa", "imma", "r_ill_only")
    assert config.backbones == ("test_resnet", "test_vit")
    preset = choice(preset="vit-cars", epochs=1)
    assert preset.settings("test_vit", "ours") == deep_preset("vit-cars").with_overrides(epochs=1)
    own = {"benign": "a", "harmful": "b", "backbone": "resnet18", "group_size": 50}
    assert (choice(**own).data, choice(**own).chosen_weights) == ("images", "timm")
    assert choice(**own).settings("resnet18", "ours") == DeepSettings(group_size=50)
    assert choice(**own).settings("resnet18", "imma").steps == 100  # each costs as much as five of the others
    rule = choice(data="mnist", methods="erase,ours", group_size=50)
    assert rule.methods == ("ours", "erase")
    assert rule.settings("resnet18", "erase") == default_settings("erase").with_overrides(group_size=50)
    # Weights as they are are not trained unless asked.
    assert choice(**own).of("resnet18").pretraining is None
    assert choice(**own, finetune_benign=4).of("resnet18").pretraining["epochs"] == 4
    assert choice(**own, weights="none").of("resnet18").pretraining["epochs"] == 30


@pytest.mark.parametrize(
    ("experiment", "changes", "words"),
    [
        (deep, {"preset": "resnet18-car"}, "did you mean 'resnet18-cars'"),
        (deep, {"data": "images", "benign": "a"}, "need both tasks"),
        (deep, {"seeds": 0}, "seeds must be an integer ≥ 1, got 0"),
        (deep, {"methods": "ous"}, "unknown method 'ous'; did you mean 'ours'"),
        (deep, {"weights": "nowhere.pt"}, "nowhere.pt: there is no such file"),
        (deep, {"group_size": 2000}, "D_P without what is held out has .* fewer than one group of 2000"),
        (deep_attackers, {"attackers": "lora-adam"}, "unknown deep attacker 'lora-adam'"),
        (deep_attackers, {"shots": "8,many"}, "examples per class such as 8,128,0: .* got '8,many'"),
        (deep_attackers, {"models": "nowhere"}, "nowhere has no theta_0.safetensors with"),
    ],
)
def test_what_cannot_run_is_refused_with_the_fix(experiment, changes, words):
    with pytest.raises(CondnumError, match=words):
        experiment.cells(**(ATTACKS if experiment is deep_attackers else SHORT) | changes)


def test_photographs_that_are_not_here_say_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = choice(data="imagenette-cars", group_size=4)
    assert (config.backbones, config.chosen_weights) == (("tf_efficientnet_lite0",), "bundled")
    with pytest.raises(DataNotFoundError, match=r"no folder imagenette here or in .*CONDNUM_DATA .*train/CL"):
        config.images  # ruff: ignore[useless-expression]
    assert choice(data="auto").data == "embedded"
    for name in ("imagenette", "cars"):
        paint(tmp_path / name, ("n01443537", "n01484850"), count=8)
    assert choice(data="auto").data == "imagenette-cars"
    assert choice(data="auto", full=False).data == "embedded"
    own = choice(data="imagenette-cars", benign=str(tmp_path / "cars"), harmful="cars")
    assert (own.data, own.side, own.images["imagenet"]) == ("imagenette-cars", 160, True)


def test_images_that_choose_are_none_of_those_that_train():
    data = choice(limit=30).tasks
    assert [len(one) for one in data.all] == [120, 30, 144, 120, 30, 146]
    seen = [set(one.positions.tolist()) for one in data.all[:2]]
    assert not seen[0] & seen[1]
    assert data.checksum != choice(limit=29).tasks.checksum
    fresh = deep_attackers.unused("digits-8x8:5-9", data.harmful)
    assert not set(fresh.positions) & set(data.harmful.positions)
    assert (fresh.counts, fresh.split) == (data.harmful.counts, "train")


def test_a_part_of_imagenet_keeps_the_order_of_the_head(tmp_path):
    root = paint(tmp_path / "imagenet", ("n01443537", "n01484850"), count=6)
    file = save_backbone(Backbone("test_resnet"), tmp_path / "w.safetensors")
    own = {"data": "images", "benign": str(root), "harmful": "digits-8x8:5-9", "backbone": "test_resnet"}
    own |= {"weights": str(file), "group_size": 10}
    config = choice(**own)
    assert config.images["imagenet"]
    assert set(config.tasks.benign.labels.tolist()) == {1, 2}
    assert config.net("test_resnet")[0]["num_classes"] is None  # the 1,000 of the file
    fresh = choice(**own, finetune_benign=1)
    assert fresh.tasks.benign.classes == ("n01443537", "n01484850")
    assert fresh.net("test_resnet")[0]["num_classes"] == 2


def test_accuracy_and_ratios_are_those_of_the_saved_nets(finished):
    run, folder = finished
    files = [folder / "test_resnet" / "seed-0" / name for name in ("theta_0", "ours/theta_I")]
    files = [file.with_suffix(".safetensors") for file in files]
    theta_0, theta_I = map(load_backbone, files)
    transform = evaluation_transform(theta_0, input_size=16, crop_pct=1.0)
    row, data = run.rows.set_index("method").loc["ours"], tasks(**run.rows["images"].iloc[0])
    assert head_accuracy(theta_I, extract_features(theta_I, data.benign_test, transform)) == row["accuracy"]
    features = {file.stem: np.load(file) for file in files[0].with_name("features").glob("*.npy")}
    assert np.array_equal(features["y_H"], np.r_[data.harmful.labels, data.harmful_test.labels])
    known = extract_features(theta_0, data.harmful_test, transform).values
    assert np.allclose(features["X_H"][-len(known) :], known, atol=1e-5)
    sample = data.benign.take(rir_sample(len(data.benign), 3 * 40, seed=0))
    groups = {"groups": 3, "group_size": 40, "transform": transform}
    again = rir_theta0(theta_0, theta_I, sample, data.harmful, seed=0, **groups)
    assert row["compact_rir"] == pytest.approx(again.rir, rel=1e-6)
    assert theta_I.checksum == row["checksum"] != theta_0.checksum
    with safe_open(files[0], "pt") as before, safe_open(files[1], "pt") as after:
        names = list(before.keys())
        changed = {key for key in names if not before.get_tensor(key).equal(after.get_tensor(key))}
        assert after.metadata()["method"] == "ours"
    assert {key.split(".")[0] for key in changed} == {"layer4", "fc"}  # the last stage and the head
    assert not any("running" in key for key in changed)


def test_the_sentence_names_data_and_counts_and_the_table_is_that_of_the_rows(finished):
    run, _ = finished
    rows, table = run.rows.set_index("method"), run.table.set_index("method")
    assert list(table.index) == ["initial", "ours", "r_ill_only"]
    assert table.at["ours", "rir_mean"] == rows.at["ours", "compact_rir"]
    assert table.loc["initial", ["rir_mean", "slowdown", "immunized_compact"]].tolist() == [1, 1, 0]
    count = int(bool(rows.at["ours", "compact_success"]))
    said = run.sentence.replace("\u00a0", " ")
    assert said.startswith("On digits-8x8:0-4 → 5-9, Ours (Algorithm 1) immunizes test_resnet ")
    assert f"in {count} of 1 seeds" in said
    for name in ("accuracy", "probe_final", "convex"):
        before, after = (f"{100 * rows.at[method, name]:.1f} %" for method in ("initial", "ours"))
        assert f"{after} (θ₀: {before})" in said
    level = next(t for t in deep.figure(run).data if t.name == "θ<sub>0</sub> (not immunized), solved")
    assert [*level.y] == pytest.approx([100 * rows.at["initial", "convex"]] * 2)


def test_one_method_without_its_start_has_a_sentence(finished):
    rows = finished[0].rows.query("method == 'r_ill_only'")
    assert "Rᵢₗₗ only immunizes test_resnet" in deep.sentence(deep.table(rows))


def test_table_3_stands_beside_its_data_set_alone(finished):
    rows = finished[0].rows
    assert deep.table(rows)["published_rir_mean"].isna().all()
    cars = deep.table(rows.assign(harmful_classes=196)).set_index("method")
    assert cars.at["ours", "published_rir_mean"] == pytest.approx(3.467)


def test_an_image_that_does_not_decode_and_a_theta_0_that_solves_nothing_are_warnings(tmp_path):
    folder = paint(tmp_path / "images")
    (folder / "train" / "cat" / "3.png").write_bytes(b"broken")
    own = {"data": "images", "benign": str(folder), "harmful": "digits-8x8:5-9", "weights": "none"}
    own |= {"limit": 0, "group_size": 20, "image_size": 12, "methods": "ours", "epochs": 1}
    run = frame.run(deep, **SHORT | own | {"pretrain_epochs": 1}, **QUIET)
    assert run.rows["warnings"].str.contains(r"does not decode and is left out: .*3\.png").all()


def test_an_attack_s_table_and_figure_have_methods_of_ones_own(attacked):
    assert attacked.failures.empty
    nets = attacked.rows[attacked.rows["attacker"].isna()]
    assert [*nets["method"]] == ["initial", "ours", "log_kappa"]
    assert set(attacked.table["method"]) == {"ours", "log_kappa"}
    assert len(attacked.table) == 2 * 2 * 2  # methods, attackers, examples
    assert "Log κ" in str(deep_attackers.figure(attacked))
    known = nets.set_index("method").at["ours", "compact_rir"]
    assert set(attacked.table.query("method == 'ours'")["rir"]) == {known}
    assert attacked.sentence.count("On digits-8x8:0-4 → 5-9, test_resnet by ") == 2


def test_nets_of_a_folder_are_attacked_alike_and_closed_forms_alone_have_a_figure(attacked, tmp_path):
    deep.save_nets(attacked, tmp_path)
    given = frame.run(deep_attackers, **ATTACKS | {"models": str(tmp_path), "attackers": "ridge"}, **QUIET)
    columns = ["method", "shots", "final_theta_0", "final_theta_i"]
    mine = attacked.table.query("label == 'ridge regression, solved'")
    known = mine[columns].sort_values(columns).reset_index(drop=True)
    assert given.table[columns].sort_values(columns).reset_index(drop=True).equals(known)
    assert "those in closed form take none" in deep_attackers.figure(given).layout.title.text
    other = {"models": str(tmp_path), "attackers": "fresh-ridge", "limit": 29}
    with pytest.raises(CondnumError, match="no image is known to be fresh; leave out fresh-ridge"):
        deep_attackers.cells(**ATTACKS | other)


def test_attacks_without_their_theta_0_have_no_factor_and_a_sentence(attacked):
    rows = attacked.rows.reset_index(drop=True)
    kept = rows.index[rows["attacker"].notna() & (rows["method"] != "initial")]
    table = deep_attackers.table(rows.loc[kept], [attacked.arrays[index] for index in kept])
    assert deep_attackers.sentence(table) == "No immunized net and its θ₀ were attacked."
