"""What the pair browser shows of one digit pair, computed when it is asked for.

A sweep keeps spectra, not extractors: 1080 of them at D = 784 would take 5 GB. A cell is
deterministic, so its θ is simply computed again.
"""

from __future__ import annotations

import numpy as np

from condnum.errors import InvalidInputError
from condnum.experiments.digit_cell import immunize_cell
from condnum.experiments.digit_pairs import DigitPairsRun, load, plans
from condnum.experiments.extractor import Extractor
from condnum.experiments.measure import curves_table
from condnum.plots import PairDetail


def digit_pair_detail(
    run: DigitPairsRun, pretrain: int, harmful: int, *, seed: int = 0, probe_steps: int = 2000
) -> PairDetail:
    """Compute the curves of one pair: the run's methods and both controls.

    Args:
        run: A finished sweep.
        pretrain: Pre-training digit.
        harmful: Harmful digit.
        seed: Which of the run's seeds.
        probe_steps: Steps of exact line search.

    Returns:
        Norm ratios, spectra and the mean images of both digits.

    Raises:
        InvalidInputError: The run has no such pair.
    """
    config = run.config
    if pretrain == harmful:
        raise InvalidInputError(
            f"a pair has two different digits, got {pretrain} twice; choose another cell."
        )
    wanted = [
        plan
        for plan in plans(config.with_controls(), load(config)[1])
        if (plan.payload["pretrain"], plan.payload["harmful"]) == (pretrain, harmful)
        and plan.payload["seed"] == seed
    ]
    if not wanted:
        raise InvalidInputError(
            f"this run has no pair ({pretrain}, {harmful}) with seed {seed}; it was limited to other pairs."
        )
    cells = []
    for plan in wanted:
        problem, result = immunize_cell(plan)
        cells.append(Extractor.of(result))
    means = [
        np.asarray(run.digits.images[run.digits.labels == digit], dtype=np.float64).mean(axis=0)
        for digit in (pretrain, harmful)
    ]
    return PairDetail(
        pretrain,
        harmful,
        curves_table(problem, cells, probe_steps=probe_steps),
        means[0],
        means[1],
        f"{run.title}, seed {seed}",
    )
