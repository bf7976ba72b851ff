"""The panel of deep attacks as a study: models made or given, resume, tables, what it refuses."""

import dataclasses

import numpy as np
import pytest

from condnum.deep import Backbone, save_backbone
from condnum.errors import DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.figures.deep_attacks import (
    net_curves_figure,
    predicted_figure,
    protection_figure,
    trials_figure,
)
from condnum.report import deep_attacks
from condnum.studies.deep_attackers import DeepAttackers

SHORT = DeepAttackers(
    "embedded",
    backbone=("test_resnet",),
    seeds=1,
    epochs=6,
    pretrain_epochs=2,
    limit=30,
    groups=3,
    group_size=40,
    probe_epochs=4,
    image_size=16,
    device="cpu",
    attackers=("head-sgd", "ridge", "trunk", "fresh-ridge", "stage-adamw"),
    shots=(6, 0),
    steps=12,
    trials=2,
    test_images=60,
    curvature_rows=20,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run with its store."""
    folder = tmp_path_factory.mktemp("attacks")
    run = SHORT.run(out=folder, jobs=1)
    run.save(folder)
    return run, folder


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"attackers": ("lora-adam",)}, UnknownNameError, "unknown deep attacker 'lora-adam'"),
        ({"shots": "8,many"}, InvalidInputError, "examples per class such as 8,128,0: .* got '8,many'"),
        ({"shots": (1,)}, InvalidInputError, "0 for all, else at least 2"),
        ({"models": "nowhere"}, DataNotFoundError, r"nowhere holds no theta_0.safetensors with"),
    ],
    ids=str,
)
def test_refused(values, error, message):
    with pytest.raises(error, match=message):
        DeepAttackers(**values).load()


class TestRun:
    def test_every_attack_meets_the_three_nets(self, finished):
        run, _ = finished
        assert not len(run.failures)
        table = run.tables["results"]
        of_each = {"ours": 10, "scratch": 10, "theta_0": 10, "theta_0 again": 4}  # not what is solved
        assert table.groupby("net").size().to_dict() == of_each
        assert table["rows"].isin([25, 95]).all()  # four fifths of 6 and of 24 per class

    def test_curves_are_kept_and_curvature_stands_beside_the_attacks(self, finished):
        run, _ = finished
        factors = run.tables["factors"]
        assert len(factors) == 5 * 2 * 4
        assert factors.query("attacker == 'ridge'")["factor"].isna().all()
        assert len(run.tables["curvature"]) == 3 * 2 * 2  # nets, head and stage, both tasks
        assert set(run.tables["predicted"]["attacker"]) == {"head-sgd", "stage-adamw"}

    def test_fresh_images_are_none_of_those_that_immunization_took(self):
        data = SHORT.load()
        fresh = SHORT.unused(data)
        assert not set(fresh.positions) & set(data.harmful.positions)
        assert fresh.counts == data.harmful.counts
        assert fresh.split == "train"

    def test_what_is_finished_is_found_again(self, finished):
        run, folder = finished
        more = dataclasses.replace(SHORT, attackers=("head-sgd", "ridge", "trunk"))
        again = more.run(out=folder, jobs=1)
        assert (again.report.computed, again.report.reused) == (0, 2 + (3 * 3 + 1) * 2 + 3 * 2)
        columns = ["net", "attacker", "shots", "final_accuracy"]
        kept = run.tables["results"].query("attacker in @more.attackers")[columns].reset_index(drop=True)
        assert again.tables["results"][columns].equals(kept)

    def test_models_of_a_folder_are_attacked_alike(self, finished, tmp_path):
        run, folder = finished
        given = dataclasses.replace(SHORT, models=str(folder), methods=(), attackers=("ridge",)).run(
            out=tmp_path, jobs=1
        )
        columns = ["net", "shots", "final_accuracy", "pretrain_accuracy"]
        mine = run.tables["results"].query("attacker == 'ridge'")[columns].reset_index(drop=True)
        assert given.tables["results"][columns].reset_index(drop=True).equals(mine)
        assert not list(tmp_path.glob("*.safetensors"))

    def test_a_single_pair_without_notes(self, tmp_path):
        for name, seed in (("theta_0", 0), ("theta_I", 1)):
            save_backbone(Backbone("test_resnet", num_classes=5, seed=seed), tmp_path / f"{name}.safetensors")
        study = dataclasses.replace(SHORT, models=str(tmp_path), methods=(), attackers=("ridge",), shots=(6,))
        run = study.run(jobs=1)
        assert set(run.tables["results"]["net"]) == {"theta_0", "theta_i", "scratch"}
        with pytest.raises(InvalidInputError, match="no image is known to be fresh"):
            dataclasses.replace(study, attackers=("ridge", "fresh-ridge")).load()

    def test_figures_and_words(self, finished):
        tables = finished[0].tables
        labels = dict(zip(tables["results"]["attacker"], tables["results"]["label"], strict=True))
        figure = protection_figure(tables["factors"], "", fraction=0.5)
        drawn = np.concatenate([t.x for t in figure.data if t.type == "scatter" and t.xaxis == "x"])
        stepwise = tables["factors"].query("fraction == 0.5 and examples_budget.notna()")
        assert np.allclose(np.sort(drawn), np.sort(stepwise["factor"]), equal_nan=True)
        curves = net_curves_figure(tables["curves"], "", labels=labels)
        assert {trace.xaxis for trace in curves.data} == {"x", "x2"}  # what is solved has no curve
        assert len(trials_figure(tables["trials"], "", labels=labels).data) == 5 * 3
        predicted = predicted_figure(tables["predicted"], "")
        assert sum(len(trace.x) for trace in predicted.data) == 2 * len(tables["predicted"])
        said = deep_attacks.verdict(tables["factors"], tables["immunization"])
        assert said.count("<p>") == 1
        table = deep_attacks.factor_table(tables["factors"])
        assert len(deep_attacks.accuracy_table(tables["factors"])) == len(table) == 10
        assert list(deep_attacks.attacker_table(SHORT)["attacker"]) == list(SHORT.attackers)
