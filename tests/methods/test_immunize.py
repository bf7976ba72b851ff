"""`immunize` and its loop: every method, seeds, weights, history, stopping, and that it works."""

import math

import numpy as np
import pytest
import torch

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import (
    DescentSettings,
    ImmaSettings,
    OptKappaSettings,
    get_method,
    immunize,
    method_names,
    register,
)
from condnum.methods.descent import part_weights
from condnum.methods.method import Gradients
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.spectra import condition_number, hessian

CLOSED_FORMS = {"identity", "initial", "optimal", "front"}
DESCENTS = [name for name in method_names() if name not in CLOSED_FORMS]
RECORDED = ["step", "loss", "r_well", "r_ill", "kappa_pretrain", "kappa_harmful"]


def run(problem, method, **options):
    """Run a method, with few steps if it takes any."""
    return immunize(problem, method, **({} if method in CLOSED_FORMS else {"steps": 20} | options), seed=3)


class TestEveryMethod:
    @pytest.mark.parametrize("method", method_names())
    @pytest.mark.parametrize("kind", ["mse", "bce", "singular", "two-outputs"])
    def test_runs(self, method, kind, make_problem):
        options = {"mse": {}, "bce": {"loss": "bce"}, "singular": {"rank": 4}, "two-outputs": {"outputs": 2}}
        problem = make_problem(**options[kind])
        result = run(problem, method)
        assert result.theta.shape == (6, 6)
        assert bool(torch.isfinite(result.theta).all())
        assert (result.method, result.seed) == (method, 3)
        expected = ("closed_form", 0, True) if method in CLOSED_FORMS else ("steps", 20, False)
        assert (result.stop_reason, result.steps, result.converged) == expected
        assert list(result.history.columns)[:6] == RECORDED
        assert result.seconds >= 0
        assert not result.theta.requires_grad

    @pytest.mark.parametrize("method", [name for name in method_names() if name != "imma"])
    def test_runs_on_covariances_alone(self, method, make_problem):
        result = run(make_problem(targets=False), method)
        assert result.omega is None
        assert np.isnan(result.history["loss"]).all()

    @pytest.mark.parametrize("method", method_names())
    def test_deterministic_per_seed_and_the_global_generator_is_untouched(self, method, make_problem):
        problem = make_problem()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first = run(problem, method, batch_size=8)
        torch.rand(3)
        torch.manual_seed(0)
        second = run(problem, method, batch_size=8)
        assert torch.equal(first.theta, second.theta)
        assert torch.equal(torch.get_rng_state(), before)

    def test_theta_0_is_uniform_and_differs_by_seed(self, make_problem):
        draws = [immunize(make_problem(), "initial", seed=seed).theta for seed in range(40)]
        values = torch.stack(draws).flatten()
        # Uniform in ±1/√6: variance 1/18; 1440 draws know it to about 4 %.
        assert float(values.abs().max()) <= 6**-0.5
        assert float(values.var()) == pytest.approx(1 / 18, rel=0.15)
        assert not torch.equal(draws[0], draws[1])

    @pytest.mark.parametrize("method", DESCENTS)
    def test_mini_batches(self, method, make_problem):
        problem = make_problem(rows=40)
        small = immunize(problem, method, steps=5, batch_size=10)
        full = immunize(problem, method, steps=5)
        assert not torch.allclose(small.theta, full.theta)
        # More rows than there are: a permutation of the full batch.
        whole = immunize(problem, method, steps=5, batch_size=1000, learning_rate=1e-3)
        reference = immunize(problem, method, steps=5, learning_rate=1e-3)
        torch.testing.assert_close(whole.theta, reference.theta, rtol=1e-6, atol=1e-8)

    def test_mini_batches_need_rows(self):
        with pytest.raises(InvalidInputError, match="mini-batches need the data rows"):
            immunize(ImmunizationProblem.from_covariances(np.eye(2), np.eye(2)), batch_size=2)


