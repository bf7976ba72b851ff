"""RIR (Eq. 15) and the verdict of Definition 3.1: by hand, scales of θ, conventions, round-off."""

import math
from dataclasses import replace

import numpy as np
import pytest

from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.theory.immunization import LOSS_TOLERANCE, Clauses, relative_immunization_ratio

#: The pair of the paper's remark: both diagonal, so "aligned".
K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])


def gaussian_covariance(rng, D, rows):
    X = rng.normal(size=(rows, D))
    return X.T @ X


def kappas(result):
    parts = (result.pretrain_before, result.pretrain_after, result.harmful_before, result.harmful_after)
    return [kappa.value for kappa in parts]


class TestByHand:
    def test_eq_15_on_diagonal_matrices(self):
        # θ = diag(1, 3): H_P = diag(100, 9), H_H = diag(2, 9).
        result = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H)
        assert kappas(result) == pytest.approx([100, 100 / 9, 2, 9 / 2])
        ratios = (result.harmful_ratio, result.pretrain_ratio, result.rir)
        assert ratios == pytest.approx((9 / 4, 1 / 9, 81 / 4))
        assert result.success is True
        assert (result.convention, result.theta_scale, result.loss_gap) == ("compact", "unit", None)

    def test_ridge_convention_in_the_unit_scale(self):
        # θ = diag(1, 3) has ‖θ‖² = 10, so θ² becomes (1/5, 9/5); ε = 1.
        result = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H, convention="ridge", ridge=1.0)
        expected = [101 / 2, (20 + 1) / (9 / 5 + 1), 3 / 2, (9 / 5 + 1) / (2 / 5 + 1)]
        assert kappas(result) == pytest.approx(expected)

    @pytest.mark.parametrize("c", [1.0, 0.7])
    @pytest.mark.parametrize("rows", [9, 4], ids=["full-rank", "singular"])
    def test_round_off_does_not_make_the_identity_an_immunizer(self, rows, c):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            K = gaussian_covariance(rng, 5, rows), gaussian_covariance(rng, 5, rows)
            result = relative_immunization_ratio(c * np.eye(5), *K)
            assert result.clauses == Clauses(False, True, True)
            assert result.success is False


class TestVerdict:
    @pytest.mark.parametrize(
        ("theta", "clauses"),
        [
            # H_P = diag(100a, b), H_H = diag(2a, b) for θ² = (a, b).
            ((1.0, 9.0), (True, True)),
            ((1.0, 3.0), (False, True)),
            ((2.0, 1.0), (True, False)),
        ],
    )
    def test_both_clauses_are_needed(self, theta, clauses):
        result = relative_immunization_ratio(np.diag(np.sqrt(theta)), K_P, K_H)
        assert result.clauses == Clauses(*clauses, True)  # an invertible θ keeps (c)
        assert result.success is all(clauses)

    @pytest.mark.parametrize(("gap", "kept"), [(-1e-16, True), (LOSS_TOLERANCE, True), (0.011, False)])
    def test_loss_gap_decides_clause_c(self, gap, kept):
        result = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H, loss_gap=gap)
        assert result.clauses == Clauses(True, True, kept)
        assert result.success is kept
        assert result.loss_gap == pytest.approx(gap)


class TestRemovedDirections:
    """θ = diag(1, ½, 0) drops a direction that D_P uses: κ(H_P) is that of the rest."""

    THETA, P, H = np.diag([1, 0.5, 0]), np.diag([1, 1, 1e-3]), np.diag([1, 0.01, 1])

    def test_without_targets_it_is_undecided(self):
        found = relative_immunization_ratio(self.THETA, self.P, self.H)
        assert found.rir == pytest.approx(1000)
        assert found.clauses == Clauses(True, True, None)
        assert found.clauses.met is None
        assert found.rank_changed
        assert not found.success
        assert found.verdict.startswith("undecided: theta removes 1 of the 3 directions that D_P uses")

    @pytest.mark.parametrize(("gap", "verdict"), [(0.0, "met"), (0.5, "NOT met, (c) fails")])
    def test_with_targets_clause_c_decides(self, gap, verdict):
        found = relative_immunization_ratio(self.THETA, self.P, self.H, loss_gap=gap)
        assert (found.success, found.verdict) == (gap == 0, verdict)

    def test_what_only_the_harmful_task_uses_may_go(self):
        diagonals = [0.1, 1, 0], [100.0, 1, 0], [2.0, 1, 9]
        found = relative_immunization_ratio(*map(np.diag, diagonals))
        assert found.rank_changed
        assert (found.pretrain_lost, found.success, found.verdict) == (0, True, "met")

    @pytest.mark.parametrize("seed", range(5))
    def test_a_direction_below_round_off_counts_as_removed(self, seed):
        theta = np.diag([1, 0.5, 1e-9]) @ np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
        assert not relative_immunization_ratio(theta, self.P, self.H).success


