"""The panel of deep attacks as a study: models made or given, resume, tables, what it refuses."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from condnum.deep import Backbone, save_backbone
from condnum.deep.attack_curvature import correlations
from condnum.errors import DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.figures.deep_attacks import (
    along_figure,
    attack_curves_figure,
    place_figure,
    predicted_figure,
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
    attackers=("head-sgd", "ridge", "stage-adamw"),
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
        ({"shots": "8,many"}, InvalidInputError, "shots must be whole numbers such as 8,128,0, got '8,many'"),
        ({"shots": (1,)}, InvalidInputError, "0 for all, else at least 2"),
        ({"trials": 0}, InvalidInputError, "trials must be an integer of at least 1, got 0"),
    ],
    ids=str,
)
def test_refused(values, error, message):
    with pytest.raises(error, match=message):
        DeepAttackers(**values)


def test_a_folder_without_models_is_refused_before_anything_runs():
    with pytest.raises(DataNotFoundError, match=r"nowhere holds no theta_0.safetensors with"):
        DeepAttackers(models="nowhere").load()


class TestRun:
    def test_every_attack_meets_the_three_nets(self, finished):
        run, _ = finished
        assert not len(run.failures)
        table = run.results
        assert len(table) == 3 * 3 * 2
        assert table.groupby("net").size().to_dict() == {"ours": 6, "scratch": 6, "theta_0": 6}
        assert table["final_accuracy"].between(0, 1).all()
        assert table["rows"].isin([25, 95]).all()  # four fifths of 6 and of 24 a class
        head = table[(table["net"] == "theta_0") & (table["attacker"] == "head-sgd")]
        start = run.immunization.query("method == 'initial'")["accuracy_mean"].iloc[0]
        assert head["pretrain_accuracy"].to_numpy() == pytest.approx(start, abs=0.15)  # of fewer images
        trials = run.trials.groupby(["net", "attacker", "shots"]).size()
        assert (trials == 2).all()

    def test_factors_follow_from_the_kept_curves(self, finished):
        run, _ = finished
        factors, rows = run.factors, run.rows
        assert len(factors) == 3 * 2 * 4
        assert len(rows) == 3 * 4
        curves = run.curves.query("attacker == 'stage-adamw' and shots == 0")
        own = factors.query("attacker == 'stage-adamw' and shots == 0").set_index("share")
        for share, row in own.iterrows():
            goal = share * curves.query("net == 'theta_0'")["accuracy"].iloc[-1]
            for net, name in (("theta_0", "theta_0"), ("ours", "theta_i"), ("scratch", "scratch")):
                curve = curves[curves["net"] == net]
                over = curve["step"][curve["accuracy"] >= goal]
                assert row[f"reached_{name}"] == (len(over) > 0)
                if len(over) and over.iloc[0] > 1:
                    assert row[f"needs_{name}"] <= over.iloc[0] + 1e-9
        known = own.dropna(subset="factor")
        assert known["factor"].to_numpy() == pytest.approx(
            known["needs_theta_i"].to_numpy() / known["needs_theta_0"].to_numpy()
        )

    def test_what_is_finished_is_found_again(self, finished):
        run, folder = finished
        more = dataclasses.replace(SHORT, attackers=("head-sgd", "ridge"))
        again = more.run(out=folder, jobs=1)
        assert (again.report.computed, again.report.reused) == (0, 2 + 3 * 2 * 2 + 3 * 2)
        kept = run.factors[run.factors["attacker"] != "stage-adamw"].reset_index(drop=True)
        assert again.factors["factor"].equals(kept["factor"])

    def test_models_of_a_folder_are_attacked_alike(self, finished, tmp_path):
        run, folder = finished
        given = dataclasses.replace(SHORT, models=str(folder), methods=(), attackers=("ridge",)).run(
            out=tmp_path, jobs=1
        )
        columns = ["net", "shots", "final_accuracy", "pretrain_accuracy"]
        mine = run.results.query("attacker == 'ridge'")[columns].reset_index(drop=True)
        assert given.results[columns].reset_index(drop=True).equals(mine)
        assert not list(tmp_path.glob("*.safetensors"))

    def test_along_the_immunization(self, finished):
        run, folder = finished
        study = dataclasses.replace(SHORT, along=1, attackers=("head-sgd",), shots=(0,))
        more = study.run(out=folder, jobs=1)
        assert more.report.computed == 1 + 2  # one θ on the way, its head on both tasks
        table = more.along
        assert table["share"].unique().tolist() == [0, 0.5, 1]
        start = table[table["share"] == 0]
        assert (start["rir"] == 1).all()
        ends = run.curvature.query("net == 'ours' and part == 'head'").set_index("task")["condition"]
        kept = table[table["share"] == 1].set_index("task")["condition"]
        assert kept.to_dict() == ends.to_dict()
        assert table.groupby("share")["best_step"].max().is_monotonic_increasing
        assert len(along_figure(table, "").data) == 2  # RIR, and the head
        with pytest.raises(InvalidInputError, match="leave out models"):
            dataclasses.replace(study, curvature_rows=0)

    def test_a_single_pair_without_notes(self, tmp_path):
        for name, seed in (("theta_0", 0), ("theta_I", 1)):
            save_backbone(Backbone("test_resnet", num_classes=5, seed=seed), tmp_path / f"{name}.safetensors")
        study = dataclasses.replace(SHORT, models=str(tmp_path), methods=(), attackers=("ridge",), shots=(6,))
        run = study.run(jobs=1)
        assert set(run.results["net"]) == {"theta_0", "theta_i", "scratch"}
        assert not len(run.rows)  # one kind of rows

    def test_curvature_beside_the_attacks(self, finished):
        run, _ = finished
        table = run.curvature
        assert len(table) == 3 * 2 * 2  # nets, head and stage, both tasks
        assert (table["rows"] == 20).all()
        assert (table["largest"] >= table["smallest"]).all()
        assert table.query("part == 'head'")["resolved"].all()
        predicted = run.predicted
        assert set(predicted["attacker"]) == {"head-sgd", "stage-adamw"}
        assert (predicted["observed"] <= SHORT.steps).all()
        curve = run.curves.query("net == 'ours' and attacker == 'head-sgd' and shots == 0")
        goal = run.curves.query("net == 'theta_0' and attacker == 'head-sgd' and shots == 0")[
            "accuracy"
        ].iloc[-1]
        row = predicted.query("net == 'ours' and attacker == 'head-sgd'").iloc[0]
        assert row["reached"] == (curve["accuracy"] >= 0.9 * goal).any()
        figure = predicted_figure(predicted, "")
        assert sum(len(trace.x) for trace in figure.data) == 2 * len(predicted)
        said = deep_attacks.prediction_verdict(run.correlations)
        assert "head, sgd (2 attacks): too few attacks" in said  # without the net from scratch
        six = predicted.iloc[[0] * 6].assign(
            net="ours", observed=range(6), predicted_kappa=range(6), predicted_spectrum=range(6)
        )
        blind = six.assign(net="scratch", observed=9, predicted_kappa=1)
        said = deep_attacks.prediction_verdict(correlations(pd.concat([six, blind])))
        assert "any, any (6 attacks): curvature orders them" in said
        written = deep_attacks.curvature_table(table, run.immunization)
        assert written["net"].tolist()[::2] == [
            "θ<sub>0</sub>",
            "from scratch",
            "Ours\u00a0(Algorithm\u00a01)",
        ]

    def test_figures_and_words(self, finished):
        run, _ = finished
        labels = dict(zip(run.results["attacker"], run.results["label"], strict=True))
        figure = place_figure(run.factors, "", share=0.9)
        drawn = np.concatenate([trace.x for trace in figure.data if trace.xaxis in (None, "x")])
        known = run.factors[np.isclose(run.factors["share"], 0.9)]["factor"]
        assert np.allclose(np.sort(drawn), np.sort(known), equal_nan=True)
        curves = attack_curves_figure(run.curves, "", labels=labels)
        assert len(curves.data) == 2 * 3  # what is solved has no curve
        assert len(trials_figure(run.trials, "", labels=labels).data) == 3 * 3
        said = deep_attacks.verdict(run.factors, run.immunization, SHORT.steps)
        assert "ridge regression, solved: solved at once, with" in said
        assert said.count("<li>") == 3
        assert len(deep_attacks.factor_table(run.factors)) == 6
        assert list(deep_attacks.attacker_table(SHORT)["attacker"]) == list(SHORT.attackers)
