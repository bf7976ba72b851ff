"""The deep experiments: what the parameters choose, a short run on digits, attacks on its nets."""

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from test_readme import PAGES, fences

from condnum.deep import Backbone, DeepSettings, Samples, evaluation_transform, load_backbone, save_backbone
from condnum.deep.measure import head_accuracy, rir_from_features
from condnum.deep.train import deep_preset, default_settings
from condnum.errors import CondnumError, DataNotFoundError
from condnum.experiments import deep, deep_attackers, frame
from condnum.experiments.deep import Choice, images_of
from condnum.methods import METHODS

NETS = {
    **dict.fromkeys(("benign", "harmful", "backbone", "weights", "methods"), ""),
    **dict.fromkeys(("steps", "limit", "image_size", "workers"), 0),
    **{"data": "embedded", "seeds": 3, "device": "cpu", "full": True},
}
PUBLISHED = NETS | {"preset": "", "pretrain_epochs": 0, "finetune_benign": 0}
PUBLISHED |= {"groups": 20, "group_size": 100}
#: Nets that are made in seconds.
SHORT = PUBLISHED | {"backbone": "test_resnet", "seeds": 1, "steps": 6, "pretrain_epochs": 2, "limit": 30}
SHORT |= {"groups": 3, "group_size": 40, "image_size": 16, "methods": "ours,r_ill_only"}
ATTACKS = {**NETS, "models": "", "backbone": "test_resnet", "attackers": "head-sgd,ridge", "full": False}
ATTACKS |= {"passes": 5, "trials": 2, "test_images": 60, "image_size": 16}
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


def test_one_rule_gives_the_settings_of_all_images_and_a_preset_those_of_table_4():
    config = choice()
    assert config.names == ("ours", "opt_kappa", "imma", "r_ill_only")
    assert config.backbone == ("test_resnet", "test_vit")
    for data in ("embedded", "mnist", "imagenette-cars"):
        assert choice(data=data).settings("ours") == DeepSettings()
    assert choice(benign="a", harmful="b", group_size=50).settings("ours") == DeepSettings(group_size=50)
    assert choice(steps=7).settings("imma") == default_settings("imma").with_overrides(steps=7)
    preset = choice(preset="vit-cars", steps=9, methods="erase,ours")
    assert preset.names == ("ours", "erase")
    assert preset.settings("ours") == deep_preset("vit-cars").with_overrides(steps=9)
    assert (choice().settings("erase").whole, choice(image_size=128).settings("erase").whole) == (True, False)
    assert choice(image_size=128).settings("erase_transformed").whole  # its images change before the trunk
    assert choice(full=False).seeds == 1


