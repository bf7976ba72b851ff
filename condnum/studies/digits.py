"""Table 2 and Figure 2: linear extractors on pairs of digits, of MNIST or of the bundled 8×8 ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch

from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.errors import InvalidInputError
from condnum.methods.problem import ImmunizationProblem, LogisticLoss
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, several
from condnum.studies.linear import LinearStudy
from condnum.studies.measure import (
    TABLE_2,
    average_over_pairs,
    limits,
    measured_row,
    seed_summary,
)
from condnum.studies.method_study import MethodNames
from condnum.theory.task import Task

#: The paper's four methods, and what runs on digits: those, and the closed forms that say what is possible.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
DIGIT_METHODS = (*PAPER_METHODS, "max_rir", "pareto", "erase")

#: Rows of the supervised loss, balanced.
LOSS_ROWS = 1000

#: Tasks that a process keeps, 20 MB each for MNIST: the cells of a pair come one after the other.
_KEPT = 8


def read_pair(pair: str | Sequence[int]) -> tuple[int, int]:
    """Read a pair of digits, as a user types it or as it is."""
    word = pair if isinstance(pair, str) else "-".join(map(str, pair))
    digits = word.split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"expected a pair of digits such as 4-7, or several as in 4-7,9-0; got '{word}'."
        )
    if digits[0] == digits[1]:
        raise InvalidInputError(f"pair '{word}': give two different digits from 0 to 9.")
    return int(digits[0]), int(digits[1])


#: Pairs of digits, `4-7,9-0`.
Pairs: TypeAlias = Annotated[tuple[tuple[int, int], ...], several(read_pair)]


@dataclass(frozen=True)
class DigitPairs(LinearStudy, name="digit-pairs", notebook="mnist"):
    """Methods × seeds × pairs of digits; the spectra are kept."""

    data: str  # mnist, digits (8×8), or a path to the folder of MNIST
    methods: MethodNames  # empty: `DIGIT_METHODS`
    seeds: Count
    steps: Count | None
    pairs: Pairs  # (benign, harmful); empty: all 90
    labels: Literal["one_vs_rest", "published"]
    device: str
    sets: ClassVar[tuple[str, ...]] = ("mnist", "digits")

    def check(self) -> None:
        """Choose all pairs where none are given."""
        super().check()
        self.fill(methods=DIGIT_METHODS, pairs=tuple(permutations(range(10), 2)))

    def load(self) -> Digits:
        """Load the digits, and see that each pair has images."""
        digits = load_small_digits() if self.data == "digits" else load_mnist_images(self.source)
        for benign, harmful in self.pairs:
            digits.smaller_count(benign, harmful)
        return digits

    def cells(self, data: Digits) -> list[Cell]:
        """List pair by pair, whose cells share covariances."""
        return [
            self.cell(method, seed, benign=benign, harmful=harmful, labels=self.labels)
            for benign, harmful in self.pairs
            for seed, method in self.runs()
        ]

    def problem(self, data: Digits, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks of a cell."""
        return digit_problem(data, *_digits(cell), cell["labels"], cell["device"])

    def names(self, data: Digits, cell: Cell) -> dict[str, str]:
        """Return data set and tasks, as tables have them."""
        tasks = {f"{side}_task": f"digit {cell[side]}" for side in ("benign", "harmful")}
        return {"dataset": data.name, **tasks}

    def compute(self, data: Digits, cell: Cell) -> CellResult:
        """Immunize one pair and keep its spectra."""
        row = measured_row(self.problem(data, cell), self.immunize(data, cell))
        own = dict(zip(("benign_digit", "harmful_digit"), _digits(cell), strict=True))
        limits = _limits(data, *_digits(cell), cell["labels"], cell["device"])
        return CellResult({**row, **own, **limits}, {})

    def tables(self, data: Digits, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every cell, and average over pairs, then over seeds, beside Table 2."""
        table = self.measured(data, results, ("benign_digit", "harmful_digit"))
        summary = seed_summary(average_over_pairs(table), TABLE_2 if self.known == "mnist" else {})
        return {
            "results": table,
            "summary": summary.assign(pairs=len({_digits(cell) for cell, *_ in results})),
        }


def _digits(cell: Cell) -> tuple[int, int]:
    """Return the digits of D_P and D_H."""
    return cell["benign"], cell["harmful"]


def digit_problem(
    digits: Digits, benign: int, harmful: int, labels: str, device: str = "cpu"
) -> ImmunizationProblem:
    """Build the tasks of two digits: covariances of equally many images, logistic losses one-vs-rest."""
    count = min(digits.counts[benign], digits.counts[harmful])
    # One-vs-rest is one task whichever side it is on; a digit alone has its side's label.
    sides = ((benign, 0.0), (harmful, 1.0 if labels == "published" else 0.0))
    found = [_task(digits, digit, count, labels, of, device) for digit, of in sides]
    (P, H), losses, probes = zip(*found, strict=True)
    return ImmunizationProblem(P, H, losses, probes)


@lru_cache(_KEPT)
def _task(
    digits: Digits, digit: int, count: int, labels: str, label: float, device: str
) -> tuple[Task, LogisticLoss, Task]:
    """Return a digit's task, of its first `count` images, with loss and probe on a sample."""
    own = np.flatnonzero(digits.labels == digit)[:count]
    if labels == "published":
        index = own[:LOSS_ROWS]
        targets = np.full(len(index), label)
    else:
        half = min(count, LOSS_ROWS // 2)
        rest = np.flatnonzero(digits.labels != digit)
        drawn = np.random.default_rng([digit, count]).choice(rest, size=half, replace=False)
        index, targets = np.concatenate([own[:half], drawn]), np.repeat([1.0, 0.0], half)
    rows = torch.from_numpy(digits.pixels(index)).to(device)
    y = torch.as_tensor(targets)[:, None].to(device)
    own_rows = torch.from_numpy(digits.pixels(own))
    return Task.of(own_rows, device=device), LogisticLoss(rows, y), Task.of(rows, y, kind="regression")


@lru_cache(_KEPT)
def _limits(digits: Digits, benign: int, harmful: int, labels: str, device: str) -> dict[str, float]:
    """Return the limits of a pair, the same for all its cells."""
    return limits(digit_problem(digits, benign, harmful, labels, device))
