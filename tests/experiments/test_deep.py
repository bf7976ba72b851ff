"""The deep experiments: what the parameters choose, a short run on digits, attacks on its nets."""

import numpy as np
import pytest
from safetensors import safe_open
from test_readme import PAGES, fences

from condnum.deep import Backbone, DeepSettings, Samples, evaluation_transform, load_backbone, save_backbone
from condnum.deep.measure import head_accuracy, rir_from_features
from condnum.deep.train import deep_preset, default_settings
from condnum.errors import DataNotFoundError
from condnum.experiments import deep, deep_attackers
from condnum.experiments.deep import Choice, images_of
from condnum.methods import METHODS

from .conftest import SMALL, finished, run


def choice(**changes):
    """The parameters of an experiment as they stand in its notebook, but for changes."""
    plain = {"methods": "", "backbone": "", "limit": 0, "steps": 0, "seeds": 3, "image_size": 0}
    plain |= {"pretrain_epochs": 0, "groups": 20, "group_size": 100}
    return Choice(**SMALL[deep] | plain | changes)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A short run of attacks; the second method is that of the guide, in a file of its own."""
    file = tmp_path_factory.mktemp("own") / "log_kappa_of_nets.py"
    file.write_text(fences(PAGES["condnum/site/pages/howto/own_method.md"], "python")[0], encoding="utf-8")
    yield run(deep_attackers, methods=f"ours,{file}")
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


def test_photographs_that_are_not_here_say_what_to_put_where(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = choice(data="imagenette-cars", group_size=4)
    assert (config.backbone, config.weights) == (("tf_efficientnet_lite0",), "bundled")
    with pytest.raises(DataNotFoundError, match=r"no folder imagenette here or in .*CONDNUM_DATA .*train/CL"):
        config.cells()
    assert choice(data="auto").data == "embedded"
    for name in ("imagenette", "cars"):
        folder(classes=("n01443537", "n01484850"), root=tmp_path / name)
    assert choice(data="auto").data == "imagenette-cars"
    assert choice(data="auto", full=False).data == "embedded"


def test_images_that_choose_are_none_of_those_that_train():
    sets = choice(limit=30).sets
    assert [len(sets[name]) for name in deep.SETS] == [120, 30, 144, 120, 30, 146]
    assert not {*sets["benign"].positions} & {*sets["benign_held"].positions}
    assert deep.checksum(**SMALL[deep]) != deep.checksum(**SMALL[deep] | {"limit": 29})


def test_a_loaded_head_is_kept_where_it_has_the_classes_of_d_p(folder, tmp_path):
    own = {"benign": str(folder()), "harmful": "digits-8x8:5-9", "backbone": "test_resnet", "group_size": 8}
    for classes, made in ((2, "as loaded"), (10, "new head")):
        net = Backbone("test_resnet", num_classes=classes)
        file = save_backbone(net, tmp_path / f"{classes}.safetensors")
        options, head = choice(**own, weights=str(file)).net("test_resnet")
        assert (options["num_classes"], head) == (2, made)
    assert choice(**own, weights=str(file), finetune_benign=1).net("test_resnet")[1] == "trained"


def test_accuracy_and_ratios_are_those_of_the_saved_nets(tmp_path):
    found = finished(deep)
    deep.save_nets(found, tmp_path)
    files = [tmp_path / "test_resnet" / "seed-0" / name for name in ("theta_0", "ours/theta_I")]
    files = [file.with_suffix(".safetensors") for file in files]
    nets = [load_backbone(file) for file in files]
    transform = evaluation_transform(nets[0], input_size=16, crop_pct=1.0)
    row, sets = found.rows.set_index("method").loc["ours"], images_of(**found.rows["images"].iloc[0])
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


def test_the_sentence_names_data_and_counts_and_the_table_is_that_of_the_rows():
    found = finished(deep)
    rows, table = found.rows.set_index("method"), found.table.set_index("method")
    assert list(table.index) == ["initial", "ours", "r_ill_only"]
    assert table.at["ours", "rir_mean"] == rows.at["ours", "compact_rir"]
    assert table.loc["initial", ["rir_mean", "averaged_rir_mean", "slowdown"]].tolist() == [1, 1, 1]
    again = found.arrays[0]["again"]
    lost = 1 - again[1:] / found.arrays[0]["probe"][1:]
    assert table.at["initial", "rfd_mean"] == pytest.approx(100 * np.abs(lost).mean())  # A against A
    count = int(bool(rows.at["ours", "compact_success"]))
    said = found.sentence.replace("\u00a0", " ")
    assert said.startswith("On digits-8x8:0-4 → 5-9, Ours (Algorithm 1) immunizes test_resnet ")
    assert f"in {count} of 1 seeds" in said
    for name in ("accuracy", "probe_50"):
        before, after = (f"{100 * rows.at[method, name]:.1f} %" for method in ("initial", "ours"))
        assert f"{after} (θ₀: {before})" in said


def test_an_image_that_does_not_decode_is_a_warning(folder):
    root = folder(count=40)
    (root / "train" / "cat" / "3.png").write_bytes(b"broken")
    own = {"benign": str(root), "weights": "none", "methods": "ours", "limit": 0, "group_size": 20}
    found = run(deep, harmful="digits-8x8:5-9", image_size=12, pretrain_epochs=1, **own | {"groups": 2})
    assert found.failures.empty
    assert found.rows["warnings"].str.contains(r"does not decode and is left out: .*3\.png").all()


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
    given = run(deep_attackers, models=str(tmp_path), methods="")
    columns = ["method", "label", "final_initial", "final_mean", "final_scratch"]
    found = [of.table[columns].sort_values(columns[:2]).reset_index(drop=True) for of in (given, attacked)]
    assert found[0].equals(found[1])
