"""Notebook 7: singular vectors of real extractors along their training, beside everything they decide."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from condnum.data import TaskPair
from condnum.errors import check_known, require
from condnum.lessons.alignment import haar_overlap_band
from condnum.lessons.alignment_panels import TASK, draw
from condnum.lessons.alignment_paths import TRAINING, ExtractorPath, Selection
from condnum.lessons.alignment_training import KEPT_DIRECTIONS, PathTasks, follow
from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, Slider, with_controls
from condnum.lessons.frame.own import Own
from condnum.lessons.limit import ratios_of
from condnum.methods import get_method, method_names
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.style import method_style, option_text
from condnum.theory.limits import max_rir_immunizer
from condnum.theory.linalg import SMALL

#: Labs that pages play without a kernel: the data and extractors of each, by the name of its explorer.
LABS = {
    "AlignmentLabHousePrices": ("house-prices", ""),
    "AlignmentLabDigits49": ("digits:4-9", ""),
    "AlignmentLabMnist49": ("mnist:4-9", "ours,identity,initial,max_rir"),  # each training takes a minute
}
#: The extractor that a function of the reader's makes.
YOURS = "yours"


def max_rir(K_P: Any, K_H: Any) -> Any:
    """Return θ*, which does not depend on the harmful task."""
    return max_rir_immunizer(K_P)


Side = Literal["benign", "harmful"]
SIDES: tuple[Side, Side] = ("benign", "harmful")


class AlignmentView(Selection, ExplorerResult):
    """What is chosen, drawn and said."""

    def figure(self) -> Any:
        """Draw the four panels, always of the same traces."""
        return draw(self)

    def caption(self) -> str:
        """Say κ by Eq. 10 beside the truth, how θ is aligned, and what depends on the chosen direction."""
        step, band = self.step, " … ".join(num(end, 2) for end in haar_overlap_band(self.tasks.dimension))
        kappas = [
            f"{num(step['predicted_kappa'][side])} / {num(step['kappa'][side])} ({TASK[side]})"
            for side in (0, 1)
        ]
        unique = "" if step.unique else "<br>θ has repeated singular values, so any basis is a valid U."
        means = ", ".join(num(float(value), 2) for value in step["diagonal_overlap"])
        return (
            f"<div class='condnum-wide'>κ by Eq. 10 / true: {', '.join(kappas)}. Mean "
            f"|u<sub>i</sub>ᵀq<sub>i</sub>|²: {means} (by chance {band}).{unique}<br>"
            f"{self._direction_words()}</div>"
        )

    def _direction_words(self) -> str:
        """Say what depends on u_i, and how it lies to q_j."""
        step, i = self.step, self.i
        s, u = step["sigma"], step.left(i)[:, 0]
        terms = step["predicted"][:, i - 1] / step["predicted"].sum(axis=1)
        well, ill = step.shares(i, self.tasks)
        overlap = float(np.square(u @ self.tasks.vectors[self.side][:, self.j - 1]))
        size = f", σ<sub>{i}</sub> = {num(s[i - 1] / s[0])} σ<sub>1</sub>" if i > 1 else ""
        return (
            f"<b>u<sub>{i}</sub></b>{size}: by Eq. 10 "
            f"{terms[0]:.1%} of tr H<sub>P</sub>, {terms[1]:.1%} of tr H<sub>H</sub>; {well:.1%} of "
            f"R<sub>well</sub>, {ill:.1%} of R<sub>ill</sub>. "
            f"|u<sub>{i}</sub>ᵀq<sub>{self.j}</sub>|² = {num(overlap, 2)} ({TASK[self.side]})."
        )


def alignment_lab(
    data: str | TaskPair = "house-prices",
    *,
    methods: str | Sequence[str] = "",
    steps: int = 0,
    theta: Callable[[Any, Any], Any] | None = None,
) -> type[Explorer]:
    """Compute `methods` (empty: all) on a pair of tasks, and return the explorer of their singular vectors.

    `steps` are those of each training, 0 for a method's own. `theta` takes K_P and K_H to an extractor of
    yours, one more to choose.
    """
    tasks = PathTasks.of(data) if isinstance(data, TaskPair) else PathTasks.named(data)
    wanted = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else methods
    chosen = [get_method(name).name for name in wanted if name] or method_names()
    shown = require("tqdm.auto", "notebooks").tqdm(chosen, "extractors", leave=False)
    kept = {name: ExtractorPath(name, follow(tasks, name, steps)) for name in shown}
    return explorer_of(tasks, kept, theta)


def recorded_lab(name: str) -> type[Explorer]:
    """Compute one of `LABS`."""
    check_known("lab", name, LABS)
    data, methods = LABS[name]
    return alignment_lab(data, methods=methods)


class _Given:
    """An extractor that is there."""

    name = YOURS

    def __init__(self, theta: Any) -> None:
        self._theta = torch.as_tensor(theta)

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return it."""
        return {"theta": self._theta}


def explorer_of(
    tasks: PathTasks, kept: Mapping[str, ExtractorPath], theta: Callable[[Any, Any], Any] | None = None
) -> type[Explorer]:
    """Make the explorer of these extractors, and of a reader's; its sliders end at their D."""
    known, found = [*kept, *([YOURS] if theta else [])], dict[bytes, ExtractorPath]()
    K_P, K_H = (task.covariance.numpy() for task in (tasks.problem.benign, tasks.problem.harmful))

    def of(made: Any) -> ExtractorPath:
        """Measure what a reader's function has made, once."""
        if made.tobytes() not in found:
            found[made.tobytes()] = ExtractorPath(YOURS, follow(tasks, _Given(made)))
        return found[made.tobytes()]

    D, most = tasks.dimension, min(tasks.dimension, KEPT_DIRECTIONS)
    labels = {name: option_text(method_style(name).label) for name in known}
    sides = {"benign": "pre-training", "harmful": "harmful"}
    place = "Position among the kept steps, on a log scale."
    steps, some = (14, 5) if D <= SMALL else (8, 3)  # a recording with many pixels stays below 1 MB, too
    one: Any = Literal[tuple(known)]

    @with_controls(
        extractor=Choice("extractor θ", "Extractor whose singular vectors are shown.", labels),
        training=Slider("training, θ₀ to end", place, 0, TRAINING, play=150, marks=steps),
        i=Slider("direction i of θ", "Index of uᵢ, by descending σᵢ; or click a map.", 1, most, marks=some),
        j=Slider("eigenvector j of K", "Index of qⱼ, by descending γⱼ; or click a map.", 1, D, advanced=True),
        side=Choice("task of q<sub>j</sub>", "Task whose K has the qⱼ.", sides, advanced=True),
    )
    def compute(
        *,
        extractor: one = known[0],
        training: int = TRAINING,
        i: int = 1,
        j: int = 1,
        side: Side = "benign",
        theta: Callable[[Any, Any], Any] = max_rir,
    ) -> AlignmentView:
        """Look up a step of one extractor."""
        path = of(theta(K_P, K_H)) if extractor == YOURS else kept[extractor]
        return AlignmentView(tasks, path.at(training), SIDES.index(side), i, j)

    words = re.findall(r"[A-Za-z0-9]+", tasks.name)
    name = "AlignmentLab" + "".join(map(str.capitalize, words))
    doc = f"Singular vectors along the training: {' and '.join(tasks.names)}."
    body = {"__doc__": doc, "__module__": __name__, "tasks": tasks, "paths": kept}
    body |= {"own": Own("theta", max_rir, ratios_of, theta)}
    body |= {"compute": staticmethod(compute)}
    return type(name, (Explorer,), body)
