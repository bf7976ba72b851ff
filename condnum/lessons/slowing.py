r"""Notebook 8: from conditioning to erasure, on the 8×8 digits; 0 to 4 are benign, 5 to 9 harmful.

The path :math:`θ_s = T\,(I - (1-s)Π)` ends, at s = 0, where no linear probe learns from the rows that made
it. For s > 0 it is invertible: the harmful optimum stays, and only gradient descent is slowed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LinearRegression, RidgeCV

from condnum.data import load_small_digits
from condnum.lessons.condition_number import Floats
from condnum.lessons.draw import Panel
from condnum.lessons.explore import Choice, Slider, explore
from condnum.numbers import num
from condnum.page.look import BLUE, GREEN, LIMIT, NEUTRAL, ORANGE, PURPLE
from condnum.probing.probe import ProbeSteps, probe_steps
from condnum.theory.erasure import erasure
from condnum.theory.kappa import Immunization, relative_immunization_ratio
from condnum.theory.task import Task

#: Where the slider stops, and what it says there.
STOPS = {"raw": 1.0, **{f"{s:g}": s for s in (0.3, 0.1, 0.03, 0.01, 0.001)}, "erased": 0.0}
CLASSES, CHANCE = 5, 1 / 5
#: Gradient descent may miss 5 % of the squared fit that raw pixels allow; most line searches.
GOAL, LINE_SEARCHES = 0.05, 5_000
#: Ridges that an attacker tries, relative to the largest eigenvalue.
RIDGES = 10.0 ** np.arange(-12, 1)
#: Where steps without end are drawn, and where s = 0 lies on the axis of −log₁₀ s.
_NEVER, _ZERO = 10**7.3, 3.6
_STEPS = {1: "1", 10: "10", **{10**k: f"10<sup>{k}</sup>" for k in range(2, 7)}, _NEVER: "never"}

Start = Literal["leace", "orthogonal", "whitened"]
STARTS: dict[str, Start] = {
    "raw pixels, LEACE": "leace",
    "raw pixels, orthogonal": "orthogonal",
    "θ* of lesson 4": "whitened",
}
#: How accuracies are drawn; what ridge regression reaches hides behind whitening, and stands in the caption.
_LOOK = {
    "whitened": ("harmful", ORANGE, "solid"),
    "own": ("accuracy: eraser's rows", PURPLE, "dash"),
    "kernel": ("accuracy: kernel", GREEN, "dashdot"),
    "benign": ("benign", BLUE, "solid"),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of one task; as probes have an intercept, features X and targets Z are centered."""

    images: Floats  # (N, D)
    labels: Any  # (N,), 0 to 4

    @property
    def X(self) -> Floats:
        """`(N, D)`."""
        return np.asarray(self.images - self.images.mean(axis=0))

    @property
    def Z(self) -> Floats:
        """One-hot, `(N, 5)`."""
        return np.asarray(np.eye(CLASSES)[self.labels] - np.bincount(self.labels) / len(self.labels))

    @cached_property
    def task(self) -> Task:
        """Images with labels, whose probe has an intercept."""
        return Task.of(self.images, self.labels).centered()


@dataclass(frozen=True, eq=False)
class DigitTasks:
    """Two tasks. The eraser has one third of the harmful images, the attacker learns from another."""

    eraser: Rows
    attacker: Rows
    fresh: Rows  # what the attacker is measured on
    benign: Rows
    benign_fresh: Rows


@lru_cache(maxsize=1)
def digit_tasks() -> DigitTasks:
    """Split scikit-learn's digits at random, always alike, without pixels that hardly vary."""
    digits = load_small_digits()
    pixels = digits.images.reshape(len(digits), -1) / digits.pixel_max
    pixels, labels = pixels[:, pixels.std(axis=0) > 1 / 16], digits.labels.astype(int)
    random = np.random.default_rng(0)
    harmful, benign = (random.permutation(np.flatnonzero(of)) for of in (labels >= 5, labels < 5))
    third, most = len(harmful) // 3, 3 * len(benign) // 4
    parts = [*np.split(harmful, [third, 2 * third]), *np.split(benign, [most])]
    return DigitTasks(*(Rows(pixels[part], labels[part] % CLASSES) for part in parts))


#: Takes Σ, a basis G of what is to be erased, and s to θ_s.
Leace = Callable[[Floats, Floats, float], Floats]


