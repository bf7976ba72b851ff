"""How RIR_θ0 (Eq. 17) settles with the size and the number of its groups."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from condnum.deep.features import Features
from condnum.deep.rir import FeatureLike, group_spectra
from condnum.theory.spectra import Convention

#: Numbers of groups at which the mean is read; the paper has 20.
GROUPS = (1, 2, 5, 10, 20, 40, 80)
SMALLEST = 25

#: Draws lie within this share of their median, to count as settled.
TOLERANCE = 0.1


def rir_convergence(
    features: Sequence[FeatureLike],
    *,
    draws: int = 8,
    seed: int = 0,
    convention: Convention = "compact",
) -> pd.DataFrame:
    """Measure RIR_θ0 over group sizes 25, 50, … and all images × number of groups.

    The groups of a draw share no image, so that their spread is honest; large groups are therefore few.

    Args:
        features: `(N, D)` of θ₀ and θ_I on D_P, then on D_H.
        draws: How often groups are drawn.
        seed: Of the draws.
        convention: Of κ.

    Returns:
        `group_size`, `groups`, `median`, `least`, `largest` over the draws, and the least numerical `rank`
        of the four matrices of a group beside `full_rank`; all images are one group.

    Examples:
        θ_I shrinks the second feature tenfold on D_H, in whatever group.

        >>> X = np.tile(np.diag([10.0, 1.0]), (50, 1))
        >>> found = rir_convergence((X, X, X, X * [1.0, 0.1]), draws=3)
        >>> found["group_size"].unique().tolist(), found["median"].round(9).unique().tolist()
        ([25, 50, 100], [100.0])
    """
    few = min(len(part) for part in features)
    first = features[0]
    width = first.dimension if isinstance(first, Features) else first.shape[1]
    sizes = [SMALLEST * 2**k for k in range(few.bit_length()) if SMALLEST * 2**k < few]
    rows = []
    for size in [*sizes, few]:
        most = min(GROUPS[-1], few // size)
        counts = [count for count in GROUPS if count <= most]
        means, ranks = [], []
        for draw in range(1 if size == few else draws):
            spectra = group_spectra(features, groups=most, group_size=size, seed=seed + 1_000_003 * draw)
            estimate = spectra.estimate(convention)
            kappa = estimate.kappas
            ranks.append(np.median(estimate.ranks.min(axis=0)))
            rir = (kappa[3] / kappa[2]) / (kappa[1] / kappa[0])
            means.append([rir[:count].mean() for count in counts])
        for count, found in zip(counts, np.transpose(means), strict=True):
            rows.append((size, count, np.median(found), found.min(), found.max(), np.median(ranks)))
    table = pd.DataFrame(rows, columns=["group_size", "groups", "median", "least", "largest", "rank"])
    return table.assign(full_rank=table["group_size"].clip(upper=width))


def convergence_sentence(table: pd.DataFrame) -> str:
    """Say how many groups of which size put every draw within 10 % of the median, and what the size moves.

    Args:
        table: Of `rir_convergence`.

    Returns:
        One sentence.
    """
    off = np.maximum(table["largest"] / table["median"] - 1, 1 - table["least"] / table["median"])
    drawn, whole = table.assign(off=off).iloc[:-1], table.iloc[-1]
    needed, never = [], []
    for size, rows in drawn.groupby("group_size"):
        inside = (rows["off"] <= TOLERANCE)[::-1].cummin()[::-1]  # and stays there
        if inside.any():
            count = int(rows.loc[inside, "groups"].iloc[0])
            needed.append(f"{count} group{'s'[: count != 1]} of {size}")
        else:
            last = rows.iloc[-1]
            never.append(f"{last['groups']:.0f} of {size} (± {100 * last['off']:.0f} %)")
    said = f"Within ± {100 * TOLERANCE:.0f} % of the median in every draw: {', '.join(needed) or 'none'}"
    said += f"; not yet: {', '.join(never)}" if never else ""
    at_once = f"{whole['median']:.3g} on all {whole['group_size']:.0f} images at once"
    if drawn.empty:
        return f"RIR is {at_once}, too few for groups."
    most = drawn.groupby("group_size")["median"].last()  # of the most groups
    said += (
        f". The size itself moves RIR: from {most.min():.3g} (groups of {most.idxmin()}) to "
        f"{most.max():.3g} (groups of {most.idxmax()}); {at_once}."
    )
    short = table[table["rank"] < table["full_rank"]]
    if len(short):
        first = short.iloc[0]
        said += (
            f" From groups of {first['group_size']:.0f} on the rank tolerance has a say: a numerical rank is "
            f"{first['rank']:.0f} of {first['full_rank']:.0f}."
        )
    return said