class TestControls:
    def test_identity(self, make_problem):
        problem = make_problem()
        result = immunize(problem, "identity")
        assert torch.equal(result.theta, torch.eye(6).double())
        kappa = condition_number(problem.harmful.covariance).value
        assert result.history["kappa_harmful"][0] == pytest.approx(kappa, rel=1e-9)

    def test_optimal_attains_the_ceiling(self, make_problem):
        problem = make_problem()
        K = problem.pretrain.covariance, problem.harmful.covariance
        rir = relative_immunization_ratio(immunize(problem, "optimal").theta, *K).rir
        assert rir == pytest.approx(rir_ceiling(*K).value, rel=1e-9)

    @pytest.mark.parametrize(
        "given", [{"steps": 3}, {"settings": DescentSettings()}], ids=["override", "settings"]
    )
    def test_nothing_to_set(self, given, make_problem):
        with pytest.raises(
            InvalidInputError, match=r"'identity' has nothing to set; leave out: (steps|settings)"
        ):
            immunize(make_problem(), "identity", **given)


class TestItWorks:
    def hard_pair(self, seed):
        """A full-rank 12-dimensional pair with κ(K_P) near 1e4 and κ(K_H) near 10, skew to each other."""
        rng = np.random.default_rng(seed)
        parts = []
        for kappa in (1e4, 10.0):
            Q = np.linalg.qr(rng.normal(size=(12, 12)))[0]
            X = rng.normal(size=(40, 12)) * np.geomspace(1, kappa**-0.5, 12) @ Q.T
            parts += [X, X @ rng.normal(size=(12, 1))]
        return ImmunizationProblem.from_data(*parts)

    def test_ours_immunizes_a_random_pair(self):
        problem = self.hard_pair(1)
        K = problem.pretrain.covariance, problem.harmful.covariance
        theta = immunize(problem, "ours", seed=1, steps=2000, ratio=1.0).theta
        result = relative_immunization_ratio(theta, *K, loss_gap=problem.pretrain.loss_gap(theta))
        # (i) ≈ 2000, (ii) ≈ 0.3 here: far from both limits.
        assert result.pretrain_ratio < 1
        assert result.harmful_ratio > 100
        assert result.success
        assert result.rir <= rir_ceiling(*K).value

    @pytest.mark.parametrize("seed", [0, 2, 3])
    def test_ours_gains_far_more_than_the_random_start(self, seed):
        problem = self.hard_pair(seed)
        K = problem.pretrain.covariance, problem.harmful.covariance
        start, result = (
            relative_immunization_ratio(theta, *K).rir
            for theta in (
                immunize(problem, "initial", seed=seed).theta,
                immunize(problem, "ours", seed=seed, steps=500, ratio=1.0).theta,
            )
        )
        assert result > 1
        assert result > 5 * start

    def test_imma_makes_the_fine_tuned_harmful_loss_larger(self, make_problem):
        problem = make_problem()
        result = immunize(problem, "imma", steps=50, learning_rate=0.01)
        assert result.history["norm_bilevel"][0] > 0
        assert result.omega.shape == (6, 1)

    def test_gradient_descent_on_r_well_lowers_kappa_at_every_step(self, make_problem):
        problem = make_problem(targets=False)
        theta = immunize(problem, "initial").theta
        sigma_1 = condition_number(hessian(theta, problem.pretrain.covariance)).sigma_max
        options = {"optimizer": "gd", "schedule": "constant", "weights": "fixed", "lambda_harmful": 1e-300}
        # Theorem 4.3: η below about 1/(2σ₁), with room for the second term of the bound.
        history = immunize(
            problem, steps=300, learning_rate=0.01 / sigma_1, lambda_pretrain=1.0, **options
        ).history
        assert (np.diff(history["kappa_pretrain"]) < 0).all()
        assert (np.diff(history["r_well"]) < 0).all()


