"""Evaluations during an immunization: RIR_θ0 on fixed groups, held-out D_P accuracy, and which θ is best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.probe import descent_path, path_slowdown
from condnum.deep.rir import rir_from_features
from condnum.deep.training.objectives import check_finite
from condnum.deep.training.samples import Samples
from condnum.deep.training.settings import DeepSettings

#: Added to the seed: the selection does not see the groups of the reported measurement.
_STREAM = 7919

#: (ii) that a result has to stay below on the images that it is chosen on, and (i) that it has to exceed:
#: others will differ a little.
BENIGN_LIMIT = 0.8
HARMFUL_LIMIT = 1.2

#: RIR_θ0 from which more of it says nothing for a θ whose (ii) is too large.
ENOUGH = 10.0


@dataclass(frozen=True)
class Evaluation:
    """How θ stands at a step."""

    step: int  # steps done
    rir: float  # RIR_θ0, compact, mean over groups of training images
    harmful_ratio: float  # (i)
    benign_ratio: float  # (ii)
    held_rir: float  # the same on held-out images of both tasks
    held_harmful_ratio: float
    held_benign_ratio: float
    held_benign_std: float  # of (ii), over groups of held-out images
    accuracy: float  # on held-out images of D_P, 0 to 1
    slowdown: float  # steps of a new head for D_H, of those on θ₀ (`path_slowdown`), on held-out images

    @property
    def least_rir(self) -> float:
        """RIR_θ0, on training or on held-out images, whichever is smaller."""
        return min(self.rir, self.held_rir)

    @property
    def least_harmful_ratio(self) -> float:
        """(i), likewise."""
        return min(self.harmful_ratio, self.held_harmful_ratio)

    @property
    def largest_benign_ratio(self) -> float:
        """(ii), on training or on held-out images, whichever is larger."""
        return max(self.benign_ratio, self.held_benign_ratio)

    @property
    def expected_benign_ratio(self) -> float:
        """(ii) to expect on other images: that of held-out ones and twice its deviation over their groups.

        A few images of D_P that look like D_H get features ten times as long and decide σ₁ of their group;
        the fewer are held out, the likelier they are missing there.
        """
        return max(self.benign_ratio, self.held_benign_ratio + 2 * self.held_benign_std)

    def rank(self, accuracy_floor: float) -> tuple[bool, bool, float, float]:
        """Return what compares evaluations; the larger, the better.

        Accuracy comes first, then (i) and (ii), then `slowdown`, then RIR_θ0: what an attacker meets, and not
        the worst case over all targets. Where (i) or (ii) is unmet, RIR_θ0 is compared, and a (ii) that is
        too large weighs against it: more than `ENOUGH` does not make up for it.
        """
        excess = max(1.0, self.expected_benign_ratio / BENIGN_LIMIT)
        met = self.least_harmful_ratio >= HARMFUL_LIMIT and excess == 1
        rir = self.least_rir if excess == 1 else min(self.least_rir, ENOUGH) / excess
        return self.accuracy >= accuracy_floor, met, self.slowdown if met else 0.0, rir


class Monitor:
    """Evaluates θ_t against θ₀ on the same samples each time."""

    def __init__(
        self,
        theta_0: Backbone,
        *,
        tasks: Sequence[tuple[Samples, NDArray[np.int64]]],
        held: Sequence[tuple[Samples, NDArray[np.int64]]],
        settings: DeepSettings,
        seed: int,
    ) -> None:
        self.settings = settings
        self.device = next(theta_0.parameters()).device
        self.seed = seed + _STREAM
        generator = np.random.default_rng([seed, _STREAM])
        most = settings.groups * settings.group_size
        drawn = [(samples, np.sort(generator.permutation(rows)[:most])) for samples, rows in tasks]
        self._sets = [*drawn, *held]  # D_P and D_H to train on, D_P and D_H held out
        self._before = self._run(theta_0)
        self._path = descent_path(self._before[1], self._before[3])
        self.start = self.evaluate(theta_0, 0)

    def evaluate(self, backbone: Backbone, step: int) -> Evaluation:
        """Measure θ_t."""
        after = self._run(backbone)
        own, held = (
            rir_from_features(
                self._before[P], after[P], self._before[H], after[H],
                groups=self.settings.groups,
                group_size=min(self.settings.group_size, len(after[P]), len(after[H])),
                seed=self.seed,
            ).compact
            for P, H in ((0, 1), (2, 3))
        )  # fmt: skip
        return Evaluation(
            step,
            *(own.rir, own.harmful_ratio, own.benign_ratio),
            *(held.rir, held.harmful_ratio, held.benign_ratio),
            float(np.nan_to_num(held.benign_ratio_std)),  # NaN: a single group
            head_accuracy(backbone, after[2]),
            path_slowdown(self._path, descent_path(after[1], after[3])),
        )

    def _run(self, backbone: Backbone) -> list[ImageFeatures]:
        """Return the features of each set."""
        found = [samples.features(backbone, self.settings.batch_size, rows) for samples, rows in self._sets]
        for features in found:
            check_finite(torch.from_numpy(features.values), "evaluated")
        return found
