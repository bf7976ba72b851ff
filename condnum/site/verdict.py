"""One obtained number against a published one: agrees, higher, lower, and by what rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from condnum.report.comparison import number

VerdictKind = Literal["agrees", "higher", "lower", "not finite"]

#: Standard deviations of the published number that count as agreement.
DEVIATIONS = 2.0

#: Share of the published number that counts as agreement in any case: published deviations over 3 or 5
#: seeds say nothing about another implementation.
SHARE = 0.2

#: The rule in words, as every page states it.
RULE = (
    f"An obtained mean agrees if it lies within the larger of {DEVIATIONS:g} published standard deviations "
    f"and {100 * SHARE:g} % of the published mean; else it is “higher ×k” or “lower ×k”, k being their ratio."
)


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, and why."""

    kind: VerdictKind
    text: str  # "higher ×26"
    reason: str  # the tolerance


def tolerance(published: float, deviation: float) -> float:
    """Return how far an obtained mean may lie from a published one.

    Examples:
        >>> tolerance(100.0, 3.0), tolerance(100.0, 15.0), tolerance(-100.0, float("nan"))
        (20.0, 30.0, 20.0)
    """
    spread = 0.0 if math.isnan(deviation) else DEVIATIONS * deviation
    return max(spread, SHARE * abs(published))


def compare(published: float, deviation: float, obtained: float) -> Verdict:
    """Compare an obtained mean with a published one.

    Examples:
        >>> compare(356.2, 5.491, 9172.0).text, compare(356.2, 5.491, 300.0).text
        ('higher ×25.7', 'agrees')
        >>> compare(92.58, 4.492, 30.0)
        Verdict(kind='lower', text='lower ×3.09', reason='beyond ± 18.52')
        >>> compare(1.0, 0.1, float("inf")).kind
        'not finite'
    """
    allowed = tolerance(published, deviation)
    if not math.isfinite(obtained):
        return Verdict("not finite", "not finite", "the obtained mean is not a finite number")
    if abs(obtained - published) <= allowed:
        return Verdict("agrees", "agrees", f"within ± {number(allowed)}")
    reason = f"beyond ± {number(allowed)}"
    if obtained > published:
        return Verdict("higher", f"higher ×{_factor(obtained, published)}", reason)
    return Verdict("lower", f"lower ×{_factor(published, obtained)}", reason)


def _factor(large: float, small: float) -> str:
    """Return a ratio to three digits."""
    return number(float(f"{large / small:.3g}")) if small > 0 else "∞"