class Constant:
    """A method whose gradient in θ is a fixed matrix of ones."""

    name, label, summary, defaults = "constant", "Constant", "for tests", DescentSettings()

    def initial(self, problem, generator):
        return {
            "theta": torch.zeros(problem.dimension, problem.dimension).double() + torch.eye(problem.dimension)
        }

    def gradients(self, problem, parameters, settings, memory):
        return Gradients({"ones": torch.ones_like(parameters["theta"])}, {})


class Shrink(Constant):
    """A method whose gradient is θ: descent of ½‖θ‖²."""

    name = "shrink"

    def gradients(self, problem, parameters, settings, memory):
        return Gradients({"self": parameters["theta"].clone()}, {})


GD = {"optimizer": "gd", "schedule": "constant"}


class TestLoop:
    def test_a_method_of_ones_own_in_a_few_lines(self, registered, make_problem):
        registered(Shrink())
        assert method_names()[-1] == "shrink"
        result = immunize(make_problem(), "shrink", steps=3, learning_rate=0.5, **GD)
        torch.testing.assert_close(result.theta, torch.eye(6).double() / 8)
        assert list(result.history["norm_self"]) == pytest.approx([6**0.5 / 2**i for i in (0, 1, 2, 2)])
        assert result.part_weights == {"self": 1.0}

    def test_cosine_schedule(self, registered, make_problem):
        registered(Constant())
        result = immunize(make_problem(), "constant", steps=4, learning_rate=0.1, optimizer="gd")
        # ½(1 + cos(πt/4)) for t = 0 … 3 sums to 2 + ½.
        torch.testing.assert_close(result.theta, torch.eye(6).double() - 0.25)

    def test_tolerance(self, registered, make_problem):
        registered(Shrink())
        result = immunize(make_problem(), "shrink", steps=50, learning_rate=0.5, tolerance=0.1, **GD)
        # 2⁻⁴ is the first below 0.1; it is seen before the fifth step.
        assert (result.stop_reason, result.steps, result.converged) == ("tolerance", 4, True)
        torch.testing.assert_close(result.theta, torch.eye(6).double() / 16)
        assert result.history["step"][-1] == 4

    def test_divergence_by_growth_keeps_the_last_finite_theta(self, registered, make_problem):
        registered(Shrink())
        # θ ← −999θ: its norm is beyond 1e308 after some 50 steps, as its square is.
        result = immunize(make_problem(), "shrink", steps=200, learning_rate=1000.0, **GD)
        assert (result.stop_reason, result.converged) == ("diverged", False)
        assert bool(torch.isfinite(result.theta).all())
        assert float(result.theta[0, 0].abs()) == pytest.approx(999.0**result.steps, rel=1e-9)
        assert result.history["step"][-1] == result.steps > 50

    def test_a_step_beyond_the_floats_is_taken_back(self, registered, make_problem):
        registered(Constant())
        # 1 − 1e308 is finite, 1 − 2e308 is not; Xθ is not either, so that κ of it is unknown.
        result = immunize(make_problem(), "constant", steps=9, learning_rate=1e308, **GD)
        assert (result.stop_reason, result.steps) == ("diverged", 1)
        assert float(result.theta[0, 0]) == pytest.approx(-1e308)
        assert result.history["step"].tolist() == [0, 1]
        assert result.history["kappa_harmful"][-1] == math.inf

    @pytest.mark.parametrize("method", DESCENTS)
    @pytest.mark.parametrize("rate", [1e3, 1e100, 1e300])
    def test_divergence_of_real_methods(self, method, rate, make_problem):
        options = {"optimizer": "gd", "schedule": "constant", "weights": "fixed"}
        result = immunize(make_problem(), method, steps=60, learning_rate=rate, **options)
        assert bool(torch.isfinite(result.theta).all())
        assert result.history["step"][-1] == result.steps
        # ∇κ shrinks like 1/θ: opt_kappa runs far away, but not beyond the floats, at 1e100.
        if rate > 1e200 or (rate > 1e3 and method != "opt_kappa"):
            assert result.stop_reason == "diverged"

    def test_an_eigensolver_that_fails_diverges(self, registered, make_problem):
        class Failing(Constant):
            name = "failing"

            def gradients(self, problem, parameters, settings, memory):
                raise torch.linalg.LinAlgError("did not converge")

        registered(Failing())
        assert immunize(make_problem(), "failing").stop_reason == "diverged"

    def test_callback_sees_each_record(self, make_problem):
        seen = []
        result = immunize(make_problem(), steps=10, record_every=3, callback=seen.append, seed=5)
        assert [progress.step for progress in seen] == [0, 3, 6, 9]
        assert {(progress.method, progress.seed, progress.steps) for progress in seen} == {("ours", 5, 10)}
        assert seen[1].record["kappa_harmful"] == result.history["kappa_harmful"][1]
        assert result.stop_reason == "steps"

    def test_callback_cancels(self, make_problem):
        result = immunize(make_problem(), steps=100, record_every=1, callback=lambda p: p.step == 7)
        assert (result.stop_reason, result.steps, result.converged) == ("cancelled", 7, False)
        assert result.history["step"].tolist() == list(range(8))
        unbroken = immunize(make_problem(), steps=100, record_every=1)
        assert result.history["kappa_harmful"][7] == unbroken.history["kappa_harmful"][7]