@pytest.mark.parametrize(
    ("experiment", "changes", "words"),
    [
        (deep, {"preset": "resnet18-car"}, "did you mean 'resnet18-cars'"),
        (deep, {"data": "images", "benign": "a"}, "need both tasks"),
        (deep, {"seeds": 0}, "seeds must be an integer ≥ 1, got 0"),
        (deep, {"methods": "ous"}, "unknown method 'ous'; did you mean 'ours'"),
        (deep, {"weights": "nowhere.pt"}, "nowhere.pt: there is no such file"),
        (deep, {"group_size": 2000}, "D_P without what is held out has .* fewer than one group of 2000"),
        (deep_attackers, {"attackers": "lora-adam", "full": True}, "unknown deep attacker 'lora-adam'"),
        (deep_attackers, {"models": "nowhere"}, "nowhere has no theta_0.safetensors with"),
        (
            deep_attackers,
            {"models": "x", "weights": "none"},
            "--weights has no effect on the nets of --models",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_fix(experiment, changes, words):
    with pytest.raises(CondnumError, match=words):
        experiment.cells(**(ATTACKS if experiment is deep_attackers else SHORT) | changes)


def test_photographs_that_are_not_here_say_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = choice(data="imagenette-cars", group_size=4)
    assert (config.backbone, config.weights) == (("tf_efficientnet_lite0",), "bundled")
    with pytest.raises(DataNotFoundError, match=r"no folder imagenette here or in .*CONDNUM_DATA .*train/CL"):
        config.cells()
    assert choice(data="auto").data == "embedded"
    for name in ("imagenette", "cars"):
        paint(tmp_path / name, ("n01443537", "n01484850"), count=8)
    assert choice(data="auto").data == "imagenette-cars"
    assert choice(data="auto", full=False).data == "embedded"


def test_images_that_choose_are_none_of_those_that_train():
    sets = choice(limit=30).sets
    assert [len(sets[name]) for name in deep.SETS] == [120, 30, 144, 120, 30, 146]
    assert not {*sets["benign"].positions} & {*sets["benign_held"].positions}
    assert deep.checksum(**PUBLISHED | {"limit": 30}) != deep.checksum(**PUBLISHED | {"limit": 29})


def test_a_loaded_head_is_kept_where_it_has_the_classes_of_d_p(tmp_path):
    root = paint(tmp_path / "images", count=6)
    own = {"benign": str(root), "harmful": "digits-8x8:5-9", "backbone": "test_resnet", "group_size": 10}
    for classes, made in ((2, "as loaded"), (10, "new head")):
        file = save_backbone(
            Backbone("test_resnet", num_classes=classes), tmp_path / f"{classes}.safetensors"
        )
        config = choice(**own, weights=str(file))
        assert config.net("test_resnet")[1] == made
        assert config.net("test_resnet")[0]["num_classes"] == 2
    assert choice(**own, weights=str(file), finetune_benign=1).net("test_resnet")[1] == "trained"


def test_accuracy_and_ratios_are_those_of_the_saved_nets(finished):
    run, folder = finished
    files = [folder / "test_resnet" / "seed-0" / name for name in ("theta_0", "ours/theta_I")]
    files = [file.with_suffix(".safetensors") for file in files]
    nets = [load_backbone(file) for file in files]
    transform = evaluation_transform(nets[0], input_size=16, crop_pct=1.0)
    row, sets = run.rows.set_index("method").loc["ours"], images_of(**run.rows["images"].iloc[0])
    samples = {name: Samples(sets[name], transform) for name in deep.SETS}
    assert head_accuracy(nets[1], samples["benign_test"].features(nets[1])) == row["accuracy"]
    known = {file.stem: np.load(file) for file in files[0].with_name("features").glob("*.npy")}
    assert np.array_equal(known["y_H"], np.r_[sets["harmful"].labels, sets["harmful_test"].labels])
    features = [samples[name].features(net) for name in ("benign", "harmful") for net in nets]
    again = rir_from_features(*features, groups=3, group_size=40)
    assert row["compact_rir"] == pytest.approx(again.rir, rel=1e-4)
    assert row["averaged_rir"] == pytest.approx(again.averaged.rir, rel=1e-4)
    with safe_open(files[0], "pt") as before, safe_open(files[1], "pt") as after:
        names = list(before.keys())
        changed = {key for key in names if not before.get_tensor(key).equal(after.get_tensor(key))}
        assert after.metadata()["method"] == "ours"
    assert {key.split(".")[0] for key in changed} <= {"layer4", "fc"}  # the last stage and the head
    assert not any("running" in key for key in changed)


def test_the_sentence_names_data_and_counts_and_the_table_is_that_of_the_rows(finished):
    run, _ = finished
    rows, table = run.rows.set_index("method"), run.table.set_index("method")
    assert list(table.index) == ["initial", "ours", "r_ill_only"]
    assert table.at["ours", "rir_mean"] == rows.at["ours", "compact_rir"]
    assert table.loc["initial", ["rir_mean", "averaged_rir_mean", "slowdown"]].tolist() == [1, 1, 1]
    again = run.arrays[0]["again"]
    lost = 1 - again[1:] / run.arrays[0]["probe"][1:]
    assert table.at["initial", "rfd_mean"] == pytest.approx(100 * np.abs(lost).mean())  # A against A
    assert table.at["initial", "rfd_signed_mean"] == pytest.approx(100 * lost.mean())
    count = int(bool(rows.at["ours", "compact_success"]))
    said = run.sentence.replace("\u00a0", " ")
    assert said.startswith("On digits-8x8:0-4 → 5-9, Ours (Algorithm 1) immunizes test_resnet ")
    assert f"in {count} of 1 seeds" in said
    for name in ("accuracy", "probe_50"):
        before, after = (f"{100 * rows.at[method, name]:.1f} %" for method in ("initial", "ours"))
        assert f"{after} (θ₀: {before})" in said
    level = next(t for t in deep.figure(run).data if t.name == "θ<sub>0</sub> (not immunized), solved")
    assert [*level.y] == pytest.approx([100 * rows.at["initial", "ridge"]] * 2)
    alone = deep.table(run.rows.query("method == 'r_ill_only'"))
    assert "Rᵢₗₗ only immunizes test_resnet" in deep.sentence(alone)


def test_table_3_stands_beside_its_data_set_alone(finished):
    rows = finished[0].rows
    assert deep.table(rows)["published_rir_mean"].isna().all()
    cars = deep.table(rows.assign(harmful_classes=196)).set_index("method")
    assert cars.at["ours", "published_rir_mean"] == pytest.approx(3.467)


def test_an_image_that_does_not_decode_is_a_warning(tmp_path):
    folder = paint(tmp_path / "images")
    (folder / "train" / "cat" / "3.png").write_bytes(b"broken")
    own = {
        "benign": str(folder),
        "harmful": "digits-8x8:5-9",
        "weights": "none",
        "methods": "ours",
        "limit": 0,
    }
    run = frame.run(deep, **SHORT | own | {"group_size": 20, "image_size": 12, "pretrain_epochs": 1}, **QUIET)
    assert run.failures.empty
    assert run.rows["warnings"].str.contains(r"does not decode and is left out: .*3\.png").all()


def test_attacks_stand_by_defense_beside_a_against_a_and_from_scratch(attacked):
    assert attacked.failures.empty
    nets = attacked.rows[attacked.rows["attacker"].isna()]
    assert [*nets["method"]] == ["initial", "ours", "log_kappa"]
    table = attacked.table
    assert len(table) == 2 * 3  # methods, attackers
    assert table[["final_mean", "final_initial", "final_scratch"]].notna().all().all()
    solved = table["label"].str.contains("solved")
    assert table.loc[solved, "final_again"].isna().all()  # nothing is drawn
    assert table.loc[~solved, ["after_1", "after_5", "final_again"]].notna().all().all()
    assert (table.loc[~solved, "after_5"] == table.loc[~solved, "final_mean"]).all()
    wanted = 100 * (1 - table["final_mean"] / table["final_initial"])
    assert table["sgrc_mean"].to_numpy() == pytest.approx(wanted.to_numpy())
    assert "Log κ" in str(deep_attackers.figure(attacked))
    known = nets.set_index("method").at["ours", "compact_rir"]
    assert set(table.query("method == 'ours'")["rir"]) == {known}
    assert attacked.sentence.count("On digits-8x8:0-4 → 5-9, test_resnet by ") == 2


def test_nets_of_a_folder_are_attacked_alike(attacked, tmp_path):
    deep.save_nets(attacked, tmp_path)
    given = frame.run(deep_attackers, **ATTACKS | {"models": str(tmp_path)}, **QUIET)
    columns = ["method", "label", "final_initial", "final_mean", "final_scratch"]
    found = [run.table[columns].sort_values(columns[:2]).reset_index(drop=True) for run in (given, attacked)]
    assert found[0].equals(found[1])


def test_nothing_attacked_has_a_sentence(finished):
    assert deep_attackers.sentence(deep_attackers.table(finished[0].rows)) == (
        "No immunized net and its θ₀ were attacked."
    )


def test_photographs_that_are_missing_are_said_before_anything_runs():
    with pytest.raises(DataNotFoundError, match="no folder"):
        deep.cells(**PUBLISHED | {"benign": "nowhere", "harmful": "nowhere"})
