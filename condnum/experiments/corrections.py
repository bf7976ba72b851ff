"""Where the paper's theory does not hold as printed: each claim with a computed counter-example."""

import hashlib
import tomllib
from collections.abc import Callable
from functools import cache
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.arrays import FloatArray
from condnum.experiments.frame import Cell, Row, Run
from condnum.files import asset
from condnum.numbers import num
from condnum.page.look import log_axis
from condnum.page.style import PALETTE, add_line, empty, finish
from condnum.probing.probe import probe_steps
from condnum.theory.alignment import alignment
from condnum.theory.kappa import condition_number, relative_immunization_ratio
from condnum.theory.limits import max_rir_immunizer, rir_limit
from condnum.theory.regularizers import (
    ill_of_spectrum,
    ill_spectrum_step,
    ill_step_bound,
    well_spectrum_step,
    well_step_bound,
)
from condnum.theory.task import Task

#: Steps of exact line search that an attacker may take.
BUDGET = 2_000


def cells(*, full: bool = True) -> list[Cell]:
    """List the claims, in the order of the paper; there is no smaller run."""
    return [{"claim": name} for name in CLAIMS]


def checksum(**_: Any) -> str:
    """Return the SHA-256 of the texts."""
    return hashlib.sha256(asset("experiments/corrections.toml").encode()).hexdigest()


