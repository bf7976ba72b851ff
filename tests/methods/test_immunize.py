"""`immunize` and its loop: every method on every kind of problem, methods of one's own, settings."""

import math
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import KINDS, orthogonal, random_problem
from threadpoolctl import threadpool_limits

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import (
    PRESETS,
    DescentSettings,
    Gradients,
    ImmunizationProblem,
    get_method,
    immunize,
    method_names,
)
from condnum.theory.kappa import hessian, relative_immunization_ratio
from condnum.theory.limits import pareto_immunizer
from condnum.theory.regularizers import r_ill, r_well

CLOSED_FORMS = {"identity", "initial", "max_rir", "pareto", "erase"}
DESCENTS = [name for name in method_names() if name not in CLOSED_FORMS]
RECORDED = ["step", "loss", "r_well", "r_ill", "kappa_benign", "kappa_harmful"]
GD = {"optimizer": "gd", "schedule": "constant"}


def run(problem, method, **options):
    """Run a method, with few steps if it takes any."""
    return immunize(problem, method, **({} if method in CLOSED_FORMS else {"steps": 20} | options), seed=3)


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_runs(method, kind):
    """The same θ twice, whatever the global generator; history and verdict are those of θ as it is."""
    problem = random_problem(**KINDS[kind])
    needs = getattr(get_method(method), "needs", ())
    if needs and kind == "no-targets":
        with pytest.raises(InvalidInputError, match=f"'{method}' needs targets, but y_{needs[0]}"):
            run(problem, method)
        return
    state, result = torch.get_rng_state(), run(problem, method)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(run(problem, method).theta, result.theta)
    assert result.theta.shape == (6, 6)
    assert not result.theta.requires_grad
    assert (method == "erase") == (not result.theta[:, -1].any())  # through a bottleneck
    assert (result.method, result.seed) == (method, 3)
    expected = ("closed_form", 0, True) if method in CLOSED_FORMS else ("steps", 20, False)
    assert (result.stop_reason, result.steps, result.converged) == expected
    assert list(result.history)[:6] == RECORDED
    without = kind == "no-targets" or method in CLOSED_FORMS or method in ("opt_kappa", "r_ill_only")
    assert (result.omega is None) == np.isnan(result.history["loss"]).all() == without
    measured = relative_immunization_ratio(result.theta, problem.benign, problem.harmful)
    assert result.verdict.rir == measured.rir
    assert f"Definition 3.1 is {result.verdict.verdict}" in repr(result)
    if method == "erase":
        return
    for name, task, of in (("well", problem.benign, r_well), ("ill", problem.harmful, r_ill)):
        H = torch.as_tensor(hessian(result.theta, task))
        value = of(H) if name == "well" else of(H, rank=task.rank)
        assert result.history[f"r_{name}"][-1] == pytest.approx(float(value), rel=1e-7)
        sigma, which = torch.linalg.eigvalsh(H), "benign" if name == "well" else "harmful"
        kappa = float(sigma[-1] / sigma[-task.rank])
        assert result.history[f"kappa_{which}"][-1] == pytest.approx(kappa, rel=1e-7)


@pytest.mark.parametrize("method", method_names())
def test_renaming_or_reordering_classes_changes_no_number(method):
    """Up to the order in which rounded products are summed."""
    first, *others = (run(random_problem(classes=True, order=of), method) for of in ("abc", "cab", "yzx"))
    for other in others:
        torch.testing.assert_close(other.theta, first.theta, rtol=1e-7, atol=1e-9)
        assert other.verdict.rir == pytest.approx(first.verdict.rir, rel=1e-6)


def test_a_seed_gives_the_same_digits_for_any_number_of_threads():
    """At dimensions where BLAS would share its sums among threads."""
    X, Y = (np.random.default_rng(i).normal(size=(300, 160)) * np.geomspace(1, 9, 160) for i in (1, 2))
    problem = ImmunizationProblem.from_covariances(X.T @ X, Y.T @ Y)
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        with threadpool_limits(threads):
            torch.set_num_threads(threads)
            found.append(immunize(problem, "ours", steps=30, record_every=0).theta)
            assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("seed", [0, 1])
