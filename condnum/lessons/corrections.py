"""Where the paper's theory does not hold as printed: each claim with a computed counter-example."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from condnum.files import asset
from condnum.lessons.regularizer_paths import value_plane
from condnum.lessons.regularizers import counter_example, regularizer_step
from condnum.lessons.two_tasks import attacks
from condnum.numbers import num
from condnum.page.tables import as_html, formula_html
from condnum.theory.alignment import alignment
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import rir_limit

HEADINGS = {
    "place": "where",
    "claim": "what the paper says",
    "setting": "counter-example",
    "claimed": "by the claim",
    "computed": "computed",
    "correction": "what holds",
}


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
    refuted: bool  # whether the computed numbers contradict the claim

    def _repr_html_(self) -> str:
        """Return a table of two columns."""
        rows = [(title, formula_html(str(getattr(self, name)))) for name, title in HEADINGS.items()]
        answer = "the claim is refuted" if self.refuted else "the numbers agree with the claim"
        return as_html(pd.DataFrame([*rows, ("verdict", f"<b>{answer}</b>")], columns=["", " "]))


class _Numbers(Formatter):
    """Writes numbers for people, to four digits or as many as a template asks for."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a number as text."""
        return num(value, int(format_spec or 4))


def _correction(key: str, refuted: Any, **found: Any) -> Correction:
    """Fill what was found into the texts of a correction."""
    texts = tomllib.loads(asset("lessons/corrections.toml"))[key]
    filled = {name: _Numbers().format(text, **found) for name, text in texts.items()}
    return Correction(key, **filled, refuted=bool(refuted))


def proposition_3_2() -> Correction:
    """Check Eq. 10 where U does not diagonalize K: it gives the diagonal of ΣUᵀKUΣ, not its eigenvalues."""
    found = alignment(np.diag([2.0, 1.0]), np.array([[2.0, 1.0], [1.0, 2.0]]))
    differ = not np.isclose(found.predicted_condition, found.true_condition)
    return _correction("proposition-3-2", differ, found=found)


def identity_extractor() -> Correction:
    """Check Eq. 10 at θ = I, where every orthonormal basis is a valid U."""
    K = np.array([[2.0, 1.0], [1.0, 2.0]])
    predicted = [np.diag(U.T @ K @ U) for U in (np.eye(2), np.linalg.eigh(K)[1])]  # Eq. 10 with σ_θ = 1
    kappas = [sigma.max() / sigma.min() for sigma in predicted]
    return _correction("identity", not np.isclose(*kappas), kappas=kappas)


def aligned_remark() -> Correction:
    """Check the remark after Proposition 3.2 on two diagonal covariances."""
    K_P, K_H, theta = np.diag([100.0, 1.0]), np.diag([2.0, 1.0]), np.diag([0.1, 1.0])
    found, limit = relative_immunization_ratio(theta, K_P, K_H), rir_limit(K_P, K_H).value
    return _correction("aligned-tasks", found.success, found=found, limit=limit)


def theorem_4_1() -> Correction:
    """Check Theorem 4.1 (1), R_ill = 0 iff κ = ∞, in both directions."""
    vanishing, scaled, _ = ([part[-1] for part in curve] for curve in value_plane().values())
    (kappa, value), (other, small) = vanishing, scaled
    refuted = value > 1 and kappa > 1e5 and small < 1e-3 and other < 1e5
    return _correction("theorem-4-1", refuted, vanishing=vanishing, scaled=scaled)


def theorem_4_3_well() -> Correction:
    """Check the printed step bound of Theorem 4.3 (1) at half its size."""
    step = regularizer_step(**counter_example("well"))
    refuted = step.eta < step.printed and step.next_kappa >= step.kappa
    return _correction("theorem-4-3-1", refuted, step=step)


def theorem_4_3_ill() -> Correction:
    """Check the printed step bound of Theorem 4.3 (2) below its size."""
    step = regularizer_step(**counter_example("ill"))
    refuted = step.eta < step.printed and step.next_kappa <= step.kappa
    return _correction("theorem-4-3-2", refuted, step=step, share=step.eta / step.printed)


def scale_of_ratios() -> Correction:
    """Check whether "(i) > 1 and (ii) ≤ 1" is a property of the model on singular covariances."""
    K_P, K_H, theta = np.diag([100.0, 1.0, 0.0]), np.diag([2.0, 1.0, 0.0]), np.diag([0.1, 1.0, 1.0])
    measure: dict[str, Any] = {"convention": "ridge", "theta_scale": "as_trained"}
    one, three = (relative_immunization_ratio(c * theta, K_P, K_H, **measure) for c in (1, 3))
    return _correction("theta_scale", one.success != three.success, one=one, three=three)


def informed_attacker() -> Correction:
    """Check whether an ill-conditioned probe is slow for an attacker who whitens the features."""
    raw, best, _, whitened = attacks()
    steps = [attack.steps_to(0.01) or np.inf for attack in (raw, best, whitened)]
    faster = steps[2] < steps[0]
    return _correction("informed-attacker", faster, raw=raw, best=best, whitened=whitened, steps=steps)


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


def correction_table(found: Sequence[Correction]) -> pd.DataFrame:
    """Return corrections as a table, without the raw numbers."""
    return pd.DataFrame([asdict(one) for one in found], columns=["key", *HEADINGS, "refuted"])