def compute(*, claim: str) -> Row:
    """Return the numbers of a counter-example, and whether they contradict the claim."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in CLAIMS[claim]().items()
    }


def informed_attacker() -> Row:
    """Attack θ* by exact line search, and after whitening, which takes the attacker's features alone."""
    D = 16
    first, last, turn = np.arange(D // 2), D - 1 - np.arange(D // 2), np.eye(D) * 0.5**0.5
    turn[last, first], turn[first, last] = 0.5**0.5, -(0.5**0.5)  # 45° in each plane
    K_P, K_H = np.diag(np.geomspace(1, 1 / 100, D)), (turn * np.geomspace(1, 1 / 10, D)) @ turn.T
    best = np.asarray(max_rir_immunizer(K_P))
    whitener = Task.of_covariance(best.T @ K_H @ best).whitener.numpy()
    task = Task.of_covariance(K_H, K_H @ np.random.default_rng(0).normal(size=D))
    row: Row = {}
    for name, theta in {"raw": np.eye(D), "best": best, "whitened": best @ whitener}.items():
        row[f"{name}_kappa"] = condition_number(theta.T @ K_H @ theta).value
        row[f"{name}_steps"] = probe_steps(theta, task, epsilon=0.01, budget=BUDGET).exact
    return row | {"refuted": row["whitened_steps"] < row["raw_steps"] < row["best_steps"]}


def proposition_3_2() -> Row:
    """Check Eq. 10 where U does not diagonalize K: it gives the diagonal of ΣUᵀKUΣ, not its eigenvalues."""
    found = alignment(np.diag([2.0, 1.0]), np.array([[2.0, 1.0], [1.0, 2.0]]))
    row = _numbered("predicted", found.predicted) | _numbered("sigma", found.spectrum)
    row |= {"predicted_kappa": found.predicted_condition, "kappa": found.true_condition}
    return row | {"refuted": not np.isclose(row["predicted_kappa"], row["kappa"])}


def identity_extractor() -> Row:
    """Check Eq. 10 at θ = I, where every orthonormal basis is a valid U."""
    K = np.array([[2.0, 1.0], [1.0, 2.0]])
    predicted = [np.diag(U.T @ K @ U) for U in (np.eye(2), np.linalg.eigh(K)[1])]  # Eq. 10 with σ_θ = 1
    one, other = (sigma.max() / sigma.min() for sigma in predicted)
    return {"kappa_identity": one, "kappa_eigenvectors": other, "refuted": not np.isclose(one, other)}


def aligned_remark() -> Row:
    """Check the remark after Proposition 3.2 on two diagonal covariances."""
    K_P, K_H, theta = np.diag([100.0, 1.0]), np.diag([2.0, 1.0]), np.diag([0.1, 1.0])
    found = relative_immunization_ratio(theta, K_P, K_H)
    parts = {f"{task}_{when}": getattr(found, f"{task}_{when}").value
             for task in ("benign", "harmful") for when in ("before", "after")}  # fmt: skip
    return parts | {"rir": found.rir, "limit": rir_limit(K_P, K_H).value, "refuted": found.success}


def theorem_4_1() -> Row:
    """Check Theorem 4.1 (1), R_ill = 0 iff κ = ∞, in both directions."""
    vanishing, scaled = ((kappa[-1], value[-1]) for kappa, value in spectra().values())
    row = {"vanishing_kappa": vanishing[0], "vanishing_value": vanishing[1]}
    row |= {"scaled_kappa": scaled[0], "scaled_value": scaled[1]}
    return row | {"refuted": vanishing[1] > 1 and vanishing[0] > 1e5 and scaled[1] < 1e-3 and scaled[0] < 1e5}


def theorem_4_3_well() -> Row:
    """Check the printed step bound of Theorem 4.3 (1) at half its size, where σ₁ is sent to 0."""
    sigma, eta = np.array([4.0, 1.0]), 0.25
    return _step(sigma, eta, np.asarray(well_spectrum_step(sigma, eta)), well_step_bound, rises=True)


def theorem_4_3_ill() -> Row:
    """Check the printed step bound of Theorem 4.3 (2) below its size."""
    sigma, share = np.array([2.15920825, 1.9376387, 1.32386916]), 0.8063
    eta = share * ill_step_bound(sigma, bound="published")
    row = _step(sigma, eta, np.asarray(ill_spectrum_step(sigma, eta)), ill_step_bound, rises=False)
    return row | {"share": share}


def scale_of_ratios() -> Row:
    """Check whether "(i) > 1 and (ii) ≤ 1" is a property of the model on singular covariances."""
    K_P, K_H, theta = np.diag([100.0, 1.0, 0.0]), np.diag([2.0, 1.0, 0.0]), np.diag([0.1, 1.0, 1.0])
    measure: dict[str, Any] = {"convention": "ridge", "theta_scale": "as_trained"}
    one, three = (relative_immunization_ratio(c * theta, K_P, K_H, **measure) for c in (1, 3))
    row = {"harmful_one": one.harmful_ratio, "benign_one": one.benign_ratio, "rir": one.rir}
    row |= {"harmful_three": three.harmful_ratio, "benign_three": three.benign_ratio}
    return row | {"refuted": one.success != three.success}


#: Every claim, in the order of the paper, by the name of its texts.
CLAIMS: dict[str, Callable[[], Row]] = {
    "informed-attacker": informed_attacker,
    "proposition-3-2": proposition_3_2,
    "identity": identity_extractor,
    "aligned-tasks": aligned_remark,
    "theorem-4-1": theorem_4_1,
    "theorem-4-3-1": theorem_4_3_well,
    "theorem-4-3-2": theorem_4_3_ill,
    "theta-scale": scale_of_ratios,
}


def _numbered(name: str, values: Any) -> Row:
    """Return the entries of a vector as columns."""
    return {f"{name}_{number}": float(value) for number, value in enumerate(values, 1)}


def _step(
    sigma: FloatArray, eta: float, moved: FloatArray, bound: Callable[..., float], *, rises: bool
) -> Row:
    """Return where a step takes a spectrum, beside the printed and the corrected bound."""
    kappa, low = sigma[0] / sigma[-1], moved.min()
    after = moved.max() / low if low > 1e-12 * moved.max() else np.inf
    row = (
        _numbered("sigma", sigma)
        | _numbered("next", moved)
        | {"eta": eta, "kappa": kappa, "next_kappa": after}
    )
    row |= {"printed": bound(sigma, bound="published"), "corrected": bound(sigma)}
    wrong = after >= kappa if rises else after <= kappa
    return row | {"refuted": bool(eta < row["printed"] and wrong)}


def spectra() -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return κ and R_ill along two ways from the spectrum (1, ½, 0.1): σ₃ → 0, and a growing scale."""
    vanishing = np.tile([1.0, 0.5, 0.1], (121, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, 121)
    ways = {"(1, ½, σ), σ → 0": vanishing,
            "c · (1, ½, 0.1), c → ∞": np.geomspace(1, 1e3, 121)[:, None] * [1.0, 0.5, 0.1]}  # fmt: skip
    return {
        name: (
            sigmas[:, 0] / sigmas[:, -1],
            np.array([float(ill_of_spectrum(torch.from_numpy(sigma)).value) for sigma in sigmas]),
        )
        for name, sigmas in ways.items()
    }


class _Numbers(Formatter):
    """Writes numbers for people, to four digits or as many as a template asks for."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a number as text."""
        return num(value, int(format_spec or 4))


@cache
def texts() -> dict[str, dict[str, str]]:
    """Return place, claim, setting, result and correction of each claim, with names of numbers in braces."""
    return tomllib.loads(asset("experiments/corrections.toml"))


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per claim, its numbers in words."""
    return pd.DataFrame(
        [
            {name: _Numbers().format(text, **row) for name, text in texts()[row["claim"]].items()}
            | {"refuted": bool(row["refuted"])}
            for row in rows.to_dict("records")
        ]
    )


def sentence(table: pd.DataFrame) -> str:
    """Return how many statements are refuted."""
    return (
        f"{table['refuted'].sum()} of {len(table)} statements of the paper are refuted, each by a "
        "counter-example computed here. Algorithm 1 itself immunizes linear extractors."
    )


def figure(run: Run) -> Any:
    """Draw κ and R_ill, of which one does not determine the other, against Theorem 4.1 (1)."""
    drawn, ways = empty(), spectra()
    for color, (name, (kappa, value)) in zip(PALETTE, ways.items(), strict=False):
        add_line(drawn, name, kappa, value, color)
        drawn.add_scatter(
            x=kappa[-1:], y=value[-1:], mode="markers", marker={"color": color, "size": 11}, showlegend=False
        )
    drawn.update_xaxes(**log_axis("κ(S)", ways["(1, ½, σ), σ → 0"][0]))
    drawn.update_yaxes(
        **log_axis("R<sub>ill</sub>(S)", np.concatenate([value for _, value in ways.values()]))
    )
    note = (
        "First line: κ → ∞, and R<sub>ill</sub> stays at 4.8. Second: R<sub>ill</sub> → 0, and κ stays at 10"
    )
    return finish(drawn, "R<sub>ill</sub> does not determine κ (Theorem 4.1)", note, height=420, legend="")
