"""Where the paper's theory does not hold as printed: each claim with a counter-example, computed when asked.

Proposition 3.2, the remark after it, Theorems 4.1 (1) and 4.3, the reading of (i) and (ii) one by one, and
what a condition number bounds at all. Nothing is stored: every number comes from the library's functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import num
from condnum.files import write_tables
from condnum.lessons.aligned_tasks import aligned_tasks
from condnum.lessons.regularizer_paths import value_plane
from condnum.lessons.regularizers import RegularizerStep, counter_example, regularizer_step
from condnum.lessons.two_tasks import attacks
from condnum.report.tables import CORRECTIONS_CSV, as_html, formula_html
from condnum.theory.alignment import alignment
from condnum.theory.immunization import relative_immunization_ratio


@dataclass(frozen=True)
class Correction:
    """One claim of the paper, a setting in which it can be checked, and what comes out."""

    key: str  # stable name: the anchor of its section
    place: str  # where the paper says it
    claim: str  # what it says
    setting: str  # the counter-example
    claimed: str  # what the claim makes of the setting
    computed: str  # what is so
    correction: str  # what is true instead
    values: Mapping[str, float]  # the numbers of `computed`
    refuted: bool  # whether the computed numbers contradict the claim


def listed(values: Any) -> str:
    """Return numbers as text."""
    return ", ".join(num(value, 4) for value in np.asarray(values, dtype=np.float64))


def proposition_3_2() -> Correction:
    """Check Eq. 10 where U does not diagonalise K: it gives the diagonal of ΣUᵀKUΣ, not its eigenvalues."""
    result = alignment(np.diag([2.0, 1.0]), np.array([[2.0, 1.0], [1.0, 2.0]]))
    kappa, predicted = result.true_condition, result.predicted_condition
    return Correction(
        "proposition-3-2",
        "Proposition 3.2, Eq. 10",
        "σ_i(H) = Σ_j (σ_θ,i u_iᵀq_j √γ_j)².",
        "θ = diag(2, 1), K = [[2, 1], [1, 2]]",
        f"σ = ({listed(result.predicted)}), κ = {num(predicted, 4)}",
        f"σ = ({listed(result.spectrum)}), κ = {num(kappa, 4)}",
        "Eq. 10 is the diagonal of ΣUᵀKUΣ. It equals the spectrum only if U diagonalises K on the support of "
        "Σ; else the truth majorises it (Schur–Horn), so that Eq. 10 underestimates κ.",
        {"kappa_eq_10": predicted, "kappa": kappa},
        refuted=not np.isclose(predicted, kappa),
    )


def identity_extractor() -> Correction:
    """Check Eq. 10 at θ = I, where every orthonormal basis is a valid U."""
    K = np.array([[2.0, 1.0], [1.0, 2.0]])
    predicted = [np.diag(U.T @ K @ U) for U in (np.eye(2), np.linalg.eigh(K)[1])]  # Eq. 10 with σ_θ = 1
    standard, eigenbasis = (float(sigma.max() / sigma.min()) for sigma in predicted)
    return Correction(
        "identity",
        "Proposition 3.2 at θ = I",
        "Eq. 10 has one value for each θ.",
        "θ = I = UIUᵀ for every orthogonal U; K = [[2, 1], [1, 2]]",
        "one κ",
        f"κ = {num(standard, 4)} with U = I, κ = {num(eigenbasis, 4)} with U = Q",
        "Where singular values of θ repeat, Eq. 10 depends on the choice of U; only the choice that "
        "diagonalises K gives the spectrum.",
        {"kappa_standard": standard, "kappa_eigenbasis": eigenbasis},
        refuted=not np.isclose(standard, eigenbasis),
    )


def aligned_remark() -> Correction:
    """Check the remark after Proposition 3.2 on two diagonal covariances."""
    run = aligned_tasks(exponent=1.0)
    measured = run.immunization
    pretrain, harmful = (
        f"{num(before.value, 4)} → {num(after.value, 4)}"
        for before, after in (
            (measured.pretrain_before, measured.pretrain_after),
            (measured.harmful_before, measured.harmful_after),
        )
    )
    ratios = {name: getattr(measured, name) for name in ("harmful_ratio", "pretrain_ratio", "rir")}
    limit = f"RIR = {num(measured.rir, 4)} of at most {num(run.ceiling, 4)}"
    return Correction(
        "aligned-tasks",
        "Remark after Proposition 3.2",
        "If the sorted singular vectors of K_P and K_H are aligned, no θ can raise κ(H_H) and lower κ(H_P).",
        "K_P = diag(100, 1), K_H = diag(2, 1), θ = K_P^(-1/2)",
        "not both",
        f"κ(H_P): {pretrain}; κ(H_H): {harmful}; {limit}",
        "What decides is the pencil (K_H, K_P): RIR is at most [λ_max/λ_min](K_H, K_P) · κ(K_P)/κ(K_H), and "
        "θ = K_P^(-1/2) attains it.",
        {**ratios, "ceiling": run.ceiling},
        refuted=measured.success,
    )


def theorem_4_1() -> Correction:
    """Check Theorem 4.1 (1), R_ill = 0 iff κ = ∞, in both directions."""
    curves = value_plane()
    kappa_1, value_1 = (float(part[-1]) for part in curves["vanishing"])
    kappa_2, value_2 = (float(part[-1]) for part in curves["scaled"])
    vanishing = {"kappa_vanishing": kappa_1, "r_ill_vanishing": value_1}
    return Correction(
        "theorem-4-1",
        "Theorem 4.1 (1)",
        "R_ill(S) = 0 if and only if κ(S) = ∞.",
        "spectra (1, ½, σ) with σ → 0, and c·(1, ½, 0.1) with growing c",
        "R_ill → 0 in the first, not in the second",
        f"R_ill = {num(value_1, 4)} at κ = {num(kappa_1)}; "
        f"R_ill = {num(value_2, 2)} at κ = {num(kappa_2, 4)}",
        "R_ill → 0 if and only if ‖S‖_F → ∞ with some spread. Parts (2) and (4) hold.",
        {**vanishing, "kappa_scaled": kappa_2, "r_ill_scaled": value_2},
        refuted=value_1 > 1 and kappa_1 > 1e5 and value_2 < 1e-3 and kappa_2 < 1e5,
    )


def step_values(step: RegularizerStep) -> dict[str, float]:
    """Return the numbers of a step that Theorem 4.3 speaks of."""
    kappa = {"kappa_before": step.kappa, "kappa_after": step.next_kappa}
    return {**kappa, "printed_bound": step.printed, "corrected_bound": step.corrected, "eta": step.eta}


def theorem_4_3_well() -> Correction:
    """Check the printed step bound of Theorem 4.3 (1) at half its size."""
    step = regularizer_step(**counter_example("well"))
    before, after = num(step.kappa, 4), num(step.next_kappa, 4)
    return Correction(
        "theorem-4-3-1",
        "Theorem 4.3 (1)",
        "A step of R_well below the printed bound lowers κ(H_P).",
        f"D = 2, σ = ({listed(step.sigma)}), η = {num(step.eta, 4)}, printed bound {num(step.printed, 4)}",
        f"κ falls from {before}",
        f"σ → ({listed(step.next_sigma)}): κ {before} → {after}",
        "The claim holds with the first term (1 − √(σ_k/σ₁)) / (2(1 − 1/D)σ₁); here that bound is "
        f"{num(step.corrected, 4)}.",
        step_values(step),
        refuted=step.eta < step.printed and step.next_kappa >= step.kappa,
    )


def theorem_4_3_ill() -> Correction:
    """Check the printed step bound of Theorem 4.3 (2) below its size."""
    step = regularizer_step(**counter_example("ill"))
    before, after, share = num(step.kappa, 4), num(step.next_kappa, 4), num(step.eta / step.printed, 4)
    return Correction(
        "theorem-4-3-2",
        "Theorem 4.3 (2)",
        "A step of R_ill below the printed bound raises κ(H_H).",
        f"k = 3, σ = ({listed(step.sigma)}), η = {share} × the printed bound",
        f"κ rises from {before}",
        f"κ {before} → {after}",
        f"The claim holds with the bound ρ²/(σ_k(1 − 2/k)) where ρ = 1/R_ill (any η for k ≤ 2); here "
        f"{num(step.corrected, 4)} in place of {num(step.printed, 4)}. The printed one is "
        "negative where σ_k > k/2.",
        step_values(step),
        refuted=step.eta < step.printed and step.next_kappa <= step.kappa,
    )


def scale_of_ratios() -> Correction:
    """Check whether "(i) > 1 and (ii) ≤ 1" is a property of the model on singular covariances."""
    K_P, K_H, theta = np.diag([100.0, 1.0, 0.0]), np.diag([2.0, 1.0, 0.0]), np.diag([0.1, 1.0, 1.0])
    one, three = (
        relative_immunization_ratio(c * theta, K_P, K_H, convention="ridge", theta_scale="as_trained")
        for c in (1, 3)
    )
    said = [f"(i) = {num(run.harmful_ratio, 4)}, (ii) = {num(run.pretrain_ratio, 4)}" for run in (one, three)]
    names = ("harmful_ratio", "pretrain_ratio", "rir")
    return Correction(
        "theta_scale",
        "Tables 1 and 2, read with Definition 3.1",
        "(i) > 1 and (ii) ≤ 1, with a floor of 1e-6 under the eigenvalues, say whether a model is immunized.",
        "K_P = diag(100, 1, 0), K_H = diag(2, 1, 0), θ = diag(0.1, 1, 1) and 3θ: the same model",
        "one verdict for both",
        f"θ: {said[0]}; 3θ: {said[1]}; RIR = {num(one.rir, 4)} for both",
        "With σ_D = 0 the floor makes κ = σ₁/ε, which grows with the square of the scale of θ. RIR is "
        "free of it up to ε/σ₁: fix ‖θ‖_F = √D before reading (i) and (ii), and show the non-zero spectrum "
        "beside it.",
        {f"{name}_{c}": getattr(run, name) for name in names for c, run in ((1, one), (3, three))},
        refuted=one.success != three.success,
    )


def informed_attacker() -> Correction:
    """Check whether an ill-conditioned probe is slow for an attacker who whitens the features."""
    arrived = 0.01  # share of the excess loss at the start
    tried = {attack.name: attack for attack in attacks()}
    steps = {name: attack.steps_to(arrived) for name, attack in tried.items()}
    counted = {name: float("inf" if count is None else count) for name, count in steps.items()}
    raw, whitened = "raw inputs, θ = I", "θ*, whitened by the attacker"
    words = [
        f"{name}: κ = {num(tried[name].kappa, 4)}, {num(counted[name], 6)} step{'s'[: counted[name] != 1]}"
        for name in (raw, "θ*", whitened)
    ]
    return Correction(
        "informed-attacker",
        "Definition 3.1 (a), read as a promise",
        "Where κ(H_H) is large, a linear probe on the harmful task is slow to train.",
        "two tasks with 16 features, θ* at the ceiling, exact line search to "
        f"{num(100 * arrived, 6)} % of the excess loss",
        "slow on θ*",
        "; ".join(words),
        "κ bounds how slowly plain gradient descent converges. Whitening needs only the attacker's own "
        "features, and an invertible θ leaves the harmful optimum where it was.",
        counted,
        refuted=counted[whitened] < counted[raw],
    )


#: Every correction, in the order of the paper.
CORRECTIONS: tuple[Callable[[], Correction], ...] = (
    informed_attacker,
    proposition_3_2,
    identity_extractor,
    aligned_remark,
    theorem_4_1,
    theorem_4_3_well,
    theorem_4_3_ill,
    scale_of_ratios,
)
HEADINGS = {
    "place": "where",
    "claim": "what the paper says",
    "setting": "counter-example",
    "claimed": "by the claim",
    "computed": "computed",
    "correction": "what holds",
}


def correction_table(found: Sequence[Correction]) -> pd.DataFrame:
    """Return corrections as a table, without the raw numbers."""
    return pd.DataFrame([asdict(one) for one in found], columns=["key", *HEADINGS, "refuted"])


def correction_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns for a reader, escaped for HTML."""
    chosen = table[["place", "claim", "computed", "correction"]].rename(columns=HEADINGS)
    return chosen.map(formula_html)


def correction_html(one: Correction) -> str:
    """Return one correction as a table of two columns."""
    rows = [(title, formula_html(str(getattr(one, name)))) for name, title in HEADINGS.items()]
    answer = "the claim is refuted" if one.refuted else "the numbers agree with the claim"
    return as_html(pd.DataFrame([*rows, ("verdict", f"<b>{answer}</b>")], columns=["", " "]))


def save(table: pd.DataFrame, folder: str | Path) -> list[str]:
    """Write the table."""
    return write_tables(folder, {CORRECTIONS_CSV: table})
