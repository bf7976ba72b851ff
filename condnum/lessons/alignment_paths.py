"""What notebook 7 looks up: the kept steps of extractors on a pair of tasks, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from condnum.lessons.alignment_training import PathTasks
from condnum.lessons.condition_number import Floats
from condnum.numbers import num
from condnum.page.style import method_style
from condnum.theory.kappa import RATIO_TOLERANCE, Clauses

#: Marks of the slider along a training, over which the kept steps are spread.
TRAINING = 40


@dataclass(frozen=True, eq=False)
class ExtractorPath:
    """One extractor along its training."""

    name: str
    arrays: dict[str, Any]  # of `follow`

    @property
    def label(self) -> str:
        """The method in words."""
        return method_style(self.name).label

    @property
    def short(self) -> str:
        """The method in a word."""
        return self.label.split(" (")[0]

    @property
    def trained(self) -> bool:
        """Whether there is more than one step."""
        return len(self.arrays["step"]) > 1

    def at(self, training: int) -> "Step":
        """Return the kept step at a mark of the slider."""
        return Step(self, round(training / TRAINING * (len(self.arrays["step"]) - 1)))


@dataclass(frozen=True, eq=False)
class Step:
    """A kept step of an extractor."""

    path: ExtractorPath
    index: int

    def __getitem__(self, name: str) -> Any:
        """Return what was measured at this step."""
        return self.path.arrays[name][self.index]

    def left(self, first: int, count: int = 1) -> Floats:
        """Return u_i from the one numbered `first` on, `(D, count)`."""
        return self["left"][:, first - 1 : first - 1 + count].astype(np.float64)

    @property
    def name(self) -> str:
        """Extractor and step in words."""
        path = self.path
        if not path.trained:
            return path.label
        return f"{path.label}, step {int(self['step']):,} of {int(path.arrays['step'][-1]):,}"

    @property
    def immunized(self) -> bool:
        """Clauses (a) and (b) of Definition 3.1, compact."""
        benign, harmful = self["ratios"]
        clauses = Clauses(harmful > 1 + RATIO_TOLERANCE, benign <= 1 + RATIO_TOLERANCE, None)
        return bool(clauses.harmful_slower and clauses.benign_no_slower)

    @property
    def ratios(self) -> str:
        """(i) and (ii) and RIR in words."""
        benign, harmful = self["ratios"]
        return f"(i) = {num(harmful)}, (ii) = {num(benign)}, RIR = {num(harmful / benign)}"

    @property
    def verdict(self) -> str:
        """The ratios, and whether they immunize."""
        return f"{self.ratios}, {'immunized' if self.immunized else 'not immunized'}"

    @property
    def unique(self) -> bool:
        """Whether no two singular values of θ agree, so that each u_i is its own."""
        s = self["sigma"]
        return bool((np.diff(s) < -len(s) * np.finfo(np.float64).eps * s[0]).all())

    def shares(self, i: int, tasks: PathTasks) -> tuple[float, float]:
        """Return which part of R_well(H_P), R_ill(H_H) depends on σ_i, by Euler: ∂R/∂log σ_i over ±4R."""
        D, k = tasks.dimension, tasks.rank(1)
        (P, H), square = self["spectrum"], self["square"][:, i - 1]
        top, low = self["top"][0][i - 1], self["low"][1][i - 1]
        well = P[0] ** 2 - np.square(P).sum() / D
        ill = np.square(H).sum() / k - H[k - 1] ** 2
        return (P[0] ** 2 * top - square[0] / D) / well, (square[1] / k - H[k - 1] ** 2 * low) / ill


@dataclass(frozen=True, eq=False)
class Selection:
    """A step of one extractor, with a direction u_i and an eigenvector q_j."""

    tasks: PathTasks
    step: Step
    side: int  # of the task whose q_j is meant: 0 for D_P, 1 for D_H
    i: int
    j: int


def summary(paths: Mapping[str, ExtractorPath]) -> pd.DataFrame:
    """Return the last step of each extractor."""
    rows = []
    for name, path in paths.items():
        step = path.at(TRAINING)
        benign, harmful = step["ratios"]
        row = {"steps": int(step["step"]), "(i)": harmful, "(ii)": benign, "RIR": harmful / benign}
        for side, task in enumerate("PH"):
            row |= {
                f"misalignment {task}": step["misalignment"][side],
                f"κ of Eq. 10 / κ, {task}": step["predicted_kappa"][side] / step["kappa"][side],
            }
        rows.append({"extractor": name, **row})
    return pd.DataFrame(rows).set_index("extractor")
