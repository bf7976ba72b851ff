"""Pairs on which no setting was searched: does each method immunize them, how near the limit, how fast?

`make bench` prints the table: both closed forms, and `ours` (Eq. 11) with its default settings, seed 0.
"""

import math
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from condnum import (
    ImmunizationProblem,
    digit_pair,
    immunize,
    load_small_digits,
    relative_immunization_ratio,
)

#: Columns that split the Ames table, and the values that make the harmful task; zoning is the paper's own.
AMES_SPLITS = {"CentralAir": "N", "LotShape": "Reg", "GarageType": "Attchd", "HouseStyle": "1Story"}

METHODS = ("pareto", "max_rir", "ours")


def random_pair(seed, dimension, *, decay, kappas, angle, ranks=(None, None)):
    """Two covariances with spectra of stated decay and κ, the second turned against the first."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    A = rng.standard_normal((dimension, dimension))
    turned = Q @ np.linalg.qr(np.eye(dimension) + angle * (A - A.T) / math.sqrt(dimension))[0]
    covariances = []
    for basis, kappa, rank in zip((Q, turned), kappas, ranks, strict=True):
        if decay == "geometric":
            values = np.geomspace(1, 1 / kappa, dimension)
        elif decay == "power":
            values = np.arange(1, dimension + 1) ** (-math.log(kappa) / math.log(dimension))
        else:  # two levels
            values = np.where(np.arange(dimension) < max(1, dimension // 4), 1, 1 / kappa)
        values[dimension if rank is None else rank :] = 0
        covariances.append(10 ** rng.uniform(-2, 3) * (basis * values) @ basis.T)
    return ImmunizationProblem.from_covariances(*covariances)


def untuned_pairs():
    """Yield group, name and problem of each pair."""
    seed = 0
    for dimension in (3, 4, 6, 8, 12, 16, 24, 32, 64, 128):
        for decay in ("geometric", "power", "levels"):
            rng = np.random.default_rng(10_000 + seed)
            kappas = tuple(10 ** rng.uniform(0.7, 5, 2))
            pair = random_pair(seed, dimension, decay=decay, kappas=kappas, angle=(0.2, 1.0, 5.0)[seed % 3])
            yield "random, full rank", f"{decay}-{dimension}", pair
            seed += 1
    for ranks in ((6, 10), (10, 6), (9, 9), (12, 5), (11, 12), (4, 8), (12, 11), (3, 3)):
        pair = random_pair(seed, 12, decay="geometric", kappas=(1e3, 1e2), angle=1.0, ranks=ranks)
        yield "random, rank-deficient", f"ranks-{ranks}", pair
        seed += 1
    for name, load in (("wine", load_wine), ("iris", load_iris), ("breast-cancer", load_breast_cancer)):
        X, y = load(return_X_y=True)
        for p in range(y.max() + 1):
            h = (p + 1) % (y.max() + 1)
            yield (
                "tables by class",
                f"{name}-{p}-{h}",
                ImmunizationProblem.from_data(X[y == p], None, X[y == h]),
            )
    images = load_small_digits()
    for p, h in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (1, 8)):
        yield "8x8 digits", f"digits-{p}-{h}", ImmunizationProblem.from_pair(digit_pair(images, p, h))
    path = Path(os.environ.get("CONDNUM_DATA", "data")) / "house_prices" / "train.csv"
    if path.exists():
        table = pd.read_csv(path)
        coded = table.drop(columns=["Id", "SalePrice"]).apply(
            lambda column: column if column.dtype.kind in "if" else pd.factorize(column, sort=True)[0]
        )
        for column, value in AMES_SPLITS.items():
            harmful = (table[column] == value).to_numpy()
            X = coded.drop(columns=column).fillna(0).to_numpy(dtype=float)
            halves = [X[~harmful], X[harmful]]
            scaled = [(half - half.mean(0)) / np.where(half.std(0) > 0, half.std(0), 1) for half in halves]
            yield (
                "Ames by column",
                f"ames-{column}",
                ImmunizationProblem.from_data(scaled[0], None, scaled[1]),
            )


def run(group, name, problem):
    """Yield a row per method."""
    tasks = problem.benign, problem.harmful
    full = problem.benign.rank == problem.harmful.rank == problem.dimension
    limit = problem.limit.value
    for method in METHODS:
        start = time.perf_counter()
        theta = immunize(problem, method).theta
        seconds = time.perf_counter() - start
        compact, ridge = (
            relative_immunization_ratio(theta, *tasks, convention=convention)
            for convention in ("compact", "ridge")
        )
        yield {
            "group": group,
            "pair": name,
            "D": problem.dimension,
            "full_rank": full,
            "method": method,
            "compact": compact.success,
            "ridge": ridge.success,
            "harmful_ratio": compact.harmful_ratio,
            "benign_ratio": compact.benign_ratio,
            "rir": compact.rir,
            "share": math.log(compact.rir) / math.log(limit) if 1 < limit < math.inf else math.nan,
            "seconds": seconds,
        }


def summarise(rows):
    """Shares that meet Definition 3.1, the median of log RIR / log limit, and seconds."""
    table = rows.groupby(["group", "method"], sort=False).agg(
        pairs=("pair", "nunique"),
        compact=("compact", "mean"),
        ridge=("ridge", "mean"),
        log_share=("share", "median"),
        seconds=("seconds", "median"),
        slowest=("seconds", "max"),
    )
    return table.reset_index()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_untuned_pairs():
    pairs = list(untuned_pairs())
    rows = pd.DataFrame([row for pair in pairs for row in run(*pair)])
    print(f"\n{len(pairs)} pairs\n" + summarise(rows).to_string(float_format="{:.3g}".format))
    counts = rows.groupby(["full_rank", "method"], sort=False)[["compact", "ridge"]].agg(["sum", "size"])
    print("runs that meet Definition 3.1:\n" + counts.to_string())
    front = rows[rows["method"] == "pareto"]
    full = front[front["full_rank"]]
    assert len(pairs) >= 40
    assert front["compact"].all()
    assert full["share"].median() >= 0.6