class TestHistory:
    def test_columns_and_rows(self, make_problem):
        result = immunize(make_problem(), settings="fixed", steps=10, record_every=4)
        assert list(result.history.columns) == [*RECORDED, "norm_well", "norm_ill", "norm_supervised"]
        assert result.history["step"].tolist() == [0, 4, 8, 10]
        assert len(result.history) == 4
        frame = result.history.to_frame()
        assert frame.shape == (4, 9)
        np.testing.assert_array_equal(frame["kappa_harmful"], result.history["kappa_harmful"])

    def test_about_200_rows_by_default(self):
        recorded = sorted(DescentSettings(steps=10_000).recorded_steps)
        assert 150 < len(recorded) <= 201
        assert recorded[:4] == [0, 1, 2, 3]
        assert recorded[-1] == 10_000
        # Half evenly spaced: no gap beyond a hundredth of the run.
        assert max(np.diff(recorded)) <= 100
        assert DescentSettings(steps=7).recorded_steps == set(range(8))
        assert DescentSettings(steps=7, record_every=3).recorded_steps == {0, 3, 6}

    def test_a_perfectly_conditioned_hessian_has_an_infinite_r_ill(self):
        result = immunize(ImmunizationProblem.from_covariances(np.eye(3), np.eye(3)), "identity")
        assert result.history["r_ill"][0] == math.inf
        assert result.history["kappa_harmful"][0] == pytest.approx(1)


class TestWeights:
    def test_balanced(self):
        weights = part_weights(
            {"well": 4.0, "ill": 0.5, "supervised": 9.0}, DescentSettings(ratio=3.0, loss_weight=2.0)
        )
        assert weights == pytest.approx({"well": 0.25, "ill": 6.0, "supervised": 2.0})

    def test_a_vanishing_part_is_not_divided_by(self):
        assert part_weights({"well": 0.0, "ill": 1.0}, DescentSettings())["well"] == pytest.approx(1.0)


