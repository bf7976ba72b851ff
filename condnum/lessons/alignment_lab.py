"""Lesson 7: singular vectors of real extractors along their training, beside the spectra that they decide."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.data import TaskPair
from condnum.errors import require
from condnum.experiments import frame, house_prices, linear, pairs
from condnum.experiments.outcome import Arrays
from condnum.lessons.alignment import UNIT, haar_overlap_band
from condnum.lessons.condition_number import Floats
from condnum.lessons.draw import Panel
from condnum.lessons.explore import Choice, Explorer, Slider, explore, is_page
from condnum.methods import get_method, method_names
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.look import BLUE, NEUTRAL, ORANGE, PURPLE, in_blocks, overlap_heatmap, translucent
from condnum.page.style import method_style, option_text
from condnum.page.tables import formula_html
from condnum.theory.kappa import Immunization
from condnum.theory.limits import max_rir_immunizer
from condnum.theory.linalg import singular_triples
from condnum.theory.task import Task, rank_tolerance, stored_extractor

#: Marks of the slider along a training; rows and columns of a map; points of a spectrum; bars of a table.
TRAINING, BLOCKS, POINTS, BARS = 40, 32, 60, 7
#: Spectra are drawn down to here.
_FLOOR = 1e-18
#: D_P and D_H, and their colors.
TASKS, COLORS = ("D<sub>P</sub>", "D<sub>H</sub>"), (BLUE, ORANGE)
#: Negative, zero, positive: of the name "RdBu" every version of plotly has colors of its own.
_DIVERGING = [[0, "#B2182B"], [0.5, "#FFFFFF"], [1, "#2166AC"]]
#: The extractor that a function of the reader's makes.
YOURS = "yours"


def max_rir(K_P: Floats, K_H: Floats) -> Floats:
    """Return θ*, which does not depend on the harmful task."""
    return np.asarray(max_rir_immunizer(K_P))


class View:
    """One task at one θ; M = ΣUᵀKUΣ is H in the basis V, which nothing here sees.

    Attributes:
        overlaps: |u_iᵀq_j|², `(D, D)`.
        predicted: Eq. 10, in the order of θ's singular values, `(D,)`.
        spectrum: Singular values of H, descending, zeros beyond its rank, `(D,)`.
        rank: Of H.
    """

    def __init__(self, task: Task, theta: Floats, U: Floats, s: Floats) -> None:
        D = len(U)
        vectors = torch.cat([task.vectors, task.null_basis], dim=1).numpy()
        self.gamma = np.pad(task.values.numpy(), (0, D - task.rank))
        self.vectors, self.overlaps = vectors, np.square(U.T @ vectors)
        self.predicted = s**2 * (self.overlaps @ self.gamma)
        seen = task.through(theta)
        self.rank = seen.rank
        self.spectrum = np.pad(np.square(seen.sigma.numpy()[: self.rank]), (0, D - self.rank))

    @property
    def kappa(self) -> float:
        """κ(H) over its rank."""
        return float(self.spectrum[0] / self.spectrum[self.rank - 1])

    @property
    def predicted_kappa(self) -> float:
        """κ of Eq. 10, over the values that are no round-off."""
        kept = self.predicted[self.predicted > rank_tolerance(len(self.predicted)) * self.predicted.max()]
        return float(kept.max() / kept.min())


#: U, Σ, both tasks and the verdict at one θ.
Measured = tuple[Floats, Floats, list[View], Immunization]


class AlignmentLab:
    """Extractors for two tasks along their training; `show` draws their singular vectors.

    Args:
        data: house-prices, embedded, mnist:P-H, digits:P-H, the files at a path, or a pair of arrays.
        methods: Extractors, comma-separated; empty for all.
        steps: Of each training; 0 for a method's own.
        run: Folder of a run of house-prices, whose paths are taken where the same code made them.
    """

    def __init__(
        self,
        data: str | TaskPair = "house-prices",
        *,
        methods: str | Sequence[str] = "",
        steps: int = 0,
        run: str = "",
    ) -> None:
        self.shape: tuple[int, ...] = ()  # of an image whose pixels the columns are
        known = ""
        if isinstance(data, TaskPair):
            self.problem, self.features = ImmunizationProblem.from_pair(data), data.feature_names
        else:
            source, pair = pairs.read_data(data)
            known, loaded = pairs.data_set(source), pairs.load(source)
            self.problem, self.features = pairs.tasks(source, pair), loaded.feature_names
            self.shape = getattr(loaded, "images", np.empty(0)).shape[1:]
        wanted = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else methods
        chosen = [get_method(name).name for name in wanted if name] or method_names()
        self.origins = dict.fromkeys(chosen, "trained here")
        kept = _kept_paths(str(data), chosen, steps, run) if known in pairs.TABLES and run else {}
        self.paths = dict[str, Arrays]()
        for name in require("tqdm.auto", "notebooks").tqdm(
            chosen, "extractors", leave=False, disable=is_page()
        ):
            if name in kept:
                self.paths[name], self.origins[name] = kept[name], f"read from {run}"
                continue
            path = self.paths[name] = Arrays()
            linear.extractor(self.problem, known, method=name, seed=0, steps=steps, path=path)
        self.at = lru_cache(maxsize=256)(self._at)

    @property
    def tasks(self) -> tuple[Task, Task]:
        """D_P and D_H."""
        return self.problem.benign, self.problem.harmful

    def place(self, name: str, training: int) -> int:
        """Return the index of the kept step at a mark of the slider."""
        return round(training / TRAINING * (len(self.paths[name]["steps"]) - 1))

    def _at(self, name: str, index: int) -> Measured:
        """Return what is measured at a kept step."""
        U, s, views, verdict = self.measured(self.paths[name]["path"][index])
        if index:  # a vector does not turn over from one step to the next
            along = (U * self.at(name, index - 1)[0]).sum(axis=0)
            U = U * np.where(np.abs(along) > 0.5, np.sign(along), 1.0)
        return U, s, views, verdict

    def measured(self, theta: Floats) -> Measured:
        """Return U, the largest entry of each column positive, Σ, both tasks, and the verdict at θ."""
        D = len(theta)
        U, s, _ = (
            part.numpy() for part in singular_triples(stored_extractor(torch.as_tensor(theta)), whole=True)
        )
        s = np.pad(np.where(s > rank_tolerance(D) * s[0], s, 0.0), (0, D - len(s)))
        U = U * np.sign(U[np.abs(U).argmax(axis=0), np.arange(D)])
        views = [View(task, theta, U, s) for task in self.tasks]
        return U, s, views, self.problem.seen(theta).immunization()

    @cached_property
    def lowest(self) -> float:
        """The smallest value of the spectra at both ends of the trainings, over the largest."""
        ends = [
            self.at(name, index) for name, path in self.paths.items() for index in {0, len(path["steps"]) - 1}
        ]
        least = [
            view.spectrum[view.rank - 1] / (s[0] ** 2 * view.gamma[0])
            for _, s, views, _ in ends
            for view in views
        ]
        return max(min(least) / 3, _FLOOR)

    def table(self) -> pd.DataFrame:
        """Return the last step of each extractor."""
        rows = []
        for name in self.paths:
            *_, views, found = self.at(name, len(self.paths[name]["steps"]) - 1)
            row = {
                "extractor": option_text(method_style(name).label),
                "steps": int(self.paths[name]["steps"][-1]),
                "(i)": found.harmful_ratio,
                "(ii)": found.benign_ratio,
                "RIR": found.rir,
            }
            row |= {
                f"κ of Eq. 10 / κ, {of}": view.predicted_kappa / view.kappa
                for of, view in zip("PH", views, strict=True)
            }
            rows.append(row | {"path": self.origins[name]})
        return pd.DataFrame(rows).set_index("extractor")

    @cached_property
    def explorer(self) -> Explorer:
        """The explorer of these extractors, and of a reader's; its sliders end at their D."""
        D, labels = (
            self.problem.dimension,
            {option_text(method_style(name).label): name for name in self.paths},
        )
        short = [one for one in (1, 2, 3, D // 2, D) if one <= D]

        @explore(
            extractor=Choice({**labels, YOURS: YOURS}, label="extractor θ"),
            training=Slider(
                0, TRAINING, stops=[0, 5, 10, 16, 22, 28, 34, 40], play=400, label="training, θ₀ to end"
            ),
            i=Slider(1, D, stops=short, label="direction i of θ", help="Or click a map."),
            side=Choice({"pre-training": 0, "harmful": 1}, label="task of q<sub>j</sub>", live=True),
            j=Slider(1, D, label="eigenvector j of K", live=True),
        )
        def lab(
            extractor: str = next(iter(self.paths)),
            training: int = TRAINING,
            i: int = 1,
            side: int = 0,
            j: int = 1,
            theta: Callable[[Floats, Floats], Floats] = max_rir,
        ) -> tuple[list[Panel], str]:
            """Singular vectors along the training of extractors, and what they make of two tasks."""
            if extractor == YOURS:
                found = self.measured(np.asarray(theta(*(task.covariance.numpy() for task in self.tasks))))
                return self.panels(*found[:3], i, side, j), self.words("yours", *found[1:], i)
            index = self.place(extractor, training)
            steps, label = self.paths[extractor]["steps"], method_style(extractor).label
            name = f"{label}, step {int(steps[index]):,} of {int(steps[-1]):,}" if len(steps) > 1 else label
            found = self.at(extractor, index)
            return self.panels(*found[:3], i, side, j), self.words(name, *found[1:], i)

        return lab

    def show(self, **settings: Any) -> Any:
        """Draw; `theta=` is a function of yours that takes K_P and K_H to an extractor."""
        return self.explorer.show(**settings)

    def panels(self, U: Floats, s: Floats, views: list[View], i: int, side: int, j: int) -> list[Panel]:
        """Draw the overlaps on both tasks, the spectra, and the direction in the data."""
        D = len(U)
        maps = [
            Panel(
                f"{name}: |u<sub>i</sub>ᵀq<sub>j</sub>|²",
                x=f"j of q<sub>j</sub> of {name}",
                y="i of u<sub>i</sub>",
            )
            for name in TASKS
        ]
        for panel, view in zip(maps, views, strict=True):
            heat = overlap_heatmap(np.round(in_blocks(view.overlaps, BLOCKS), 3), D)
            heat |= dict.fromkeys("xy", np.rint(heat["x"]))  # what a click chooses
            heat["meta"] = {"click": {"i": "y", "j": "x"}}
            panel.heat("overlaps", hover=heat.pop("hovertemplate"), **heat)
            panel.marks("(i, j)", [j], [i], PURPLE, "square-open", size=11, legend=False)
        spectra = Panel("spectrum of H, and Eq. 10 (○)", x="index, largest first", y=UNIT, log="y")
        spectra.limits = [(1 - 0.03 * D, D + 0.03 * D), (self.lowest, 3)]
        kept = np.unique(np.linspace(0, D - 1, POINTS).round().astype(int))
        for name, color, view in zip(TASKS, COLORS, views, strict=True):
            scale, order = s[0] ** 2 * view.gamma[0], np.argsort(-view.predicted, kind="stable")
            low, high = (np.maximum(s[k] ** 2 * view.gamma / scale, _FLOOR)[kept] for k in (-1, 0))
            around = np.concatenate([kept, kept[::-1]]) + 1
            spectra.area(
                f"Ostrowski, {name}", around, np.concatenate([low, high[::-1]]), translucent(color, 0.13)
            )
            truth, sorted_terms = (values[kept] / scale for values in (view.spectrum, view.predicted[order]))
            spectra.line(
                f"truth, {name}", kept + 1, np.where(truth > _FLOOR, truth, np.nan), color, "solid", width=2.5
            )
            terms = np.where(sorted_terms > _FLOOR, sorted_terms, np.nan)
            spectra.marks(f"Eq. 10, {name}", kept + 1, terms, color, "circle-open", size=5, legend=False)
            term = max(view.predicted[i - 1] / scale, _FLOOR)
            at = np.flatnonzero(order == i - 1) + 1
            spectra.marks("term of i", at, [term], PURPLE, "circle-open", size=12, legend=False)
        u, q = U[:, i - 1], views[side].vectors[:, j - 1]
        return [*maps, spectra, self.direction(u, q * (np.sign(q @ u) or 1.0))]

    def direction(self, u: Floats, q: Floats) -> Panel:
        """Draw u_i and q_j, turned to its side: as images of the pixels, or by their largest loadings."""
        if self.shape:
            gap = np.full((self.shape[0], 1), np.nan)
            images = [(of / np.abs(of).max()).round(2).reshape(self.shape) for of in (u, q)]
            panel = Panel("u<sub>i</sub> | q<sub>j</sub> as images", equal=True)
            panel.bare = True
            look = {"colorscale": _DIVERGING, "zmin": -1, "zmax": 1, "showscale": False}
            return panel.heat(
                "images", np.concatenate([images[0], gap, images[1]], axis=1), hover="%{z:.2f}", **look
            )
        kept = np.sort(np.argsort(-np.abs(u), kind="stable")[:BARS])[::-1]
        names = [str(self.features[k])[:14] for k in kept]
        panel = Panel("loadings of u<sub>i</sub> and q<sub>j</sub> (gray)", xlim=(-1, 1))
        for name, of, color in (("u", u, PURPLE), ("q", q, NEUTRAL)):
            panel.bars(name, names, of[kept], color, hover="%{label}: %{value:.3f}")
        return panel

    def words(self, name: str, s: Floats, views: list[View], found: Immunization, i: int) -> str:
        """Say the verdict, what became of both κ, by Eq. 10 as well, and what the chosen direction does."""
        part = [f"{view.predicted[i - 1] / view.predicted.sum():.1%}" for view in views]
        overlaps = ", ".join(num(float(np.diagonal(view.overlaps).mean()), 2) for view in views)
        chance = " … ".join(num(end, 2) for end in haar_overlap_band(len(s)))
        kappas = ", ".join(
            f"κ(H<sub>{of}</sub>) {num(task.kappa)} → {num(view.kappa)} (Eq. 10: {num(view.predicted_kappa)})"
            for of, task, view in zip("PH", self.tasks, views, strict=True)
        )
        ratios = f"(i) = {num(found.harmful_ratio)}, (ii) = {num(found.benign_ratio)}, RIR = {num(found.rir)}"
        verdict = f"<b>{name}: Definition 3.1 is {formula_html(found.verdict)}</b>; {kappas}"
        terms = (
            f"By Eq. 10, u<sub>{i}</sub> is {part[0]} of tr H<sub>P</sub> and {part[1]} of tr H<sub>H</sub>."
        )
        mean = f"Mean |u<sub>i</sub>ᵀq<sub>i</sub>|²: {overlaps} (by chance {chance})"
        return f"{verdict}. {ratios}. {mean}. {terms}"


def _kept_paths(data: str, methods: Sequence[str], steps: int, run: str) -> dict[str, Arrays]:
    """Return the paths of the first seed that a run of house-prices has kept."""
    asked: dict[str, Any] = {
        "data": data,
        "methods": ",".join(methods),
        "seeds": 1,
        "steps": steps,
        "rows": 0,
    }
    asked |= {"features": "published", "device": "auto", "full": True}
    cells = frame.kept(house_prices, Path(run), **asked)
    return {cell["method"]: arrays for cell, (_, arrays) in cells if "path" in arrays}
