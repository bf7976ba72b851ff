"""`immunize` and its loop: every method, seeds, weights, history, stopping, and that it works."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from covariances import orthogonal

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import (
    PRESETS,
    DescentSettings,
    Method,
    get_method,
    immunize,
    method_names,
)
from condnum.methods.method import Gradients
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import Settings
from condnum.theory.kappa import hessian, relative_immunization_ratio
from condnum.theory.limits import pareto_immunizer
from condnum.theory.regularizers import r_ill, r_well

CLOSED_FORMS = {"identity", "initial", "max_rir", "pareto", "erase"}
DESCENTS = [name for name in method_names() if name not in CLOSED_FORMS]
RECORDED = ["step", "loss", "r_well", "r_ill", "kappa_benign", "kappa_harmful"]
KINDS = {
    "mse": {},
    "bce": {"loss": "bce"},
    "singular": {"rank": 4},
    "two-outputs": {"outputs": 2},
    "covariances": {"targets": False},
}
GD = {"optimizer": "gd", "schedule": "constant"}


def run(problem, method, **options):
    """Run a method, with few steps if it takes any."""
    return immunize(problem, method, **({} if method in CLOSED_FORMS else {"steps": 20} | options), seed=3)


@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_runs(method, kind, make_problem):
    problem = make_problem(**KINDS[kind])
    missing = ", ".join(f"y_{task[0].upper()}" for task in get_method(method).needs)
    if missing and kind == "covariances":
        said = f"method '{method}' needs targets, but {missing} are missing"
        with pytest.raises(InvalidInputError, match=said):
            run(problem, method)
        return
    result = run(problem, method)
    assert result.theta.shape == (6, 6)
    assert (method == "erase") == (not result.theta[:, -1].any())  # through a bottleneck
    assert bool(torch.isfinite(result.theta).all())
    assert not result.theta.requires_grad
    assert (result.method, result.seed) == (method, 3)
    expected = ("closed_form", 0, True) if method in CLOSED_FORMS else ("steps", 20, False)
    assert (result.stop_reason, result.steps, result.converged) == expected
    assert list(result.history)[:6] == RECORDED
    without = kind == "covariances" or method in CLOSED_FORMS or method in ("opt_kappa", "r_ill_only")
    assert (result.omega is None) == np.isnan(result.history["loss"]).all() == without
    measured = relative_immunization_ratio(result.theta, problem.benign, problem.harmful)
    assert result.verdict.rir == measured.rir
    assert result.verdict.verdict in result.explanation
    assert "Ridge convention" in result.explanation
    assert len(repr(result).splitlines()) <= 8


@pytest.mark.parametrize("make", [immunize, lambda both: ImmunizationProblem(*both)], ids=["pair", "tasks"])
def test_arrays_are_not_a_problem(make):
    with pytest.raises(InvalidInputError, match=r"from_data\(X_P, y_P, X_H, y_H\)"):
        make((np.eye(2), np.eye(2)))


@pytest.mark.parametrize("method", method_names())
def test_deterministic_per_seed_and_the_global_generator_is_untouched(method, make_problem):
    problem = make_problem()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = run(problem, method)
    torch.rand(3)
    torch.manual_seed(0)
    second = run(problem, method)
    assert torch.equal(first.theta, second.theta)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_gives_the_same_digits_for_any_number_of_threads():
    """At dimensions where BLAS would share its sums among threads."""
    from threadpoolctl import threadpool_limits

    X, Y = (
        np.random.default_rng(seed).standard_normal((300, 160)) * np.geomspace(1, 9, 160) for seed in (1, 2)
    )
    problem = ImmunizationProblem.from_covariances(X.T @ X, Y.T @ Y)
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        with threadpool_limits(threads):
            torch.set_num_threads(threads)
            found.append(immunize(problem, "ours", steps=30, record_every=0).theta)
            assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_theta_0_is_uniform_and_differs_by_seed(make_problem):
    draws = [immunize(make_problem(), "initial", seed=seed).theta for seed in range(10)]
    values = torch.stack(draws).flatten()
    # Uniform in ±1/√6: variance 1/18; 360 draws know it to about 5 %.
    assert float(values.abs().max()) <= 6**-0.5
    assert float(values.var()) == pytest.approx(1 / 18, rel=0.3)
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_joint_descent_immunizes_random_pairs(seed):
    """Full-rank 12-dimensional pairs with κ(K_P) near 1e4 and κ(K_H) near 10, skew to each other."""
    rng = np.random.default_rng(seed)
    parts = []
    for kappa in (1e4, 10.0):
        X = rng.normal(size=(40, 12)) * np.geomspace(1, kappa**-0.5, 12) @ orthogonal(rng, 12).T
        parts += [X, X @ rng.normal(size=(12, 1))]
    problem = ImmunizationProblem.from_data(*parts)
    start = immunize(problem, "initial", seed=seed).verdict
    result = immunize(problem, "ours", seed=seed, steps=500, ratio=1.0)
    assert max(1, 5 * start.rir) < result.verdict.rir <= result.limit
    assert result.verdict.harmful_ratio > 100
    assert result.verdict.clauses.fit_kept


def test_the_default_is_the_closed_form(make_problem):
    problem = make_problem()
    plain, again = immunize(problem), immunize(problem, seed=7)
    assert (plain.method, plain.settings, plain.stop_reason) == ("pareto", None, "closed_form")
    np.testing.assert_array_equal(plain.theta, pareto_immunizer(problem.benign, problem.harmful))
    assert torch.equal(plain.theta, again.theta)


#: What has an effect on `ours` with balanced weights.
NOT_OURS = {"lambda_benign", "lambda_harmful", "convention", "inner_steps", "inner_rate"}
DEFAULTS = {name: of for name, of in asdict(DescentSettings()).items() if name not in NOT_OURS}


@pytest.mark.parametrize("given", [*({name: of} for name, of in DEFAULTS.items()), DEFAULTS], ids=str)
@pytest.mark.parametrize("targets", [True, False], ids=["targets", "covariances"])
def test_naming_a_default_changes_nothing(given, targets, make_problem):
    """`ours` is one algorithm, the joint descent, whether settings are given or not."""
    problem = make_problem(targets=targets)
    given = given if targets else {name: of for name, of in given.items() if name != "loss_weight"}
    plain, same = (immunize(problem, "ours", **options | {"steps": 8}) for options in ({}, given))
    assert torch.equal(same.theta, plain.theta)
    assert same.settings == plain.settings == DescentSettings(steps=8)
    assert same.settings.describe([*same.part_weights]) in same.explanation
    assert plain.verdict.verdict in plain.explanation


@pytest.mark.parametrize(
    ("method", "weight", "mode"),
    [
        ("ours", "loss_weight", {}),
        ("r_ill_only", "lambda_benign", {"weights": "fixed"}),
    ],
    ids=str,
)
def test_a_weight_of_zero_leaves_a_part_out(method, weight, mode, make_problem):
    """That of the loss is the descent without targets; where there is no such part, nothing changes."""
    without = immunize(make_problem(targets=False), method, steps=30, **mode)
    for targets in (True, False):
        found = immunize(make_problem(targets=targets), method, steps=30, **{weight: 0}, **mode)
        assert torch.equal(found.theta, without.theta)


class Constant(Method):
    """A method whose gradient in θ is a fixed matrix of ones."""

    name, label, summary, defaults = "constant", "Constant", "for tests", DescentSettings()

    def initial(self, problem, generator):
        return {"theta": torch.eye(problem.dimension).double()}

    def gradients(self, problem, parameters, settings):
        return Gradients({"ones": torch.ones_like(parameters["theta"])})


class Shrink(Constant):
    """A method whose gradient is θ: descent of ½‖θ‖²."""

    name = "shrink"

    def gradients(self, problem, parameters, settings):
        return Gradients({"self": parameters["theta"].clone()})


class TestLoop:
    def test_a_method_of_ones_own_in_a_few_lines(self, make_problem):
        result = immunize(make_problem(), Shrink(), steps=3, learning_rate=0.5, **GD)
        torch.testing.assert_close(result.theta, torch.eye(6).double() / 8)
        assert list(result.history["norm_self"]) == pytest.approx([6**0.5 / 2**i for i in (0, 1, 2, 2)])
        assert result.part_weights == {"self": 1.0}

    def test_cosine_schedule(self, make_problem):
        result = immunize(make_problem(), Constant(), steps=4, learning_rate=0.1, optimizer="gd")
        # ½(1 + cos(πt/4)) for t = 0 … 3 sums to 2 + ½.
        torch.testing.assert_close(result.theta, torch.eye(6).double() - 0.25)

    def test_a_step_beyond_the_floats_is_taken_back(self, make_problem):
        # 1 − 1e308 is finite, 1 − 2e308 is not; Xθ is not either, so that κ of it is unknown.
        result = immunize(make_problem(), Constant(), steps=9, learning_rate=1e308, **GD)
        assert (result.stop_reason, result.steps) == ("diverged", 1)
        assert float(result.theta[0, 0]) == pytest.approx(-1e308)
        assert result.history["step"].tolist() == [0, 1]
        assert result.history["kappa_harmful"][-1] == math.inf

    @pytest.mark.parametrize("method", DESCENTS)
    def test_divergence_of_real_methods(self, method, make_problem):
        fixed = {} if method == "imma" else {"weights": "fixed"}  # IMMA's gradient has one part
        result = immunize(make_problem(), method, steps=60, learning_rate=1e300, **fixed, **GD)
        assert bool(torch.isfinite(result.theta).all())
        assert result.history["step"][-1] == result.steps
        assert result.stop_reason == "diverged"

    def test_a_callback_sees_each_record_and_may_cancel(self, make_problem):
        seen = []
        result = immunize(make_problem(), "ours", steps=10, record_every=3, callback=seen.append, seed=5)
        assert [progress.step for progress in seen] == [0, 3, 6, 9]
        assert {(progress.method, progress.seed, progress.steps) for progress in seen} == {("ours", 5, 10)}
        assert seen[1].record["kappa_harmful"] == result.history["kappa_harmful"][1]
        every = {"steps": 100, "record_every": 1}
        cut = immunize(make_problem(), "r_ill_only", callback=lambda p: p.step == 7, **every)
        assert (cut.stop_reason, cut.steps, cut.converged) == ("cancelled", 7, False)
        assert cut.history["step"].tolist() == list(range(8))
        unbroken = immunize(make_problem(), "r_ill_only", **every)
        assert cut.history["kappa_harmful"][7] == unbroken.history["kappa_harmful"][7]

    def test_theta_is_shown_at_watched_steps_without_being_measured(self, make_problem):
        def shown(**options):
            seen = {}
            told = {"callback": lambda p: seen.update({p.step: (p.record, p.theta.clone())})}
            immunize(make_problem(), "ours", steps=9, **told, **options)
            return seen

        watched, recorded = shown(record_every=0, callback_steps=[0, 2, 5]), shown(record_every=1)
        assert [*watched] == [0, 2, 5]
        for step, (record, theta) in watched.items():
            assert record == {}
            assert torch.equal(theta, recorded[step][1])


def test_history(make_problem):
    result = immunize(make_problem(), "ours", steps=10, record_every=4)
    assert list(result.history) == [*RECORDED, "norm_well", "norm_ill", "norm_supervised"]
    assert result.history["step"].tolist() == [0, 4, 8, 10]
    flat = immunize(ImmunizationProblem.from_covariances(np.eye(3), np.eye(3)), "identity").history
    assert (flat["r_ill"][0], flat["kappa_harmful"][0]) == (math.inf, pytest.approx(1))


@pytest.mark.parametrize("method", ["initial", "max_rir", "ours"])
@pytest.mark.parametrize("rank", [None, 4])
def test_history_holds_both_regularizers_and_condition_numbers_of_theta_as_it_is(method, rank, make_problem):
    problem = make_problem(rank=rank)
    result = immunize(problem, method, **({"steps": 3} if method == "ours" else {}))
    last = {name: values[-1] for name, values in result.history.items()}
    for name, task, regularizer in (
        ("well", problem.benign, lambda H: r_well(H)),
        ("ill", problem.harmful, lambda H: r_ill(H, rank=problem.harmful.rank)),
    ):
        H = hessian(result.theta, task)
        values = torch.linalg.eigvalsh(torch.as_tensor(H))
        assert last[f"r_{name}"] == pytest.approx(float(regularizer(H)), rel=1e-8)
        kappa = float(values[-1] / values[-task.rank])
        assert last["kappa_benign" if name == "well" else "kappa_harmful"] == pytest.approx(kappa, rel=1e-8)


def test_about_200_rows_by_default():
    recorded = sorted(DescentSettings(steps=10_000).recorded_steps)
    assert 150 < len(recorded) <= 201
    assert (recorded[:4], recorded[-1]) == ([0, 1, 2, 3], 10_000)
    assert max(np.diff(recorded)) <= 100  # half evenly spaced
    assert DescentSettings(steps=7, record_every=3).recorded_steps == {0, 3, 6}


class TestSettings:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"optimizer": "adm"}, UnknownNameError, "unknown optimizer 'adm'.*mean 'adam'"),
            ({"learning_rate": 0.0}, InvalidInputError, "a positive number, got 0.0"),
            ({"weights": "fixed", "ratio": math.inf}, InvalidInputError, "ratio.*got inf"),
            ({"loss_weight": -1e-9}, InvalidInputError, "number of at least 0, got -1e-09"),
            ({"steps": 2.5}, InvalidInputError, "steps must be an integer.*got 2.5"),
        ],
    )
    def test_refused(self, values, error, message):
        for make in (DescentSettings, DescentSettings().with_overrides):
            with pytest.raises(error, match=message):
                make(**values)

    @pytest.mark.parametrize(
        ("method", "options", "message"),
        [
            ("imma", {"settings": Settings()}, "'imma' takes DescentSettings, got Settings"),
            ("ours", {"seed": -1}, "seed must be an integer ≥ 0, got -1"),
        ],
    )
    def test_not_for_this_method(self, method, options, message, make_problem):
        with pytest.raises(InvalidInputError, match=message):
            immunize(make_problem(), method, **options)

    def test_what_has_no_effect_is_ignored(self, make_problem):
        problem = make_problem(targets=False)
        plain = immunize(problem, "ours", steps=3)
        for idle in ({"lambda_harmful": 123.0}, {"loss_weight": 2.0}, {"inner_steps": 2}):
            assert torch.equal(immunize(problem, "ours", steps=3, **idle).theta, plain.theta)
        assert torch.equal(immunize(problem, "identity", steps=3).theta, torch.eye(6).double())
        by_name = immunize(problem, "ours", settings="house-prices", steps=2)
        assert by_name.settings == PRESETS["house-prices"].with_overrides(steps=2)


def test_covariances_at_the_ends_of_float64():
    """The closed form does not see their scale, and the joint descent leaves finite numbers behind."""
    K = np.diag([100.0, 1.0, 3.0]), np.diag([2.0, 1.0, 5.0])
    plain = immunize(ImmunizationProblem.from_covariances(*K), seed=1)
    for scale in (1e-150, 1e150):
        problem = ImmunizationProblem.from_covariances(*(scale * k for k in K))
        result = immunize(problem, seed=1)
        assert result.verdict.success
        assert result.verdict.rir == pytest.approx(plain.verdict.rir, rel=1e-6)
        assert bool(torch.isfinite(immunize(problem, "ours", steps=3).theta).all())


class Formula(Method):
    """A method that returns one matrix."""

    label = summary = "for tests"

    def __init__(self, name, answer):
        self.name, self.answer = name, answer

    def initial(self, problem, generator):
        return {"theta": self.answer}


class TestActualProbes:
    def test_met_and_useless(self):
        """y_P lies along the strong direction, which θ makes the weak one; y_H along one that it keeps."""
        turn = Formula("turn", torch.diag(torch.tensor([5000**-0.5, 1.0]).double()))
        X = np.diag([10.0, 1.0]), np.eye(2)
        problem = ImmunizationProblem.from_data(X[0], X[0][:, 0], X[1], [0.0, 1.0])
        result = immunize(problem, turn)
        assert result.verdict.success  # (i) = 5000, (ii) = 1/2
        # One step on raw inputs; with θ, σ = (1, 1/50) and 0.98^(2t) ≤ 0.01 from t = 114 on.
        assert (result.benign_probe.raw, result.benign_probe.fixed) == (1, 114)
        assert (result.harmful_probe.raw, result.harmful_probe.fixed) == (1, 1)
        assert (result.verdict.benign_slowdown, result.verdict.harmful_slowdown) == (114, 1)
        for said in ("114 times as many", "The definition is met, but the benign task is lost", "not slowed"):
            assert result.explanation.count(said) == repr(result.verdict).count(said) == 1
        raw = immunize(problem, "identity")
        assert raw.benign_probe.slowdown == raw.harmful_probe.slowdown == 1
        assert "lost" not in raw.explanation

    def test_met_while_the_harmful_probe_is_faster(self):
        """y_H lies along the weakest of three directions, which θ makes the strongest; κ(H_H) rises."""
        scales = [1e2, 1, 10**-0.5], [10, 10**0.5, 1]  # κ = 1e5 and 100 before, 100 and 1000 after
        benign, harmful = map(np.diag, scales)
        problem = ImmunizationProblem.from_data(benign, benign[:, 0], harmful, harmful[:, 2])
        turn = Formula("turn", torch.diag(torch.tensor([0.1, 1, 1000**0.5], dtype=torch.float64)))
        result = immunize(problem, turn)
        assert "Definition 3.1 is met in both conventions" in result.explanation
        assert result.verdict.harmful_slowdown < 0.1
        for said in (result.explanation, repr(result.verdict)):
            assert "The definition is met, but the harmful task is not slowed." in said

    @pytest.mark.parametrize("y", [None, np.ones(300)], ids=["none", "centered"])
    def test_nothing_to_learn(self, y):
        """On centered columns, a constant target is round-off."""
        X = np.random.default_rng(0).normal(size=(2, 300, 3)) * [1, 10, 1e4]
        X -= X.mean(axis=1, keepdims=True)
        result = immunize(ImmunizationProblem.from_data(X[0], y, X[1], y))
        assert result.verdict is not None
        assert result.benign_probe is result.harmful_probe is None
        assert result.verdict.benign_slowdown is result.verdict.harmful_slowdown is None
        for said in (result.explanation, repr(result.verdict)):
            assert said.count("How many steps the actual probes take is not known without targets") == 1

    def test_erased_targets_are_out_of_reach(self, make_problem):
        result = immunize(make_problem(), "erase")
        assert result.harmful_probe.slowdown == math.inf
        assert "the harmful probe never gets there" in result.explanation
        assert "the harmful probe never reaches that loss" in repr(result.verdict)


class TestMethodsOfOnesOwn:
    @pytest.mark.parametrize("kind", [torch.float32, torch.int64, "numpy"], ids=str)
    def test_theta_is_promoted(self, kind, make_problem):
        eye = np.eye(6, dtype=np.float32) if kind == "numpy" else torch.eye(6, dtype=kind)
        assert immunize(make_problem(), Formula("mine", eye)).theta.equal(torch.eye(6).double())
        with pytest.raises(InvalidInputError, match="theta of method 'bad' holds 36 non-finite"):
            immunize(make_problem(), Formula("bad", eye * math.nan))

    def test_an_instance_is_as_good_as_a_name(self, make_problem):
        problem = make_problem()
        assert immunize(problem, Formula("mine", torch.eye(6))).theta.equal(torch.eye(6).double())
        assert "mine" not in method_names()
        by_name, by_alias, by_object = (
            immunize(problem, of, steps=3) for of in ("ours", "algorithm1", get_method("ours"))
        )
        assert by_name.method == by_alias.method == by_object.method == "ours"
        assert torch.equal(by_name.theta, by_alias.theta)
        assert torch.equal(by_name.theta, by_object.theta)

    def test_what_is_missing_is_named(self, make_problem):
        class Bare(Method):
            name = "bare"

        for bare in (Bare(), object()):
            with pytest.raises(InvalidInputError, match=r"is not a method: derive.*label and summary"):
                immunize(make_problem(), bare)
        assert "bare" not in method_names()


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize(
    "rows", [(60, 500), (500, 60), (500, 500)], ids=["few benign", "few harmful", "many"]
)
def test_features_of_a_relu_layer_with_dead_columns(rows, dtype):
    """So many that only the ends of spectra are computed; κ beside all singular values of the features."""
    rng = np.random.default_rng(0)
    layer = rng.normal(size=(20, 150)) * (np.arange(150) >= 5)
    made = [(rng.normal(size=(n, 20)) + task) @ layer for task, n in enumerate(rows)]
    X_P, X_H = (np.maximum(Z, 0).astype(dtype) for Z in made)
    result = immunize(ImmunizationProblem.from_data(X_P, None, X_H))
    found, theta = result.verdict, result.theta.numpy()
    for X, before, after in (
        (X_P, found.benign_before, found.benign_after),
        (X_H, found.harmful_before, found.harmful_after),
    ):
        assert before.rank == after.rank <= min(len(X), 145)
        for features, kappa in ((X.astype(float), before), (X @ theta, after)):
            sigma = np.linalg.svd(features, compute_uv=False)
            assert kappa.value == pytest.approx((sigma[0] / sigma[kappa.rank - 1]) ** 2, rel=1e-4)
    assert result.history["kappa_harmful"] == pytest.approx(found.harmful_after.value)
    assert found.success
