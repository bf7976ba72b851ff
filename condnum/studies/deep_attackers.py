"""What an attacker really meets: deep attacks on θ₀, on every θ_I, and on the net from scratch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from condnum.deep.attack_curvature import (
    ROWS,
    attack_curvature,
    correlations,
    part_of,
    predicted_beside_observed,
)
from condnum.deep.attack_panel import (
    ATTACKERS,
    SCRATCH,
    SHOTS,
    THETA_0,
    AttackRun,
    DeepAttacker,
    DeepBudget,
    Pixels,
    Target,
    attack,
    load_pixels,
)
from condnum.deep.attack_report import DeepAttackReport, Place, from_scratch
from condnum.deep.backbone import load_backbone
from condnum.deep.images import ImageData
from condnum.deep.transforms import evaluation_transform
from condnum.deep.weights import read_metadata
from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.files import sha256_file
from condnum.studies.cells import Cell, CellResult, ResultStore, Row, cached
from condnum.studies.deep_cells import INITIAL, METHODS, DeepTasks
from condnum.studies.deep_nets import DeepNets, Made, Methods, model_file
from condnum.studies.deep_tables import results_table, summary_table
from condnum.studies.study import Count, Result, at_least, words


def _shots(name: str, value: Any) -> tuple[int, ...]:
    """Read rows a class: whole numbers, 0 for all."""
    given = value if isinstance(value, tuple) else words(name, str(value))
    try:
        found = tuple(dict.fromkeys(int(count) for count in given))
    except ValueError as error:
        raise InvalidInputError(f"shots must be whole numbers such as 8,128,0, got {value!r}.") from error
    if not found or any(count < 0 or count == 1 for count in found):
        raise InvalidInputError(f"shots are rows a class: 0 for all, else at least 2, got {value!r}.")
    return found


def _attackers(name: str, value: Any) -> tuple[str, ...]:
    """Read names of deep attackers."""
    return tuple(DeepAttacker.named(word).name for word in words(name, value))


Shots: TypeAlias = Annotated[tuple[int, ...], _shots]
Attackers: TypeAlias = Annotated[tuple[str, ...], _attackers]


#: Of which curvature is measured.
TASKS = ("pretrain", "harmful")


def is_model(cell: Cell) -> bool:
    """Tell a cell that makes a model from attacks and curvatures."""
    return "attacker" not in cell.at and "part" not in cell.at


@dataclass(frozen=True)
class DeepAttackers(DeepNets, name="deep-attackers"):
    """θ₀ and θ_I as `DeepNets` makes them, or from a folder, and the attacks that they meet."""

    methods: Methods = ()  # empty: `ours`, or all of the folder
    models: str = ""  # folder that `condnum run deep` left, whose models are attacked; "": they are made here
    attackers: Attackers = ATTACKERS
    shots: Shots = SHOTS  # rows a class that the attacker has; 0: all
    steps: Count = DeepBudget.steps
    trials: Count = DeepBudget.trials  # of each attacker, over its learning rates
    batch_size: Annotated[int, at_least(2)] = DeepBudget.batch_size
    test_images: Annotated[int, at_least(10)] = 500  # of each task, on which an attack is measured
    curvature_rows: Annotated[int, at_least(0)] = ROWS  # on which curvature is measured; 0: it is not
    along: Annotated[int, at_least(0)] = 0  # θ's along each immunization whose curvature is measured as well

    def check(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if not self.methods:
            object.__setattr__(self, "methods", METHODS if self.models else ("ours",))
        super().check()
        if self.along and (self.models or not self.curvature_rows):
            raise InvalidInputError(
                f"along={self.along} measures curvature along immunizations that are made here: leave out "
                "models, and let curvature_rows be above 0."
            )

    def load(self) -> DeepTasks:
        """Look into the folder of models, and open the images."""
        _ = self.given
        return super().load()

    @property
    def budget(self) -> DeepBudget:
        """What each attacker may spend."""
        return DeepBudget(self.steps, self.trials, self.batch_size)

    @property
    def parts(self) -> tuple[str, ...]:
        """What attackers train whose steps curvature may predict; none where it is not measured."""
        attackers = map(DeepAttacker.named, self.attackers if self.curvature_rows else ())
        descents = (one for one in attackers if not one.closed_form and one.optimizer != "whitened")
        return tuple(dict.fromkeys(map(part_of, descents)))

    @property
    def given(self) -> dict[tuple[str, int, str], Path]:
        """Models of the folder by backbone, seed and method; of a single pair the method may be unnamed."""
        folder = Path(self.models).expanduser()
        if not self.models:
            return {}
        found = {}
        for path in sorted(folder.glob("**/theta_*.safetensors")):
            notes = read_metadata(path)
            given = notes.get("seed", "0")
            seed, method = int(given) if given.isdecimal() else 0, notes.get("method", "theta_i")
            method = INITIAL if path.name == "theta_0.safetensors" else method
            found[notes.get("backbone", ""), seed, method] = path
        pairs = {key[:2] for key in found if key[2] != INITIAL}
        whole = {pair for pair in pairs if (*pair, INITIAL) in found}
        if not whole:
            raise DataNotFoundError(
                f"{folder} holds no theta_0.safetensors with a theta_I.safetensors of the same backbone and "
                "seed, as `condnum run deep --out DIR` and condnum.deep.save_backbone write them."
            )
        kept = {key: path for key, path in found.items() if key[:2] in whole}
        return {key: path for key, path in kept.items() if self._asked(*key)}

    def _asked(self, backbone: str, seed: int, method: str) -> bool:
        """Whether a model of the folder is to be attacked."""
        wanted = method in self.methods or method not in METHODS
        return wanted and (not self.backbone or backbone in self.backbone) and seed < self.seeds

    def cells(self, data: DeepTasks) -> list[Cell]:
        """List what makes the models, then the attacks on each, net by net."""
        made = super().cells(data) if not self.models else self._given_cells()
        shares = [(k + 1) / (self.along + 1) for k in range(self.along)]
        path = [
            Cell({**theta.at, "share": share}, theta.settings, theta.after)
            for theta, share in itertools.product(made, shares)
            if theta.after is not None
        ]
        attacks = []
        for theta in path:
            for part, task in itertools.product(self.parts, TASKS):
                at = {name: theta[name] for name in ("method", "share", "backbone", "seed")}
                at |= {"part": part, "task": task}
                attacks.append(Cell(at, {"rows": self.curvature_rows}, after=theta))
        for theta in made:
            where = {name: theta[name] for name in ("backbone", "seed")}
            nets = [theta["method"], *([SCRATCH] if theta.after is None else [])]
            for net in nets:
                own = {"statistics": "of the attacker's images"} if net == SCRATCH else {}
                for name, shots in itertools.product(self.attackers, self.shots):
                    values = DeepAttacker.named(name).trials(self.trials).tolist()
                    how = {"budget": asdict(self.budget), "values": values, "test_images": self.test_images}
                    at = {"method": net, "attacker": name, "shots": shots, **where}
                    attacks.append(Cell(at, how | own, after=theta))
                for part, task in itertools.product(self.parts, TASKS):
                    at = {"method": net, "part": part, "task": task, **where}
                    attacks.append(Cell(at, {"rows": self.curvature_rows} | own, after=theta))
        return [*made, *path, *attacks]

    def _given_cells(self) -> list[Cell]:
        """List the models of the folder."""
        starts, methods = dict[tuple[str, int], Cell](), []
        for (backbone, seed, method), path in sorted(self.given.items(), key=lambda kv: kv[0][2] != INITIAL):
            at = {"method": method, "backbone": backbone, "seed": seed, **self.measured}
            start = starts.get((backbone, seed))
            cell = Cell(at, {"file": sha256_file(path)}, after=start)
            if start is None:
                starts[backbone, seed] = cell
            else:
                methods.append(cell)
        return [*starts.values(), *methods]

    def make(self, data: DeepTasks, cell: Cell, checkpoint: Path) -> Made:
        """Make a model, or take it from the folder."""
        if not self.models:
            return super().make(data, cell, checkpoint)
        path = self.given[cell["backbone"], cell["seed"], cell["method"]]
        row: Row = {"steps": 0, "best_step": 0, "seconds": 0.0, "stop_reason": "as loaded"}
        return load_backbone(path), row, pd.DataFrame(), (), ()

    def compute(self, data: DeepTasks, cell: Cell) -> CellResult:
        """Make and measure a model, attack one, or measure the curvature that an attack on it begins with."""
        if is_model(cell):
            return super().compute(data, cell)
        stream = {INITIAL: 0, SCRATCH: 1}.get(cell["method"], 2)
        target = self.target(data, cell)
        if "part" in cell.at:
            attacker = DeepAttacker.named(f"{cell['part']}-sgd")
            rows = self.curvature_rows
            measured = attack_curvature(target, attacker, seed=cell["seed"], stream=stream, rows=rows)
            return CellResult(measured, {})
        attacker = DeepAttacker.named(cell["attacker"])
        found = attack(
            target, attacker, shots=cell["shots"], budget=self.budget, seed=cell["seed"], stream=stream
        )
        row: Row = {
            name: getattr(found, name)
            for name in ("chosen", "at_edge", "pretrain_accuracy", "rows", "seconds")
        }
        arrays = {f"trials.{name}": values.to_numpy() for name, values in found.trials.items()}
        return CellResult(row, {"steps": found.steps, "correct": found.correct, **arrays})

    def target(self, data: DeepTasks, cell: Cell) -> Target:
        """Return the net that a cell attacks; the last one is kept, with its features."""
        assert cell.after is not None
        kept: dict[str, Any] = cached("deep-target", dict)
        task = cell.at.get("task", "harmful")
        key = f"{cell.after.key} {cell['method'] == SCRATCH} {task}"
        if kept.get("key") != key:
            theta = load_backbone(model_file(cell.after))
            transform = self.transform(data, theta).still or evaluation_transform(theta)

            def pixels(images: ImageData, most: int | None = None) -> Pixels:
                of = ("deep-pixels", images.checksum, transform.description, most)
                return cached(of, lambda: load_pixels(images, transform, most=most, workers=self.workers))

            train = data.harmful if task == "harmful" else data.pretrain
            if cell["method"] == SCRATCH:
                theta = from_scratch(theta, cell["seed"], pixels(train).images)
            test = [pixels(images, self.test_images) for images in (data.harmful_test, data.pretrain_test)]
            made = Target(theta, pixels(train), test[0], pretrain_test=test[1], device=self.device)
            kept.clear()
            kept.update(key=key, target=made)
        target: Target = kept["target"]
        return target

    def report(self, data: DeepTasks, results: Sequence[Result]) -> DeepAttackReport:
        """Put the attacks together."""
        runs = {}
        for cell, row, arrays in results:
            if "attacker" not in cell.at:  # a model, or a curvature
                continue
            net = THETA_0 if cell["method"] == INITIAL else cell["method"]
            trials = {name[7:]: values for name, values in arrays.items() if name.startswith("trials.")}
            place = Place(cell["backbone"], net, cell["attacker"], cell["shots"], cell["seed"])
            runs[place] = AttackRun(
                trials=pd.DataFrame(trials),
                steps=arrays["steps"],
                correct=arrays["correct"],
                **row,  # type: ignore[arg-type]
            )
        counts = np.bincount(data.harmful.labels)
        return DeepAttackReport(
            runs, self.budget, {n: int(np.minimum(counts, n or counts.max()).sum()) for n in self.shots}
        )

    def tables(self, data: DeepTasks, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return factors of steps and of rows, every attack, its trials and curves, and RIR of the models."""
        report = self.report(data, results)
        models = results_table(data, self.models_of(results))
        return {
            "factors": report.factors(),
            "rows": report.rows_factors(),
            "results": report.table(),
            "trials": report.trials(),
            "immunization": summary_table(models, data),
            "curves.parquet": report.curves(),
            **self._curvatures(report, results),
        }

    def _curvatures(self, report: DeepAttackReport, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return curvatures, and the steps that they predict beside those that attacks took."""
        rows = [
            {
                **{name: cell[name] for name in ("backbone", "seed", "part", "task")},
                "net": THETA_0 if cell["method"] == INITIAL else cell["method"],
                "share": cell.at.get("share", 0.0 if cell["method"] in (INITIAL, SCRATCH) else 1.0),
                **row,
            }
            for cell, row, _ in results
            if "part" in cell.at
        ]
        if not rows:
            return {}
        table = pd.DataFrame(rows)
        ends = table[table["share"].isin([0, 1])]
        beside = predicted_beside_observed(report, ends[ends["task"] == "harmful"])
        made = {"curvature": ends, "predicted": beside, "correlations": correlations(beside)}
        return made | ({"along": self._along(table, results)} if self.along else {})

    @staticmethod
    def _along(table: pd.DataFrame, results: Sequence[Result]) -> pd.DataFrame:
        """Return the curvature along each immunization, beside RIR_θ0 of the best θ until then."""
        where = ["backbone", "seed", "net", "share"]
        models = [
            {
                **{name: cell[name] for name in ("backbone", "seed")},
                "net": cell["method"],
                "share": cell.at.get("share", 1.0),
                "best_step": row["best_step"],
                **{name: row[f"compact.{name}"] for name in ("rir", "harmful_ratio", "pretrain_ratio")},
            }
            for cell, row, _ in results
            if is_model(cell) and cell.after is not None
        ]
        known = pd.DataFrame(models)
        start = table[table["net"] == THETA_0]
        paths = [table[~table["net"].isin([THETA_0, SCRATCH])]]
        paths += [start.assign(net=net) for net in known["net"].unique()]
        zero = known.drop_duplicates(["backbone", "seed", "net"]).assign(
            share=0.0, best_step=0, rir=1.0, harmful_ratio=1.0, pretrain_ratio=1.0
        )
        joined = pd.concat(paths).merge(pd.concat([zero, known]), on=where)
        return joined.sort_values([*where, "part", "task"], ignore_index=True)

    @staticmethod
    def models_of(results: Sequence[Result]) -> list[Result]:
        """Return the cells that are models: θ₀, and every θ_I at its end."""
        return [result for result in results if is_model(result.cell) and "share" not in result.cell.at]

    def prepare(self, cells: Sequence[Cell], store: ResultStore) -> None:
        """Mark models whose file is gone as not done."""
        super().prepare([cell for cell in cells if is_model(cell)], store)

    def score(self, data: DeepTasks, result: CellResult) -> float:
        """Rate models only."""
        return super().score(data, result) if "compact.rir" in result.row else float("nan")

    def notes(self, results: Sequence[Result], name: str) -> pd.DataFrame:
        """Return what the measurements of the models warn of."""
        return super().notes(self.models_of(results), name)

    def files(self, results: Sequence[Result], folder: Path) -> list[str]:
        """Copy the models that were made here."""
        return [] if self.models else super().files(self.models_of(results), folder)

    def facts(self, data: DeepTasks) -> dict[str, str]:
        """Return what the run was made of."""
        budget = self.budget
        return super().facts(data) | {
            "attackers": f"{budget.trials} trials each, {budget.steps} steps, batches of {budget.batch_size} "
            "(of a head: all rows)",
            "attackers train on": f"four fifths of D_H's {len(data.harmful)} training images, or of some of "
            f"them; θ_I was immunized with {'the same images' if not self.models else 'what its maker took'}",
            "curvature": f"on {self.curvature_rows} of the rows that are trained on, in float32",
            "measured on": f"at most {self.test_images} test images of each task, which nobody trained on",
        }
