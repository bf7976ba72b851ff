"""Notebook 7: singular vectors of real extractors along their training, beside everything they decide."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from condnum.data import TaskPair
from condnum.errors import InvalidInputError, check_known, require
from condnum.figures.style import method_style, option_text
from condnum.lessons.alignment import haar_overlap_band
from condnum.lessons.alignment_panels import TASK, draw
from condnum.lessons.alignment_paths import TRAINING, ExtractorPath, Selection
from condnum.lessons.alignment_training import KEPT_DIRECTIONS, PathTasks, follow
from condnum.lessons.ceiling import ratios_of
from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, Preset, Slider, with_controls
from condnum.lessons.frame.own import Own
from condnum.methods import Method, get_method
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
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
#: Misalignment of Eq. 10 below which θ counts as aligned with a task.
ALIGNED = 0.05

Side = Literal["pretrain", "harmful"]
SIDES: tuple[Side, Side] = ("pretrain", "harmful")


class AlignmentView(Selection, ExplorerResult):
    """What is chosen, drawn and said."""

    def figure(self) -> Any:
        """Draw the four panels, always of the same traces."""
        return draw(self)

    def finding(self) -> str:
        """Say by rule what this step shows first of all."""
        rules = (self._ambiguous, self._aligned, self._carried, self._turned)
        return next(filter(None, (rule() for rule in rules)), "") or self._generic()

    def _ambiguous(self) -> str:
        """Say that Eq. 10 depends on the U that was drawn."""
        step = self.step
        if step.unique or step.path.trained or float(step["misalignment"][0]) <= ALIGNED:
            return ""
        predicted, true = (num(float(step[name][0])) for name in ("predicted_kappa", "kappa"))
        return (
            "<b>Eq. 10 is not unique</b>: θ has repeated singular values, so any basis is a valid U. The "
            f"one drawn gives κ(H<sub>P</sub>) = {predicted}; the truth is {true}"
        )

    def _aligned(self) -> str:
        """Say that alignment has not kept θ from immunizing."""
        step, misaligned = self.step, float(self.step["misalignment"][0])
        if misaligned > ALIGNED or not step.immunized:
            return ""
        return (
            "<b>Aligned, and immunized all the same</b>: θ's u<sub>i</sub> lie on K<sub>P</sub>'s "
            f"eigenvectors (misalignment {num(misaligned, 2)}), yet {step.ratios}"
        )

    def _carried(self) -> str:
        """Say that one singular value carries most of R_ill."""
        step, i = self.step, self.i
        share = step.shares(i, self.tasks)[1]
        if share < 0.5:
            return ""
        u, pixels = step.left(i)[:, 0], self.tasks.shape is not None
        most = [self.tasks.features[k] for k in np.argsort(-np.abs(u), kind="stable")[:2]]
        made = "" if pixels else f", mostly {' and '.join(most)}"
        return (
            f"<b>One direction carries the harm</b>: {share:.1%} of R<sub>ill</sub> is that of "
            f"σ<sub>{i}</sub> and u<sub>{i}</sub>{made}"
        )

    def _turned(self) -> str:
        """Say which directions a training has turned most, and whether they take K_P's order reversed."""
        step, D = self.step, self.tasks.dimension
        if not (step.path.trained and step.index):
            return ""
        names = ", ".join(f"u<sub>{i}</sub> ({angle:.0f}°)" for i, angle in step.turned()[:3])
        text = (
            "<b>Training turns these directions</b> most, out of the span of θ<sub>0</sub>'s leading "
            f"ones: {names}"
        )
        straight, reverse = (float(step[name][0]) for name in ("diagonal_overlap", "reversed_overlap"))
        if reverse <= max(straight, haar_overlap_band(D)[1]):
            return text
        return (
            f"{text}. They follow the reversed order of K<sub>P</sub>, as in K<sub>P</sub><sup>−1/2</sup>: "
            f"mean |u<sub>i</sub>ᵀq<sub>D+1−i</sub>|² = {num(reverse, 2)}, by chance {num(1 / D, 2)}"
        )

    def _generic(self) -> str:
        """Say whether the u_i lie where chance would put them."""
        low, high = haar_overlap_band(self.tasks.dimension)
        inside = all(low <= value <= high for value in self.step["diagonal_overlap"])
        where = "no closer to K's eigenvectors than chance" if inside else "differently from chance"
        return f"<b>{self.step.path.label}</b>: its u<sub>i</sub> lie {where}"

    def caption(self) -> str:
        """Say the finding, then the numbers of Eq. 10, of alignment and of the chosen direction."""
        step, band = self.step, " … ".join(num(end, 2) for end in haar_overlap_band(self.tasks.dimension))
        kappas = [
            f"{num(step['predicted_kappa'][side])} / {num(step['kappa'][side])} ({TASK[side]})"
            for side in (0, 1)
        ]
        means = ", ".join(num(float(value), 2) for value in step["diagonal_overlap"])
        return (
            f"{self.finding()}.<div class='condnum-wide'>κ by Eq. 10 / true: {', '.join(kappas)}. Mean "
            f"|u<sub>i</sub>ᵀq<sub>i</sub>|²: {means} (by chance {band}).<br>{self._direction_words()}</div>"
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
    pretrain: str = "",
    harmful: str = "",
    drop: str = "",
    theta: Callable[[Any, Any], Any] | None = None,
) -> type[Explorer]:
    """Compute `methods` (empty: all) on a pair of tasks, and return the explorer of their singular vectors.

    The tasks are `data`, or the files of features `pretrain` and `harmful`; `steps` are those of each
    training, 0 for a method's own. `theta` takes K_P and K_H to an extractor of yours, one more to choose.
    """
    if bool(pretrain) != bool(harmful):
        given = "pretrain" if pretrain else "harmful"
        raise InvalidInputError(f"only {given} is given; give the paths of both X_P and X_H, or neither.")
    if pretrain:
        tasks = PathTasks.of_files(pretrain, harmful, drop=drop)
    else:
        tasks = PathTasks.of(data) if isinstance(data, TaskPair) else PathTasks.named(data)
    wanted = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else methods
    chosen = [get_method(name).name for name in wanted if name] or tasks.allowed()
    shown = require("tqdm.auto", "notebooks").tqdm(chosen, "extractors", leave=False)
    kept = {name: ExtractorPath(name, follow(tasks, name, steps)) for name in shown}
    return explorer_of(tasks, kept, theta)


