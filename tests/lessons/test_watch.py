"""The figure that follows a descent: what it draws is what the callback was told."""

import sys

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.limit import two_tasks
from condnum.lessons.watch import PROBE_STEPS, Watch
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import linear_probe
from condnum.theory.task import Task


@pytest.mark.parametrize("page", [True, False], ids=["page", "live"])
def test_a_descent_is_drawn_while_it_runs(page, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["__main__"], "static", page, raising=False)
    K_P, K_H = two_tasks(angle=45.0)
    problem = ImmunizationProblem.from_covariances(K_P, K_H)
    watch, told = Watch(problem), []
    assert watch.draw()["layout"]["title"]["text"] == "Immunization has not started"

    def follow(progress):
        watch(progress)
        told.append((progress.step, progress.theta.numpy().copy()))

    result = immunize(problem, "ours", steps=20, record_every=5, seed=0, callback=follow)
    assert bool(capsys.readouterr().out) is not page  # the first step is displayed at once
    assert (watch.show() is None) is not page
    drawn = {trace["name"]: trace for trace in watch.draw()["data"]}
    for task, K, ratio in (("P", K_P, "(ii)"), ("H", K_H, "(i)")):
        kappa, name = result.history["kappa_" + {"P": "benign", "H": "harmful"}[task]], f"D<sub>{task}</sub>"
        assert [step for step, _ in told] == drawn[f"κ, {name}"]["x"].tolist() == [0, 5, 10, 15, 20]
        np.testing.assert_allclose(drawn[f"κ, {name}"]["y"], kappa, rtol=1e-12)
        found = next(trace["y"] for key, trace in drawn.items() if key.startswith(f"{ratio},"))
        np.testing.assert_allclose(found, kappa / np.linalg.cond(K), rtol=1e-9)  # κ ≤ 100
        moment = K @ np.random.default_rng(0).normal(size=4)
        left = linear_probe(told[2][1], Task.of_covariance(K, moment), steps=PROBE_STEPS).norm_ratio[-1]
        assert drawn[f"norm ratio, {name}"]["y"][2] == pytest.approx(left, rel=1e-6)
