"""The figure that follows a descent: what it draws is what the callback was told."""

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.two_tasks import two_tasks
from condnum.lessons.watch import PROBE_STEPS, Watch
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import linear_probe
from condnum.theory.task import Task


@pytest.mark.parametrize("static", [True, False], ids=["page", "live"])
def test_a_descent_is_drawn_while_it_runs(static, capsys):
    K_P, K_H = two_tasks(angle=45.0)
    problem = ImmunizationProblem.from_covariances(K_P, K_H)
    watch, told = Watch(problem, static=static), []
    assert watch.figure.layout.title.text == "Immunization: not started"
    before = watch.payload

    def follow(progress):
        watch(progress)
        told.append((progress.step, progress.record, progress.theta.numpy().copy()))

    result = immunize(problem, "ours", steps=20, record_every=5, seed=0, callback=follow)
    assert (watch.payload == before) is static  # the first step is drawn at once
    figure = watch.show() or watch.figure
    drawn = {trace.name: trace.y for trace in figure.data}
    assert [step for step, *_ in told] == figure.data[0].x.tolist() == [0, 5, 10, 15, 20]
    for task, K, ratio in (("benign", K_P, "(ii)"), ("harmful", K_H, "(i)")):
        kappa = result.history[f"kappa_{task}"]
        name = {"benign": "benign D<sub>P</sub>", "harmful": "harmful D<sub>H</sub>"}[task]
        np.testing.assert_allclose(drawn[f"κ, {name}"], kappa, rtol=1e-12)
        found = next(values for key, values in drawn.items() if key.startswith(f"{ratio},"))
        np.testing.assert_allclose(found, kappa / np.linalg.cond(K), rtol=1e-9)  # κ ≤ 100
        moment = K @ np.random.default_rng(0).normal(size=4)
        left = linear_probe(told[2][2], Task.of_covariance(K, moment), steps=PROBE_STEPS).norm_ratio[-1]
        assert drawn[f"norm ratio, {name}"][2] == pytest.approx(left, rel=1e-6)
