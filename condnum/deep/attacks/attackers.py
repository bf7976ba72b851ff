"""Who attacks a deep net: what is trained, by what, on which images, and what it may spend."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from condnum.errors import UnknownNameError, check_integer
from condnum.probing.probe import log_spaced

#: Parts of a net that an attacker may train; the new head is always among them.
Subset = Literal["head", "lora", "stage", "all"]

#: Examples per class that the attacker has; 0: all.
SHOTS = (8, 32, 128, 0)

#: Passes over the attacker's images after which accuracies are compared.
HORIZONS = (1, 5, 10, 50)

#: Smallest and largest value that the trials try, on a logarithmic grid: learning rates, of SGD multiples
#: of 1/L of the new head, for `whitened` the floor under the eigenvalues (of the largest), for `ridge` the
#: penalty (of the mean eigenvalue), for `logistic` scikit-learn's C.
RANGES: Mapping[str, tuple[float, float]] = {
    "head-sgd": (0.1, 100.0),
    "head-adamw": (1e-4, 1e-1),
    "sgd": (1e-3, 1.0),
    "adamw": (3e-5, 3e-2),
    "muon": (1e-3, 3e-1),
    "whitened": (1e-6, 1e-1),
    "ridge": (1e-6, 1.0),
    "trunk": (1e-6, 1.0),
    "logistic": (1e-3, 1e2),
}

#: Name of an attacker whose images are not those on which θ_I was trained: this and another's name.
FRESH = "fresh-"
#: Name of one who solves for a head on changed images: this and `ridge` or `logistic`.
TRANSFORMED = "transformed-"

#: Name of one who first trains on D_P alone, and then solves for a head on D_H: this and another's name.
BENIGN = "benign-"

#: Changes of images `(n, 3, height, width)`, one of which an attacker makes to all images, test images too.
#: The last four are of none of the kinds that `transformed_images` trains `erase` on.
CHANGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "negated": torch.neg,
    "twice the side": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "negated, twice the side": lambda x: -functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "blurred": lambda x: functional.avg_pool2d(x, 5, stride=1, padding=2),
    "contrast × 3": lambda x: 3 * x,
    "turned by 90°": lambda x: x.rot90(1, (2, 3)),
    "upside down": lambda x: x.flip(2),
    "twice as wide": lambda x: functional.interpolate(x, scale_factor=(1, 2), mode="bilinear"),
    "halves swapped": lambda x: x.roll(x.shape[3] // 2, 3),
    "thresholded": lambda x: (x > 0).to(x.dtype),
    "squared": torch.square,
}

#: Attackers of the features alone, and what trains weights, in words.
_OF_HEADS = {
    "whitened": "head on whitened features, SGD",
    "ridge": "ridge regression, solved",
    "logistic": "logistic regression, solved",
    "trunk": "ridge regression on the frozen trunk, solved",
}
_OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}

#: The panel unless others are named.
ATTACKERS = (
    "head-sgd", "head-adamw", "whitened", "ridge", "transformed-ridge", "logistic", "trunk", "lora4-adamw",
    "lora16-adamw", "stage-sgd", "stage-adamw", "all-sgd", "all-adamw",
)  # fmt: skip


@dataclass(frozen=True)
class DeepAttacker:
    """What is trained, by what, and on which images.

    `trunk` goes around the immunized part: it solves ridge regression on the pooled output of every module
    before that part, and takes the module that is best on held-out images. `transformed-ridge` and
    `transformed-logistic` solve for a head on changed images, and take the best of `CHANGES` likewise.
    `benign-stage-adamw` trains the last stage and the released head on D_P, and then solves for a head on
    D_H.

    Examples:
        >>> attacker = DeepAttacker.named("fresh-lora16-adamw")
        >>> attacker.subset, attacker.rank, attacker.label
        ('lora', 16, 'LoRA rank 16, AdamW, fresh images')
    """

    name: str
    subset: Subset
    optimizer: Literal["sgd", "adamw", "muon", "whitened", "ridge", "logistic", "trunk"]
    rank: int = 0  # of LoRA
    fresh: bool = False  # its images are not those on which θ_I was trained
    transformed: bool = False  # its head reads changed images
    benign: bool = False  # it trains on D_P, and then solves for a head

    @classmethod
    def named(cls, name: str) -> DeepAttacker:
        """Read a name of `ATTACKERS`, or `lora<rank>|stage|all` with `-sgd|-adamw|-muon`, or `fresh-…`."""
        own = name.removeprefix(FRESH)
        fresh, solver = own != name, own.removeprefix(TRANSFORMED)
        if own in _OF_HEADS or (solver != own and solver in ("ridge", "logistic")):
            return cls(name, "head", cast(Any, solver), fresh=fresh, transformed=solver != own)
        found = re.fullmatch(r"(benign-)?(head|stage|all|lora)([1-9]\d{0,3})?-(sgd|adamw|muon)", own)
        first, part, rank, optimizer = found.groups() if found else ("", "", None, "")
        benign = first == BENIGN
        if not part or (part == "lora") != bool(rank) or (benign and part == "head"):
            known = [*ATTACKERS, "lora8-sgd", "all-muon", "fresh-ridge", "transformed-logistic"]
            raise UnknownNameError("deep attacker", name, [*known, "benign-all-adamw", "…"])
        more = {"fresh": fresh, "benign": benign}
        return cls(name, cast(Subset, part), cast(Any, optimizer), int(rank or 0), **more)

    @property
    def label(self) -> str:
        """The attacker in words."""
        if self.optimizer in _OF_HEADS:
            own = _OF_HEADS[self.optimizer]
        else:
            lora = f"LoRA rank {self.rank}"
            parts = {"head": "new head", "lora": lora, "stage": "last stage", "all": "all weights"}
            own = f"{parts[self.subset]}, {_OPTIMIZERS[self.optimizer]}"
            own += ", on D_P alone; then ridge regression" * self.benign
        return own + ", transformed images" * self.transformed + ", fresh images" * self.fresh

    @property
    def closed_form(self) -> bool:
        """Whether it is solved: it reaches the goal after its passes, or misses it whatever the budget."""
        return self.optimizer in ("ridge", "logistic", "trunk")

    @property
    def full_batch(self) -> bool:
        """Whether a step passes over all rows: those of a head do, which cost next to nothing."""
        return self.subset == "head"

    def trials(self, count: int) -> NDArray[np.float64]:
        """Return the values that are tried, ascending."""
        low, high = RANGES.get(f"{self.subset}-{self.optimizer}", RANGES[self.optimizer])
        return np.geomspace(low, high, count) if count > 1 else np.array([math.sqrt(low * high)])


@dataclass(frozen=True)
class DeepBudget:
    """What each attacker may spend."""

    steps: int = 100
    trials: int = 4  # in the first repeat; the others take the chosen value
    repeats: int = 2  # with other heads and batches
    batch_size: int = 32
    checkpoints: int = 10  # log-spaced, at which accuracy is measured, beside `HORIZONS`

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 2 if name in ("batch_size", "checkpoints") else 1
            object.__setattr__(self, name, check_integer(name, value, least))

    def measured(self, batches: float) -> NDArray[np.int64]:
        """Return the steps at which accuracy is measured, with so many in a pass: 0 and `HORIZONS` too."""
        passes = np.round(np.array(HORIZONS) * batches).astype(np.int64)
        return np.union1d(log_spaced(self.steps, self.checkpoints), passes[passes <= self.steps])
