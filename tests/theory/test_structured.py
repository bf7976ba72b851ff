"""One covariance, one answer: every public function on structured, float32 and badly scaled input."""

import numpy as np
import pytest
import torch
from covariances import ODD_ARRAYS, STRUCTURES, structured_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from condnum.errors import CondnumError, InvalidInputError
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.line_search import linear_probe
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import max_rir_immunizer, null_spaces, rir_ceiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.extremes import largest_bound, largest_pair, smallest_pair
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.pareto import pareto_extractor, pareto_immunizer, ridge_limits
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient
from condnum.theory.spectra import condition_number, covariance, hessian

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

    def test_float32_covariance_of_low_rank(self):
        A = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
        ranks, kappas, ceiling = ranks_and_kappas(A.T @ A)
        true = np.linalg.svd(A.astype(np.float64), compute_uv=False) ** 2
        assert ranks == {40}
        assert kappas == pytest.approx([true[0] / true[-1]] * len(kappas), rel=1e-3)
        assert ceiling == pytest.approx(1)
        K = A.T @ A
        for theta in (max_rir_immunizer(K, np.eye(60)), pareto_immunizer(K, np.eye(60))):
            assert np.isfinite(theta).all()

    @pytest.mark.parametrize("kind", ["array", "tensor"])
    def test_float32_features_resolve_the_square_of_their_precision(self, kind):
        rng = np.random.default_rng(0)
        U, _, Vt = np.linalg.svd(rng.normal(size=(1000, 256)), full_matrices=False)
        X = ((U * np.geomspace(1, 1e-3, 256)) @ Vt).astype(np.float32)  # κ(H) = 1e6
        found = condition_number(torch.from_numpy(X) if kind == "tensor" else X, kind="features")
        assert int(found.rank) == 256
        assert float(found.value) == pytest.approx(1e6, rel=1e-3)
        assert float(condition_number(covariance(X)).value) == pytest.approx(1e6, rel=1e-3)
        assert CovarianceRange.of_features(X).rank == 256

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


class TestExtremes:
    @DRAWS
    @given(SEEDS, st.sampled_from(["blocks", "one-hot", "diagonal", "low-rank"]), st.integers(2, 60))
    def test_largest_pair_is_the_largest(self, seed, kind, dimension):
        (K,) = covariances(seed, [kind], dimension)
        A, top = torch.from_numpy(K), float(np.linalg.eigvalsh(K)[-1])
        assert float(largest_pair(A)[0]) == pytest.approx(top, rel=1e-10)
        assert top <= largest_bound(A)[0] <= top * (1 + 1e-9)

    @DRAWS
    @given(SEEDS, st.integers(3, 60))
    def test_smallest_pair_is_the_smallest(self, seed, dimension):
        F = torch.from_numpy(np.diag(np.random.default_rng(seed).uniform(1, 3, dimension)))
        assert float(smallest_pair(F)[0]) == pytest.approx(float(F.diagonal().min() ** 2), rel=1e-9)


class TestRidgeLimits:
    def test_blocks(self):
        K_P, K_H = np.diag([1.0, 0, 0, 0, 0]), block_diag(3.0, np.ones((4, 4)))
        limits = ridge_limits(K_P, K_H)
        u = np.array([0, 1, 1, 1, 1]) / 2
        theta = 1e-4 * np.eye(5) + np.outer(u, u)
        measured = relative_immunization_ratio(theta, K_P, K_H, convention="ridge")
        assert measured.pretrain_ratio <= 1
        assert measured.rir > 2e6
        assert measured.rir <= limits.rir == pytest.approx(5.0e6, rel=1e-3)
        assert measured.harmful_ratio <= limits.harmful_ratio

    @DRAWS
    @given(SEEDS, KINDS, KINDS, SIZES)
    def test_no_extractor_exceeds_them(self, seed, pretrain, harmful, dimension):
        K_P, K_H = covariances(seed, (pretrain, harmful), dimension)
        ridge = 1e-6 * float(np.trace(K_P))
        limits, rng = ridge_limits(K_P, K_H, ridge=ridge), np.random.default_rng(seed)
        top = np.linalg.eigh(K_H)[1][:, -1:]
        candidates = [
            pareto_immunizer(K_P, K_H, convention="ridge", ridge=ridge),
            pareto_immunizer(K_P, K_H, pretrain_ratio=0.1, convention="ridge", ridge=ridge),
            max_rir_immunizer(K_P, K_H),
            *(1e-3 * np.eye(dimension) + gain * top @ top.T for gain in (1.0, 0.1)),
            *rng.normal(size=(5, dimension, dimension)),
        ]
        for theta in candidates:
            found = relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=ridge)
            if found.pretrain_ratio <= 1:
                assert found.harmful_ratio <= limits.harmful_ratio * (1 + 1e-6)
                if found.harmful_ratio >= 1:
                    assert found.rir <= limits.rir * (1 + 1e-6)


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

    @pytest.mark.parametrize("rtol", [2, -1, float("nan"), np.float32(2)])
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_tolerances(self, function, rtol):
        with pytest.raises(InvalidInputError, match="rtol must lie in"):
            FUNCTIONS[function](K, rtol=rtol)

    @pytest.mark.parametrize("rank", [float("nan"), 0, 4, 1.5, True, "two"])
    def test_ranks(self, rank):
        with pytest.raises(InvalidInputError, match="rank must be"):
            r_ill(K, rank=rank)
        assert r_ill(K, rank=np.int64(3)) == r_ill(K, rank=3.0) == r_ill(K)

    @pytest.mark.parametrize("scale", [1e160, 1e-170])
    def test_regularizers_of_squares_beyond_float64_say_so(self, scale):
        for function in (r_well, r_ill):
            with pytest.raises(InvalidInputError, match=r"square overflows float64.*divide"):
                function(scale * K)

    def test_batches_that_do_not_fit(self):
        with pytest.raises(InvalidInputError, match=r"\(2, 3, 3\) and covariance \(4, 3, 3\) do not fit"):
            hessian(np.ones((2, 3, 3)), np.stack([K] * 4))

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_the_scale_of_theta_leaves_no_nan(self, scale):
        theta = np.diag([1.0, 2.0, 3.0])
        found, plain = (relative_immunization_ratio(s * theta, K, K) for s in (scale, 1.0))
        assert found.rir == pytest.approx(plain.rir)