class TestActualProbes:
    """Condition numbers are worst cases: a verdict that is met never stands without the actual probes."""

    MET = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H)
    UNKNOWN = "is not known without targets"

    def said(self, benign, harmful, *, verdict=MET):
        verdict = replace(verdict, benign_slowdown=benign, harmful_slowdown=harmful)
        assert str(verdict).splitlines()[0] == repr(verdict)
        return repr(verdict).split(", RIR = ")[1]

    def test_without_targets_they_are_not_known(self):
        assert (self.MET.benign_slowdown, self.MET.harmful_slowdown) == (None, None)
        assert repr(self.MET).startswith("Definition 3.1 is met: (i) = 2.25, (ii) = 0.1111, RIR = 20.25. ")
        assert f"How many steps the actual probes take {self.UNKNOWN}" in repr(self.MET)

    def test_both_factors_are_in_the_words(self):
        said = self.said(2.0, 500.0)
        assert "the benign probe takes 2 times as many steps as on raw inputs" in said
        assert "the harmful probe takes 500 times as many steps as on raw inputs." in said
        assert not any(words in said for words in ("lost", "not slowed", self.UNKNOWN))

    @pytest.mark.parametrize(
        ("given", "other", "factors"),
        [("benign", "harmful", (3.0, None)), ("harmful", "benign", (None, 3.0))],
        ids=["benign", "harmful"],
    )
    def test_one_factor_leaves_the_other_unknown(self, given, other, factors):
        said = self.said(*factors)
        assert f"the {given} probe takes 3 times as many steps" in said
        assert f"How many steps the {other} probe takes {self.UNKNOWN}" in said

    @pytest.mark.parametrize(
        ("factors", "words"),
        [
            ((798.0, 5.0), "The definition is met, but the benign task is lost"),
            ((798.0, 0.5), "The harmful task is not slowed."),
            ((1.0, 0.08), "The definition is met, but the harmful task is not slowed."),
            ((1.0, 1.0), "The definition is met, but the harmful task is not slowed."),
            ((math.inf, 5.0), "the benign probe never reaches that loss"),
            ((math.inf, 5.0), "the benign task is lost"),
            ((1.0, math.inf), "the harmful probe never reaches that loss within 2⁵⁰ steps."),
            (
                (1.0, math.nan),
                "the harmful probe never reaches that loss within 2⁵⁰ steps, on raw inputs either",
            ),
        ],
    )
    def test_what_follows_is_said(self, factors, words):
        assert words in self.said(*factors)

    def test_a_definition_that_fails_is_not_called_met(self):
        fails = relative_immunization_ratio(np.eye(2), K_P, K_H)
        said = self.said(798.0, 0.08, verdict=fails)
        assert "The benign task is lost" in said
        assert "met" not in said


class TestThetaScale:
    @pytest.mark.parametrize("c", [0.1, 100.0])
    def test_ridge_as_trained_moves_with_the_square_when_rank_deficient(self, c):
        rng = np.random.default_rng(1)
        K = gaussian_covariance(rng, 5, 3), gaussian_covariance(rng, 5, 4)
        theta = rng.normal(size=(5, 5))
        base, scaled = (
            relative_immunization_ratio(t, *K, convention="ridge", theta_scale="as_trained")
            for t in (theta, c * theta)
        )
        # κ_ε = σ₁/ε + 1, and σ₁/ε ≥ 1e4: c² is exact up to ε/σ₁.
        assert scaled.harmful_ratio == pytest.approx(c**2 * base.harmful_ratio, rel=1e-4)
        assert scaled.pretrain_ratio == pytest.approx(c**2 * base.pretrain_ratio, rel=1e-4)
        assert scaled.rir == pytest.approx(base.rir, rel=1e-4)


@pytest.mark.parametrize(
    ("theta", "P", "options", "error", "message"),
    [
        (np.eye(3), K_P, {}, InvalidInputError, r"\(2, 2\).*got \(3, 3\)"),
        (np.zeros((2, 2)), K_P, {}, RankError, "theta is the zero matrix"),
        (np.eye(2), K_P, {"theta_scale": "units"}, UnknownNameError, "did you mean 'unit'"),
        (np.eye(2), K_P, {"convention": "ridge", "ridge": 0.0}, InvalidInputError, "ridge must be"),
    ],
)
def test_refused(theta, P, options, error, message):
    with pytest.raises(error, match=message):
        relative_immunization_ratio(theta, P, K_H, **options)
