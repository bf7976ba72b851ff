"""One covariance, one answer: every public function on structured, float32 and badly scaled input."""

import numpy as np
import pytest
import torch
from condnum.theory.ceiling import null_spaces, rir_ceiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.pareto import pareto_extractor, pareto_immunizer, ridge_limits
from condnum.theory.spectra import condition_number, covariance, hessian
from covariances import ODD_ARRAYS, STRUCTURES, structured_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import CondnumError, InvalidInputError
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.line_search import linear_probe
from condnum.theory.alignment import alignment
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient

DRAWS = settings(max_examples=40)
SEEDS, SIZES = st.integers(0, 10**6), st.integers(2, 12)
KINDS = st.sampled_from(STRUCTURES)


def covariances(seed, kinds, dimension, dtype=np.float64):
    """Covariances of structured rows, computed and stored in a dtype."""
    rng = np.random.default_rng(seed)
    rows = [structured_rows(rng, kind, dimension).astype(dtype) for kind in kinds]
    return [X.T @ X for X in rows]


def ranks_and_kappas(K):
    """Rank and κ of K as each public function sees them."""
    identity, moment = np.eye(len(K)), np.ones(len(K))
    measured = relative_immunization_ratio(identity, K, K)
    probe = linear_probe(identity, K, K @ moment, steps=1)
    ceiling, spaces = rir_ceiling(K, K), null_spaces(K, K)
    problem = ImmunizationProblem.from_covariances(K, K)
    spectrum = CovarianceRange.of(K).values
    number = condition_number(K)
    ranks = {
        number.rank, measured.harmful_before.rank, measured.harmful_after.rank, int(probe.rank),
        ceiling.rank_pretrain, spaces.rank_harmful, problem.pretrain.rank, len(spectrum),
        alignment(identity, K).rank, condition_number(hessian(identity, K)).rank,
    }  # fmt: skip
    kappas = [
        number.value, measured.pretrain_before.value, measured.pretrain_after.value, float(probe.condition),
        float(spectrum[0] / spectrum[-1]), alignment(identity, K).true_condition,
        condition_number(hessian(identity, K)).value,
    ]  # fmt: skip
    return ranks, kappas, ceiling.value


class TestOneAnswer:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @DRAWS
    @given(SEEDS, KINDS, SIZES)
    def test_all_functions_agree_on_rank_and_kappa(self, dtype, seed, kind, dimension):
        (K,) = covariances(seed, [kind], dimension, dtype)
        ranks, kappas, ceiling = ranks_and_kappas(K)
        assert len(ranks) == 1
        eps = np.finfo(np.float64).eps
        assert kappas == pytest.approx([kappas[0]] * len(kappas), rel=100 * dimension * eps * kappas[0])
        assert ceiling == pytest.approx(1, rel=1e-3)  # a task against itself

    def test_float32_features_resolve_the_square_of_their_precision(self):
        rng = np.random.default_rng(0)
        U, _, Vt = np.linalg.svd(rng.normal(size=(1000, 256)), full_matrices=False)
        X = ((U * np.geomspace(1, 1e-3, 256)) @ Vt).astype(np.float32)  # κ(H) = 1e6
        found = condition_number(X, kind="features")
        assert found.rank == CovarianceRange.of_features(torch.from_numpy(X)).rank == 256
        for kappa in (found.value, condition_number(covariance(X)).value):
            assert kappa == pytest.approx(1e6, rel=1e-3)

    @pytest.mark.parametrize(
        ("K", "message"),
        [
            (np.diag([1.0, -0.5]), "positive semidefinite: its smallest eigenvalue is -0.5"),
            (np.array([[1.0, 5.0], [0.0, 1.0]]), r"symmetric, got \|K - Kᵀ\| up to"),
        ],
        ids=["indefinite", "not-symmetric"],
    )
    def test_what_is_no_covariance_is_refused_by_all(self, K, message):
        I = np.eye(2)  # ruff: ignore[ambiguous-variable-name]
        calls = [
            lambda: relative_immunization_ratio(I, K, I), lambda: relative_immunization_ratio(I, I, K),
            lambda: linear_probe(I, K, np.ones(2)), lambda: rir_ceiling(I, K), lambda: pareto_immunizer(K, I),
            lambda: alignment(I, K), lambda: hessian(I, K), lambda: ridge_limits(I, K),
            lambda: ImmunizationProblem.from_covariances(I, K),
            lambda: pareto_extractor(I, K, 0.5),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidInputError, match=message):
                call()

    @DRAWS
    @given(SEEDS, KINDS, KINDS, SIZES, st.sampled_from([1e-100, 1e-30, 1e30, 1e100]))
    def test_the_scale_of_the_inputs_changes_no_answer(self, seed, pretrain, harmful, dimension, scale):
        K_P, K_H = covariances(seed, (pretrain, harmful), dimension)
        plain, scaled = rir_ceiling(K_P, K_H), rir_ceiling(scale * K_P, scale * K_H)
        assert scaled.value == pytest.approx(plain.value, rel=1e-6)
        theta = np.random.default_rng(seed).normal(size=(dimension, dimension))
        a, b = (relative_immunization_ratio(theta, s * K_P, s * K_H) for s in (1.0, scale))
        assert (a.success, a.harmful_before.rank) == (b.success, b.harmful_before.rank)
        assert b.rir == pytest.approx(a.rir, rel=1e-6)


K = np.diag([4.0, 2.0, 1.0])
FUNCTIONS = {
    "condition_number": condition_number,
    "features": lambda M, **options: condition_number(M, kind="features", **options),
    "rir": lambda M, **options: relative_immunization_ratio(np.eye(3), M, K, **options).rir,
    "ceiling": lambda M, **options: rir_ceiling(M, K, **options).value,
    "limits": lambda M, **options: ridge_limits(M, K, **options).harmful_ratio,
    "alignment": lambda M, **options: alignment(np.eye(3), M, **options).true_condition,
    "r_well_gradient": lambda M, **options: r_well_gradient(M, **options).value,
    "r_ill_gradient": lambda M, **options: r_ill_gradient(M, **options).value,
    "hessian": lambda M, **options: condition_number(hessian(np.eye(3), M), **options),
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
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_tolerances(self, function, rtol):
        with pytest.raises(InvalidInputError, match="rtol must lie in"):
            FUNCTIONS[function](K, rtol=rtol)

    @pytest.mark.parametrize("scale", [1e160, 1e-170])
    def test_regularizers_of_squares_beyond_float64_say_so(self, scale):
        for function in (r_well, r_ill):
            with pytest.raises(InvalidInputError, match=r"square overflows float64.*divide"):
                function(scale * K)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_a_batch_is_refused(self, function):
        with pytest.raises(InvalidInputError, match=r"must have 2 dimension\(s\), got shape \(4, 3, 3\)"):
            FUNCTIONS[function](np.stack([K] * 4))

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_the_scale_of_theta_leaves_no_nan(self, scale):
        theta = np.diag([1.0, 2.0, 3.0])
        found, plain = (relative_immunization_ratio(s * theta, K, K) for s in (scale, 1.0))
        assert found.rir == pytest.approx(plain.rir)