def recorded_lab(name: str) -> type[Explorer]:
    """Compute one of `LABS`."""
    check_known("lab", name, LABS)
    data, methods = LABS[name]
    return alignment_lab(data, methods=methods)


class _Given(Method):
    """An extractor that is there."""

    name, label, summary = YOURS, YOURS, "given by a function of yours"

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
    K_P, K_H = (task.covariance.numpy() for task in (tasks.problem.pretrain, tasks.problem.harmful))

    def of(made: Any) -> ExtractorPath:
        """Measure what a reader's function has made, once."""
        if made.tobytes() not in found:
            found[made.tobytes()] = ExtractorPath(YOURS, follow(tasks, _Given(made)))
        return found[made.tobytes()]

    D, most = tasks.dimension, min(tasks.dimension, KEPT_DIRECTIONS)
    labels = {name: option_text(method_style(name).label) for name in known}
    sides = {"pretrain": "pre-training", "harmful": "harmful"}
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
        side: Side = "pretrain",
        theta: Callable[[Any, Any], Any] = max_rir_immunizer,
    ) -> AlignmentView:
        """Look up a step of one extractor."""
        path = of(theta(K_P, K_H)) if extractor == YOURS else kept[extractor]
        return AlignmentView(tasks, path.at(training), SIDES.index(side), i, j)

    words = re.findall(r"[A-Za-z0-9]+", tasks.name)
    name = "AlignmentLab" + "".join(map(str.capitalize, words))
    doc = f"Singular vectors along the training: {' and '.join(tasks.names)}."
    body = {"__doc__": doc, "__module__": __name__, "tasks": tasks, "paths": kept}
    body |= {"own": Own("theta", max_rir_immunizer, ratios_of, theta)}
    body |= {"compute": staticmethod(compute), "presets": tuple(_presets(tasks, kept))}
    return type(name, (Explorer,), body)


def _presets(tasks: PathTasks, kept: Mapping[str, ExtractorPath]) -> Iterator[Preset]:
    """Find a state for each finding, among the extractors that are kept."""

    def preset(label: str, tip: str, extractor: str, i: int = 1) -> Preset:
        return Preset(label, tip, {"extractor": extractor, "training": TRAINING, "i": i})

    if "ours" in kept:
        end = kept["ours"].at(TRAINING)
        ill = [end.shares(i, tasks)[1] for i in range(1, end["left"].shape[1] + 1)]
        most = next((i for i, _ in end.turned() if ill[i - 1] < 0.5), 1)
        tip = "Algorithm 1's end; the uᵢ that turned most"
        yield preset("Training turns these directions", tip, "ours", most)
        if max(ill) >= 0.5:
            tip = "Algorithm 1's end; the uᵢ on which the ill-conditioning depends"
            yield preset("One direction carries the harm", tip, "ours", int(np.argmax(ill)) + 1)
    for name, path in kept.items():
        step = path.at(TRAINING)
        if float(step["misalignment"][0]) <= ALIGNED and step.immunized:
            yield preset("Aligned, and immunized all the same", "θ with eigenvectors of benign data", name)
            break
    if "identity" in kept:
        yield preset("Raw inputs: Eq. 10 has no one answer", "θ = I: every basis is a U", "identity")