def test_algorithm_1_immunizes_random_pairs(seed):
    """Full-rank 12-dimensional pairs with κ(K_P) near 1e4 and κ(K_H) near 10, skew to each other."""
    rng, parts = np.random.default_rng(seed), []
    for kappa in (1e4, 10.0):
        X = rng.normal(size=(40, 12)) * np.geomspace(1, kappa**-0.5, 12) @ orthogonal(rng, 12).T
        parts += [X, X @ rng.normal(size=(12, 1))]
    result = immunize(ImmunizationProblem.from_data(*parts), "ours", seed=seed, steps=500, ratio=1.0)
    assert result.verdict.harmful_ratio > 100
    assert 1 < result.verdict.rir <= result.limit
    assert result.verdict.clauses.fit_kept


def test_the_default_is_the_closed_form_and_algorithm1_is_ours():
    problem = random_problem()
    plain, again = immunize(problem), immunize(problem, seed=7, steps=3)
    np.testing.assert_array_equal(plain.theta, pareto_immunizer(problem.benign, problem.harmful))
    assert (plain.settings, torch.equal(plain.theta, again.theta)) == (None, True)
    assert get_method("algorithm1") is get_method("ours") is get_method(get_method("ours"))


@dataclass(frozen=True)
class Pace:
    """Settings of one's own: what it lacks is as in `DescentSettings`."""

    steps: int = 3
    record_every: int = 1
    pull: float = 1.0


class Shrink:
    """Descends pull·½‖θ‖² from I: ten lines and no base class."""

    name = "shrink"
    defaults = Pace()

    def initial(self, problem, generator):
        return {"theta": np.eye(problem.dimension, dtype=np.float32)}

    def gradients(self, problem, parameters, settings):
        return Gradients({"self": getattr(settings, "pull", 1.0) * parameters["theta"]})


class Plain(Shrink):
    """The same with the settings of the others."""

    defaults = DescentSettings()


class TestOwn:
    def test_settings_of_ones_own(self):
        one, two = (immunize(random_problem(), Shrink(), **of) for of in ({}, {"steps": 5, "pull": 2.0}))
        assert (one.settings, two.settings, two.steps) == (Pace(), Pace(steps=5, pull=2.0), 5)
        assert two.history["norm_self"][0] == pytest.approx(2 * 6**0.5)
        with pytest.raises(UnknownNameError, match="unknown setting 'learning_rate'"):
            immunize(random_problem(), Shrink(), learning_rate=1.0)
        with pytest.raises(InvalidInputError, match="'shrink' takes Pace, got DescentSettings"):
            immunize(random_problem(), Shrink(), settings=DescentSettings())

    def test_steps_by_hand(self):
        result = immunize(random_problem(), Plain(), steps=3, learning_rate=0.5, **GD)
        torch.testing.assert_close(result.theta, torch.eye(6).double() / 8)
        assert list(result.history["norm_self"]) == pytest.approx([6**0.5 / 2**i for i in (0, 1, 2, 2)])
        assert result.part_weights == {"self": 1.0}
        cosine = immunize(random_problem(), Plain(), steps=2, learning_rate=0.5, optimizer="gd").theta
        torch.testing.assert_close(cosine, torch.eye(6).double() * 0.5 * 0.75)  # η = 0.5, then 0.25

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (object(), r"is not a method: pass an object with a name and initial"),
            (Shrink, "is not a method"),
            (SimpleNamespace(name="bare", initial=Shrink().initial, defaults=Pace()), "no gradients"),
            (SimpleNamespace(name="b", initial=lambda *_: {"theta": np.full((6, 6), np.inf)}), "theta of"),
            (SimpleNamespace(name="b", initial=Shrink().initial, defaults={"a": 3}), "must be a dataclass"),
        ],
    )  # fmt: skip
    def test_what_is_missing_is_named(self, method, message):
        with pytest.raises(InvalidInputError, match=message):
            immunize(random_problem(), method)


