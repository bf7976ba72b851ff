"""Evaluations during an immunization: RIR_θ0 on fixed groups, held-out D_P accuracy, and which θ is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.deep.backbone import Backbone
from condnum.deep.rir import rir_from_features
from condnum.deep.training.samples import Samples, as_input, autocast
from condnum.deep.training.settings import DeepSettings
from condnum.deep.training.step import check_finite
from condnum.machine import memory_advice

#: Told apart from the draws of the reported measurement, so that the selection does not see its groups.
_STREAM = 7919

#: (ii) that a result has to stay below on the images that it is chosen on, and (i) that it has to exceed:
#: others will differ a little.
PRETRAIN_LIMIT = 0.8
HARMFUL_LIMIT = 1.2

#: RIR_θ0 from which more of it says nothing for a θ whose (ii) is too large.
ENOUGH = 10.0


@dataclass(frozen=True)
class Evaluation:
    """How θ stands at a step."""

    step: int  # steps done
    rir: float  # RIR_θ0, compact, mean over groups of training images
    harmful_ratio: float  # (i)
    pretrain_ratio: float  # (ii)
    held_rir: float  # the same on held-out images of both tasks
    held_harmful_ratio: float
    held_pretrain_ratio: float
    accuracy: float  # on held-out images of D_P, 0 to 1

    @property
    def success(self) -> bool:
        """Clauses (a) and (b) of Definition 3.1, on training and on held-out images."""
        return self.least_harmful_ratio > 1 and self.largest_pretrain_ratio <= 1

    @property
    def least_rir(self) -> float:
        """RIR_θ0, on training or on held-out images, whichever is smaller."""
        return min(self.rir, self.held_rir)

    @property
    def least_harmful_ratio(self) -> float:
        """(i), on training or on held-out images, whichever is smaller."""
        return min(self.harmful_ratio, self.held_harmful_ratio)

    @property
    def largest_pretrain_ratio(self) -> float:
        """(ii), on training or on held-out images, whichever is larger."""
        return max(self.pretrain_ratio, self.held_pretrain_ratio)

    @property
    def expected_pretrain_ratio(self) -> float:
        """(ii) to expect on other images: that of held-out ones times ∛(held-out / training).

        Few images are held out and the best of many θ is taken on them, so that they flatter it.
        """
        gap = self.held_pretrain_ratio / self.pretrain_ratio
        return max(self.pretrain_ratio, self.held_pretrain_ratio * max(gap, 1.0) ** (1 / 3))

    def row(self) -> dict[str, float]:
        """Return the evaluation as a table's row."""
        return asdict(self)


class Monitor:
    """Evaluates θ_t against θ₀ on the same samples each time."""

    def __init__(
        self,
        theta_0: Backbone,
        *,
        tasks: Sequence[tuple[Samples, NDArray[np.int64]]],
        held: Sequence[tuple[Samples, NDArray[np.int64]]],
        settings: DeepSettings,
        device: torch.device,
        seed: int,
    ) -> None:
        self.settings = settings
        self.device = device
        self.seed = seed
        generator = np.random.default_rng([seed, _STREAM])
        self._tasks = [
            (samples, _draw(generator, rows, settings.groups * settings.group_size))
            for samples, rows in tasks
        ] + list(held)
        self._before = [self._features(theta_0, *task)[0] for task in self._tasks]
        self.start = self.evaluate(theta_0, 0)

    @property
    def accuracy_floor(self) -> float:
        """Smallest D_P accuracy that a result may have."""
        return self.start.accuracy - self.settings.max_accuracy_drop

    def evaluate(self, backbone: Backbone, step: int) -> Evaluation:
        """Measure θ_t."""
        training = backbone.training
        backbone.eval()
        try:
            found = [self._features(backbone, *task) for task in self._tasks]
            features, labels = found[2]
            with torch.no_grad(), autocast(self.device, self.settings.precision):
                logits = backbone.head(features.to(self.device))
            accuracy = float((logits.argmax(dim=1).cpu() == labels).double().mean())
        finally:
            backbone.train(training)
        after = [X for X, _ in found]
        rir, held = (self._ratios(k, after) for k in (0, 2))
        return Evaluation(step, *rir, *held, accuracy)

    def better(self, one: Evaluation, other: Evaluation) -> bool:
        """Tell whether an evaluation beats another.

        First comes D_P accuracy at or above the floor, then (i) of at least `HARMFUL_LIMIT` with an expected
        (ii) of at most `PRETRAIN_LIMIT`, then the smaller RIR_θ0 of training and of held-out images; where
        (ii) is larger, that weighs against it, and RIR_θ0 above `ENOUGH` does not make up for it.
        """

        def rank(evaluation: Evaluation) -> tuple[bool, bool, float]:
            excess = max(1.0, evaluation.expected_pretrain_ratio / PRETRAIN_LIMIT)
            return (
                evaluation.accuracy >= self.accuracy_floor,
                evaluation.least_harmful_ratio >= HARMFUL_LIMIT and excess == 1,
                evaluation.least_rir if excess == 1 else min(evaluation.least_rir, ENOUGH) / excess,
            )

        return rank(one) > rank(other)

    def _ratios(self, first: int, after: Sequence[Tensor]) -> tuple[float, float, float]:
        """Return RIR_θ0, (i) and (ii) on two of the sets."""
        X_0, X = self._before[first : first + 2], after[first : first + 2]
        found = rir_from_features(
            X_0[0],
            X[0],
            X_0[1],
            X[1],
            groups=self.settings.groups,
            group_size=min(self.settings.group_size, *map(len, X)),
            seed=self.seed + _STREAM,
        )
        return found.rir, found.harmful_ratio, found.pretrain_ratio

    def _features(
        self, backbone: Backbone, samples: Samples, rows: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Return features `(n, D)` and labels of some samples, on the CPU."""
        size = self.settings.batch_size
        parts: Sequence[NDArray[np.int64]] = [rows[k : k + size] for k in range(0, len(rows), size)]
        features, labels = [], []
        with torch.no_grad(), memory_advice(size, self.device, "an evaluation"):
            for batch in samples.batches(0, parts):
                if not len(batch.labels):
                    continue
                inputs = as_input(batch.inputs, self.device, self.settings.precision)
                with autocast(self.device, self.settings.precision):
                    found = samples.features(backbone, inputs)
                found = found.float() if found.dtype == torch.bfloat16 else found
                check_finite(found, "evaluated")
                features.append(found.cpu())
                labels.append(batch.labels.cpu())
        return torch.cat(features), torch.cat(labels)


def _draw(generator: np.random.Generator, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most `count` of the rows, ascending."""
    return np.sort(generator.permutation(rows)[:count])