def leace(sigma: Floats, G: Floats, s: float) -> Floats:
    """Return `θ_s = I − (1 − s) W U Uᵀ W⁻¹`, W = Σ^(−1/2), U = orth WG; at s = 0 without what is empty."""
    return np.asarray(erasure(Task.of_covariance(sigma, G), strength=1 - s).extractor)


def erased_task(rank: int) -> tuple[Floats, Floats]:
    """Return what LEACE needs of the eraser's rows: Σ and `(D, rank)` G."""
    own = digit_tasks().eraser
    return own.X.T @ own.X / len(own.X), np.asarray(erasure(own.X, own.labels, rank=rank).removed)


@lru_cache(maxsize=512)
def path_extractor(s: float, start: Start = "leace", rank: int = 4) -> Floats:
    """Return θ_s: T `(D, D)` at s = 1, erasure of `rank` directions `(D, D - rank)` at s = 0."""
    own, P = digit_tasks().eraser, digit_tasks().benign.task
    T = np.eye(P.dimension)
    if start == "whitened":
        T = np.asarray(P.power(-0.5))
    if s == 1:
        return T
    found = erasure(own.X @ T, own.labels, strength=1 - s, rank=rank)
    if start == "leace":
        return np.asarray(found.extractor)
    Q = np.linalg.qr(found.removed, mode="complete")[0]
    return np.asarray(T @ (Q[:, rank:] if s == 0 else Q * np.where(np.arange(len(Q)) < rank, s, 1) @ Q.T))


def accuracy(
    theta: Floats, train: Rows, test: Rows, *, kernel: bool = False, whitened: bool = False
) -> float:
    """Attack by ridge regression on one-hot targets; return the accuracy on other rows.

    The ridge has the least leave-one-out error. `whitened` takes none: that is where gradient descent on
    whitened features arrives in one step. `kernel` is Gaussian, as wide as the median distance.
    """
    F, G = ((rows.images - train.images.mean(axis=0)) @ theta for rows in (train, test))
    if kernel:
        gaussian = Nystroem(gamma=1 / np.median(pdist(F, "sqeuclidean")), n_components=len(F), random_state=0)
        F, G = gaussian.fit_transform(F), gaussian.transform(G)
    ridge = RidgeCV(RIDGES * np.linalg.norm(F, 2) ** 2, gcv_mode="svd")
    probe = (LinearRegression() if whitened else ridge).fit(F, np.eye(CLASSES)[train.labels])
    # Rounded, so that the most frequent class wins where nothing is learned, and not round-off.
    return float((probe.predict(G).round(6).argmax(axis=1) == test.labels).mean())


@dataclass(frozen=True)
class Stop:
    """What one θ_s is worth."""

    immunization: Immunization  # on the eraser's rows and the benign ones
    harmful: ProbeSteps
    benign: ProbeSteps
    accuracies: Mapping[str, float]  # on fresh rows, but `own`


@lru_cache(maxsize=512)
def stop(kept: bytes) -> Stop:
    """Measure the θ with D rows of these bytes."""
    tasks = digit_tasks()
    theta = np.frombuffer(kept).reshape(tasks.eraser.X.shape[1], -1)
    harmful, benign = (
        probe_steps(theta, of.task, epsilon=GOAL, budget=LINE_SEARCHES) for of in (tasks.eraser, tasks.benign)
    )
    fresh = theta, tasks.attacker, tasks.fresh
    found = {
        "whitened": accuracy(*fresh, whitened=True),
        "ridge": accuracy(*fresh),
        "kernel": accuracy(*fresh, kernel=True),
        "own": accuracy(theta, tasks.eraser, tasks.eraser),
        "benign": accuracy(theta, tasks.benign, tasks.benign_fresh),
    }
    ratios = relative_immunization_ratio(theta, tasks.benign.task, tasks.eraser.task)
    return Stop(ratios, harmful, benign, found)