class TestLoop:
    @pytest.mark.parametrize("method", DESCENTS)
    def test_a_step_beyond_the_floats_is_taken_back(self, method):
        fixed = {} if method == "imma" else {"weights": "fixed"}  # IMMA's gradient has one part
        told = []
        result = immunize(
            random_problem(), method, steps=60, learning_rate=1e300, callback=told.append, **fixed, **GD
        )
        assert bool(torch.isfinite(result.theta).all())
        assert result.stop_reason == "diverged"
        assert result.history["step"][-1] == result.steps == told[-1].step

    def test_the_callback_sees_each_record_with_the_last_one_and_may_cancel(self):
        told = []
        result = immunize(random_problem(), "ours", steps=10, record_every=3, callback=told.append, seed=5)
        assert [at.step for at in told] == [0, 3, 6, 9, 10] == result.history["step"].tolist()
        assert {(at.method, at.seed, at.steps) for at in told} == {("ours", 5, 10)}
        assert [at.record["r_ill"] for at in told] == result.history["r_ill"].tolist()
        assert list(result.history) == [*RECORDED, "norm_well", "norm_ill", "norm_supervised"]
        cut = immunize(
            random_problem(), "r_ill_only", steps=100, record_every=1, callback=lambda at: at.step == 7
        )
        assert (cut.stop_reason, cut.steps, cut.converged) == ("cancelled", 7, False)
        assert cut.history["step"].tolist() == list(range(8))

    def test_theta_is_shown_at_watched_steps_without_being_measured(self):
        def shown(**options):
            seen = []
            told = {"callback": lambda at: seen.append((at.step, at.record, at.theta.clone()))}
            immunize(random_problem(), "ours", steps=9, **told, **options)
            return seen

        watched, recorded = shown(record_every=0, callback_steps=[0, 2, 9]), shown(record_every=1)
        assert [step for step, _, _ in watched] == [0, 2, 9]
        for step, record, theta in watched:
            assert record == {}
            assert torch.equal(theta, recorded[step][2])


class TestSettings:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"optimizer": "adm"}, UnknownNameError, "unknown optimizer 'adm'.*mean 'adam'"),
            ({"learning_rate": 0.0}, InvalidInputError, "a positive number, got 0.0"),
            ({"ratio": math.inf}, InvalidInputError, "ratio.*got inf"),
            ({"loss_weight": -1e-9}, InvalidInputError, "number of at least 0, got -1e-09"),
            ({"steps": 2.5}, InvalidInputError, "steps must be an integer.*got 2.5"),
            ({"seed": -1}, InvalidInputError, "seed must be an integer ≥ 0, got -1"),
            ({"settings": "mnst"}, UnknownNameError, "mean 'mnist'"),
            ({"settings": Pace()}, InvalidInputError, "'ours' takes DescentSettings, got Pace"),
        ],
    )
    def test_refused_where_immunize_takes_them_in(self, values, error, message):
        with pytest.raises(error, match=message):
            immunize(random_problem(), "ours", **values)

    @pytest.mark.parametrize("targets", [True, False])
    def test_naming_a_default_changes_nothing_and_what_has_no_effect_is_ignored(self, targets):
        problem, idle = random_problem(targets=targets), {"lambda_harmful": 123.0, "inner_steps": np.int64(2)}
        plain = immunize(problem, "ours", steps=8)
        for given in (asdict(DescentSettings()), idle, {} if targets else {"loss_weight": 2.0}):
            assert torch.equal(immunize(problem, "ours", **given | {"steps": 8.0}).theta, plain.theta)
        by_name = immunize(problem, "ours", settings="house-prices", steps=2).settings
        assert asdict(by_name) == asdict(PRESETS["house-prices"]) | {"steps": 2}

    @pytest.mark.parametrize(
        ("method", "weight", "mode"),
        [("ours", "loss_weight", {}), ("r_ill_only", "lambda_benign", {"weights": "fixed"})],
    )
    def test_a_weight_of_zero_leaves_a_part_out(self, method, weight, mode):
        without = immunize(random_problem(targets=False), method, steps=30, **mode)
        found = immunize(random_problem(), method, steps=30, **{weight: 0}, **mode)
        assert torch.equal(found.theta, without.theta)


def test_covariances_at_the_ends_of_float64():
    """The closed form does not see their scale, and the joint descent leaves finite numbers behind."""
    K = np.diag([100.0, 1.0, 3.0]), np.diag([2.0, 1.0, 5.0])
    plain = immunize(ImmunizationProblem.from_covariances(*K), seed=1)
    for scale in (1e-150, 1e150):
        problem = ImmunizationProblem.from_covariances(*(scale * k for k in K))
        assert immunize(problem, seed=1).verdict.rir == pytest.approx(plain.verdict.rir, rel=1e-6)
        assert bool(torch.isfinite(immunize(problem, "ours", seed=1, steps=20).theta).all())
