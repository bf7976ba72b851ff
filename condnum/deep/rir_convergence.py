"""How RIR_θ0 (Eq. 17) settles with the size and the number of its groups."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from condnum.deep.rir import DRAW_STRIDE, FeatureLike, group_spectra

#: Numbers of groups at which the mean is read; the paper has 20.
GROUPS = (1, 2, 5, 10, 20, 40, 80)
SMALLEST = 25

#: Draws lie within this share of their median, to count as settled.
TOLERANCE = 0.1


def rir_convergence(features: Sequence[FeatureLike], *, draws: int = 8, seed: int = 0) -> pd.DataFrame:
    """Measure RIR_θ0, compact, over group sizes 25, 50, … and all images × number of groups.

    The groups of a draw share no image, so that their spread is honest; large groups are therefore few.
    The features `(N, D)` are of θ₀ and θ_I on D_P, then on D_H. A row has `median`, `least` and `largest`
    over the draws, and the least numerical `rank` of the four matrices of a group beside `full_rank`.

    Examples:
        θ_I shrinks the second feature tenfold on D_H, in whatever group.

        >>> X = np.tile(np.diag([10.0, 1.0]), (50, 1))
        >>> found = rir_convergence((X, X, X, X * [1.0, 0.1]), draws=3)
        >>> found["group_size"].unique().tolist(), found["median"].round(9).unique().tolist()
        ([25, 50, 100], [100.0])
    """
    few = min(map(len, features))
    sizes = [SMALLEST * 2**k for k in range(few.bit_length()) if SMALLEST * 2**k < few]
    rows = []
    for size in [*sizes, few]:
        most = min(GROUPS[-1], few // size)
        counts = [count for count in GROUPS if count <= most]
        means, ranks = [], []
        for draw in range(1 if size == few else draws):
            spectra = group_spectra(features, groups=most, group_size=size, seed=seed + DRAW_STRIDE * draw)
            estimate = spectra.estimate("compact")
            ranks.append(np.median(estimate.ranks.min(axis=0)))
            pretrain_before, pretrain_after, harmful_before, harmful_after = estimate.kappas
            rir = (harmful_after / harmful_before) / (pretrain_after / pretrain_before)
            means.append([rir[:count].mean() for count in counts])
        for count, found in zip(counts, np.transpose(means), strict=True):
            full_rank = min(size, spectra.widths[0])
            ends = np.median(found), found.min(), found.max()
            rows.append((size, count, *ends, np.median(ranks), full_rank))
    columns = ["group_size", "groups", "median", "least", "largest", "rank", "full_rank"]
    return pd.DataFrame(rows, columns=columns)


def convergence_sentence(table: pd.DataFrame) -> str:
    """Say how many groups of which size put every draw within 10 % of the median, and what the size moves.

    The table is one of `rir_convergence`.
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
    at_once = f"{whole['median']:.3g} on all {whole['group_size']:.0f} images at once"
    if drawn.empty:
        return f"RIR is {at_once}, too few for groups."
    most = drawn.groupby("group_size")["median"].last()  # of the most groups
    said = (
        f"Within ± {100 * TOLERANCE:.0f} % of the median in every draw: {', '.join(needed) or 'none'}"
        f"{'; not yet: ' * bool(never)}{', '.join(never)}. "
        f"The size itself moves RIR: from {most.min():.3g} (groups of {most.idxmin()}) to "
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