@explore(
    s=Slider(0, 1, stops=STOPS, play=700, label="scale s of the harmful directions"),
    rank=Slider(1, 4, stops=[2, 4], label="directions k", help="Four hold all linear information."),
    start=Choice(STARTS, label="start, and what shrinks"),
    presets={
        "Slowed, not stopped": {"s": 0.01},
        "Erased": {"s": 0.0},
        "RIR falls, steps grow": {"s": 0.1, "start": "whitened"},
    },
)
def slowing(
    s: float = 0.1, rank: int = 4, start: Start = "leace", erase: Leace = leace
) -> tuple[list[Panel], str]:
    """What shrinking the harmful directions slows, and what only erasing them stops."""
    *path, here = (
        erase(*erased_task(rank), one) if start == "leace" and erase is not leace
        else path_extractor(one, start, rank)
        for one in (*STOPS.values(), s)
    )  # fmt: skip
    *found, shown, raw = (stop(np.asarray(theta).tobytes()) for theta in (*path, here, np.eye(len(here))))
    *at, place = (min(-np.log10(one), _ZERO - 0.1) if one else _ZERO for one in (*STOPS.values(), s))
    ticks = {0: "1", 1: "0.1", 2: "0.01", 3: "0.001", _ZERO: "0"}
    along: dict[str, Any] = {"x": "s, from raw to erased", "xlim": (-0.2, _ZERO + 0.2), "xticks": ticks}
    left = Panel(
        "steps of gradient descent, and κ", y="steps; κ", log="y", ylim=(0.6, 5e7), yticks=_STEPS, **along
    )
    levels = {0: "0", CHANCE: "chance", 0.4: "0.4", 0.6: "0.6", 0.8: "0.8", 1: "1"}
    right = Panel("accuracy on fresh images (harmful: whitened)", ylim=(0, 1.04), yticks=levels, **along)

    def draw(panel: Panel, name: str, values: Any, color: str, dash: str, hover: str) -> None:
        """Draw a value of each stop, with a gap before s = 0; what has no end lies at the top."""
        y, x = (np.insert(np.minimum(one, _NEVER), -1, np.nan) for one in (values, at))
        listed = name.startswith("accuracy") or (panel is left and name != "benign, line search")
        panel.line(name, x, y, color, dash, width=2.5, size=6, hover=hover, legend=listed)

    for task, color in (("harmful", ORANGE), ("benign", BLUE)):
        for way, words, dash in (("fixed", "", "solid"), ("exact", ", line search", "dot")):
            counts = [getattr(getattr(one, task), way) for one in found]
            draw(left, f"{task}{words}", counts, color, dash, "%{y:,.0f} steps")
    kappa = [one.immunization.harmful_after.value for one in found]
    draw(left, "κ(H<sub>H</sub>)", kappa, NEUTRAL, "dash", "κ = %{y:.4g}")
    for name, (words, color, dash) in _LOOK.items():
        draw(right, words, [one.accuracies[name] for one in found], color, dash, "%{y:.1%}")
    now = np.minimum([shown.harmful.fixed, shown.benign.fixed], _NEVER)
    left.marks("shown s", [place] * 2, now, LIMIT, "circle-open", size=15, legend=False, hover="%{y:,.4g}")
    shares = [shown.accuracies[of] for of in _LOOK]
    right.marks(
        "shown s",
        [place] * len(shares),
        shares,
        LIMIT,
        "circle-open",
        size=13,
        legend=False,
        hover="%{y:.1%}",
    )
    return [left, right], slowing_words(s, rank, shown, raw)


def slowing_words(s: float, rank: int, here: Stop, raw: Stop) -> str:
    """Say whether attackers are slowed or stopped, and what the benign task pays."""
    whitened, ridge, kernel = (f"{here.accuracies[of]:.0%}" for of in ("whitened", "ridge", "kernel"))
    learned = f"On fresh images whitening reaches {whitened}, ridge regression {ridge}"
    if s == 0:
        before, after = (f"{of.accuracies['benign']:.0%}" for of in (raw, here))
        price = f"{1 - here.benign.fit:.1%} of its squared fit; accuracy {before} → {after}"
        said, kept = "<b>no linear probe learns anything from the eraser's rows</b>", here.harmful.fit
        if kept > 1e-6:
            said = f"{rank} of 4 directions are erased, and {kept:.0%} of the harmful fit is left"
        return f"s = 0: {said}. {learned}, a kernel {kernel}. The benign task loses {price}."
    slow, fast = ([num(of.harmful.fixed), num(of.benign.fixed)] for of in (here, raw))
    factor, rir = here.harmful.fixed / raw.harmful.fixed, num(here.immunization.rir)
    verdict = f"slowed by a factor of {num(factor, 2)}, not stopped" if factor >= 2 else "not slowed"
    steps = f"{slow[0]} steps (raw pixels: {fast[0]}), for the benign task {slow[1]} ({fast[1]})"
    return f"s = {num(s)}, RIR = {rir}: gradient descent needs {steps}. {learned}: <b>{verdict}</b>."
