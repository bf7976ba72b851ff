"""One covariance, one answer: every public function on structured, float32, odd and badly scaled input."""

import numpy as np
import pytest
import torch
from covariances import ODD_ARRAYS, STRUCTURES, structured_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum import Task, linear_probe, probe_steps
from condnum.errors import CondnumError, InvalidInputError
from condnum.theory.alignment import alignment
from condnum.theory.kappa import condition_number, covariance, hessian, relative_immunization_ratio
from condnum.theory.limits import null_spaces, ridge_limits, rir_limit
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient


class TestOneAnswer:
    @pytest.mark.parametrize("given_as", ["rows", "covariance"])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @settings(max_examples=40)
    @given(st.integers(0, 10**6), st.sampled_from(STRUCTURES), st.integers(2, 12))
    def test_all_functions_agree_on_rank_and_kappa(self, dtype, given_as, seed, kind, dimension):
        X = structured_rows(np.random.default_rng(seed), kind, dimension).astype(dtype)
        K = Task.of(X) if given_as == "rows" else X.T @ X
        identity, moment = np.eye(dimension), np.ones(dimension)
        task = Task.of(X, X @ moment) if given_as == "rows" else Task.of_covariance(K, K @ moment)
        measured = relative_immunization_ratio(identity, K, K)
        probe, number = linear_probe(identity, task, steps=1), condition_number(K)
        limit, spaces, aligned = rir_limit(K, K), null_spaces(K, K), alignment(identity, K)
        assert {
            number.rank, measured.harmful_before.rank, measured.harmful_after.rank, int(probe.rank),
            limit.rank_benign, spaces.rank_harmful, task.rank,
        } == {number.rank}  # fmt: skip
        kappas = [
            number.value, measured.benign_before.value, measured.benign_after.value,
            float(probe.condition), task.kappa,
        ]  # fmt: skip
        if number.value < 1e9 and number.rank == dimension:  # these form H itself, to eps·κ(K)
            assert aligned.rank == number.rank
            kappas += [aligned.true_condition, condition_number(hessian(identity, K)).value]
        eps = np.finfo(np.float64).eps
        assert kappas == pytest.approx([kappas[0]] * len(kappas), rel=100 * dimension * eps * kappas[0])
        assert limit.value == pytest.approx(1, rel=1e-3)  # a task against itself


@pytest.mark.parametrize("of_theta", [1e70, 1e-70])
@pytest.mark.parametrize("of_K", [1e150, 1e-150])
def test_scales_change_no_step_and_no_alignment(of_theta, of_K):
    found = probe_steps(of_theta * np.eye(2), Task.of_covariance(of_K * np.diag([4.0, 1]), [0, of_K]))
    assert (found.raw, found.fixed, found.exact, found.fit) == (9, 9, 1, pytest.approx(1))
    theta, K = np.diag([2.0, 1]), np.array([[2.0, 1], [1, 2]])
    plain, scaled = alignment(theta, K), alignment(of_theta * theta, of_K * K)
    for name in ("misalignment", "true_condition", "predicted_condition", "rank"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name))


K = np.diag([4.0, 2.0, 1.0])
FUNCTIONS = {
    "condition_number": condition_number,
    "features": lambda M: condition_number(M, kind="features"),
    "rir": lambda M: relative_immunization_ratio(np.eye(3), M, K).rir,
    "limit": lambda M: rir_limit(M, K).value,
    "limits": lambda M: ridge_limits(M, K).harmful_ratio,
    "alignment": lambda M, **options: alignment(np.eye(3), M, **options).true_condition,
    "r_well_gradient": lambda M, **options: r_well_gradient(M, **options).value,
    "r_ill_gradient": lambda M, **options: r_ill_gradient(M, **options).value,
    "hessian": lambda M: condition_number(hessian(np.eye(3), M)),
    "covariance": lambda M: condition_number(covariance(M)),
}


class TestOddInputs:
    """A finite answer, or an error of condnum's that says what to do."""

    @pytest.mark.parametrize("given", ODD_ARRAYS)
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_matrices(self, function, given):
        try:
            found = FUNCTIONS[function](ODD_ARRAYS[given](K))
        except CondnumError:
            return
        value = getattr(found, "value", found)
        assert np.isfinite(np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)).all()

    @pytest.mark.parametrize("rtol", [-1, float("nan"), np.float32(2)])
    @pytest.mark.parametrize(
        "function", ["condition_number", "alignment", "r_well_gradient", "r_ill_gradient"]
    )
    def test_tolerances(self, function, rtol):
        with pytest.raises(InvalidInputError, match="rtol must lie in"):
            FUNCTIONS[function](K, rtol=rtol)

    @pytest.mark.parametrize("scale", [1e160, 1e-170])
    def test_regularizers_of_squares_beyond_float64_say_so(self, scale):
        for function in (r_well, r_ill):
            with pytest.raises(InvalidInputError, match=r"square overflows float64.*divide"):
                function(scale * K)
