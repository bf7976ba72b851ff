"""What condition numbers leave out, in words: how many times as many steps the actual probes take.

κ bounds gradient descent over all targets, and a task has one. This module counts steps, and says what the
two factors mean beside Definition 3.1.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from condnum.arrays import FloatArray
from condnum.numbers import times

#: The largest number of steps that a prediction looks for.
_LONGEST = 2**50

#: The benign task counts as lost where its own probe needs more than this many times the steps on raw inputs.
LOST_FACTOR = 10.0


def slowdown_words(factor: float) -> str:
    """Say how many times as many steps a probe takes; NaN: neither it nor raw inputs get there.

    Examples:
        >>> slowdown_words(2.5), slowdown_words(float("inf"))
        ('takes 2.5 times as many steps as on raw inputs', 'never reaches that loss within 2⁵⁰ steps')
    """
    if math.isfinite(factor):
        return f"takes {times(factor)} steps as on raw inputs"
    return f"never reaches that loss within 2⁵⁰ steps{', on raw inputs either' * math.isnan(factor)}"


def slowdown_sentence(
    met: bool, benign: float | None, harmful: float | None, *, words: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Say how slow both tasks' own probes become, and what a verdict by condition numbers leaves out.

    Args:
        met: Whether Definition 3.1 is met.
        benign: Steps of the benign probe over those on raw inputs; None without targets to learn.
        harmful: Those of the harmful probe.
        words: By task, what stands in place of `slowdown_words`.

    Returns:
        The sentences.

    Examples:
        >>> print(slowdown_sentence(True, 1.0, 0.08))
        Gradient descent on the actual targets, to 1 % of the excess loss: the benign probe takes as many
        steps as on raw inputs, the harmful probe takes 0.08 times as many steps as on raw inputs. The
        definition is met, but the harmful task is not slowed.
        >>> print(slowdown_sentence(True, None, None))
        How many steps the actual probes take is not known without targets to learn.
    """
    said = {}
    for name, factor in (("benign", benign), ("harmful", harmful)):
        if factor is not None:
            said[name] = f"the {name} probe {words.get(name) or slowdown_words(factor)}"
    if not said:
        return "How many steps the actual probes take is not known without targets to learn."
    text = f"Gradient descent on the actual targets, to 1 % of the excess loss: {', '.join(said.values())}."
    the = "The definition is met, but the" if met else "The"
    if benign is not None and benign > LOST_FACTOR:
        text += f" {the} benign task is lost (more than {LOST_FACTOR:g} times as many steps)."
        the = "The"
    if harmful is not None and harmful <= 1:
        text += f" {the} harmful task is not slowed."
    for name in {"benign", "harmful"} - {*said}:
        text += f" How many steps the {name} probe takes is not known without targets to learn."
    return text


def descent_filter(relative: FloatArray, steps: float) -> FloatArray:
    """Return `(1 − ησ)^t` of gradient descent with a constant step, of `ησ ≤ 1`, also where ησ is tiny.

    Examples:
        >>> descent_filter(np.array([1.0, 0.25]), 2)
        array([0.    , 0.5625])
    """
    with np.errstate(divide="ignore"):
        return np.exp(steps * np.log1p(-relative))


def first_step(excess: Callable[[int], float], epsilon: float) -> float:
    """Return the first step at which a falling excess loss is at most ε; `inf` beyond 2⁵⁰."""
    high = 1
    while excess(high) > epsilon:
        high *= 2
        if high > _LONGEST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) <= epsilon else (middle, high)
    return float(high)