class TestSettings:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"optimizer": "adm"}, UnknownNameError, "unknown optimizer 'adm'; did you mean 'adam'"),
            ({"schedule": "linear"}, UnknownNameError, "unknown schedule 'linear'"),
            ({"weights": "balance"}, UnknownNameError, "did you mean 'balanced'"),
            ({"learning_rate": 0.0}, InvalidInputError, "learning_rate must be a positive number, got 0.0"),
            (
                {"learning_rate": math.nan},
                InvalidInputError,
                "learning_rate must be a positive number, got nan",
            ),
            ({"learning_rate": "fast"}, InvalidInputError, "got 'fast'"),
            ({"ratio": -1.0}, InvalidInputError, "ratio must be a positive number"),
            ({"loss_weight": math.inf}, InvalidInputError, "loss_weight must be a positive number, got inf"),
            ({"lambda_pretrain": 0}, InvalidInputError, "lambda_pretrain"),
            ({"lambda_harmful": 0}, InvalidInputError, "lambda_harmful"),
            ({"steps": 0}, InvalidInputError, "steps must be a positive integer, got 0"),
            ({"steps": None}, InvalidInputError, "steps must be a positive integer, got None"),
            ({"steps": 2.0}, InvalidInputError, "steps must be a positive integer, got 2.0"),
            ({"steps": True}, InvalidInputError, "steps must be a positive integer, got True"),
            ({"batch_size": 0}, InvalidInputError, "batch_size must be a positive integer"),
            ({"record_every": -1}, InvalidInputError, "record_every must be a positive integer"),
            ({"tolerance": 1.0}, InvalidInputError, r"tolerance must lie in \[0, 1\), got 1.0"),
            ({"tolerance": -0.1}, InvalidInputError, "tolerance"),
        ],
        ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else None,
    )
    def test_refused(self, values, error, message, make_problem):
        with pytest.raises(error, match=message):
            DescentSettings(**values)
        with pytest.raises(error, match=message):
            immunize(make_problem(), **values)

    @pytest.mark.parametrize(
        ("build", "error", "message"),
        [
            (
                lambda: ImmaSettings(inner_steps=0),
                InvalidInputError,
                "inner_steps must be a positive integer, got 0",
            ),
            (lambda: ImmaSettings(inner_steps=1.5), InvalidInputError, "inner_steps"),
            (lambda: ImmaSettings(inner_rate=-1.0), InvalidInputError, "inner_rate"),
            (lambda: ImmaSettings(steps=0), InvalidInputError, "steps"),
            (lambda: OptKappaSettings(objective="ratio"), UnknownNameError, "unknown objective 'ratio'"),
            (lambda: OptKappaSettings(convention="compct"), UnknownNameError, "did you mean 'compact'"),
            (lambda: OptKappaSettings(ridge=0.0), InvalidInputError, "ridge must be a positive"),
        ],
    )
    def test_refused_by_the_methods_own(self, build, error, message):
        with pytest.raises(error, match=message):
            build()

    def test_settings_and_overrides(self, make_problem):
        base = DescentSettings(steps=3, learning_rate=0.01)
        result = immunize(make_problem(), settings=base, steps=2)
        assert result.settings == DescentSettings(steps=2, learning_rate=0.01)
        assert result.steps == 2
        assert base.steps == 3

    def test_a_method_wants_settings_of_its_own_kind(self, make_problem):
        with pytest.raises(InvalidInputError, match="'imma' takes ImmaSettings, got DescentSettings"):
            immunize(make_problem(), "imma", settings=DescentSettings())

    def test_described_in_one_line(self):
        parts = ("well", "ill", "supervised")
        assert "λ_P = 100, λ_H = 1e+07, loss weight 1" in DescentSettings(weights="fixed").describe(parts)
        assert "32 rows a step" in DescentSettings(batch_size=32).describe()
        # One part has nothing to balance.
        assert "λ" not in DescentSettings().describe(["ill"])
        assert ImmaSettings(inner_steps=2).describe().endswith("2 inner step(s) of size 0.01")
        assert OptKappaSettings(convention="ridge").describe().endswith("difference of ridge κ")


class TestNames:
    @pytest.mark.parametrize("method", method_names())
    def test_every_method_says_what_it_is(self, method):
        found = get_method(method)
        assert found.name == method
        assert found.label
        assert found.summary

    def test_a_taken_name(self):
        with pytest.raises(InvalidInputError, match="'ours' is registered already"):
            register(get_method("ours"))

    @pytest.mark.parametrize("seed", [-1, 1.0, True, None, "0"])
    def test_seed(self, seed, make_problem):
        with pytest.raises(InvalidInputError, match="seed must be a non-negative integer, got"):
            immunize(make_problem(), seed=seed)
