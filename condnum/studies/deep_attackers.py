"""What an attacker really meets: deep attacks on θ₀, on every θ_I, and on the net from scratch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from condnum.data.images import ImageData, open_images
from condnum.deep.attacks.attack import DeepAttackRun, attack
from condnum.deep.attacks.attackers import ATTACKERS, DeepAttacker, DeepBudget
from condnum.deep.attacks.report import AGAIN, SCRATCH, THETA_0, AttackKey, DeepAttackReport
from condnum.deep.attacks.target import Pixels, Target, TrunkOutputs, from_scratch, load_pixels
from condnum.deep.backbone import load_backbone
from condnum.deep.transforms import evaluation_transform
from condnum.deep.weights import read_metadata
from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.files import sha256_file
from condnum.studies.deep import AS_LOADED, DeepNets, Made, model_file
from condnum.studies.deep_measures import DeepTasks, is_model, net_results, net_summary
from condnum.studies.deep_recipes import INITIAL, LIMIT_SEED, known_methods
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, at_least, several


def _shots(name: str, value: Any) -> tuple[int, ...]:
    """Read examples per class: whole numbers, 0 for all."""
    given = several(str)(name, value)
    if not given or not all(word.isdecimal() and int(word) != 1 for word in given):
        raise InvalidInputError(
            f"shots are examples per class such as 8,128,0: 0 for all, else at least 2, got {value!r}."
        )
    return tuple(map(int, given))


Shots: TypeAlias = Annotated[tuple[int, ...], _shots]
AttackerNames: TypeAlias = Annotated[tuple[str, ...], several(lambda word: DeepAttacker.named(word).name)]


@dataclass(frozen=True)
class DeepAttackers(DeepNets, name="deep-attackers", notebook="deep_attackers"):
    """θ₀ and θ_I as `DeepNets` makes them, or from a folder, and the attacks that they meet."""

    models: str  # folder that `condnum run deep` left, whose models are attacked; "": they are made here
    attackers: AttackerNames  # empty: `ATTACKERS`
    shots: Shots  # examples per class that the attacker has; 0: all
    steps: Count
    trials: Count  # of each attacker, over its learning rates
    repeats: Count  # with other heads and batches, the same ones for each net
    batch_size: Annotated[int, at_least(2)]
    test_images: Annotated[int, at_least(10)]  # of each task, on which an attack is measured

    def check(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        self.fill(methods=known_methods() if self.models else ("ours",), attackers=ATTACKERS)
        super().check()

    def load(self) -> DeepTasks:
        """Look into the folder of models, and open the images."""
        given = self.given
        data = super().load()
        strangers = [path for path in given.values() if not self._knows(path, data)]
        if self.fresh and strangers:
            names = ", ".join(one.name for one in self.fresh)
            raise InvalidInputError(
                f"{strangers[0]} does not record that it was trained on the images of this run, so no image "
                f"is known to be fresh; leave out {names}, or give "
                "the data and limit of the run that trained it."
            )
        return data

    @staticmethod
    def _knows(path: Path, data: DeepTasks) -> bool:
        """Whether a model says that it was made from these images."""
        return read_metadata(path).get("data") == data.checksum

    @property
    def fresh(self) -> list[DeepAttacker]:
        """Attackers whose images are not those on which θ_I was trained."""
        return [one for one in map(DeepAttacker.named, self.attackers) if one.fresh]

    @lru_cache(1)  # ruff: ignore[cached-instance-method] - a study is frozen, and one runs at a time
    def unused(self, data: DeepTasks) -> ImageData:
        """Return images of D_H on which no θ_I was trained, at most as many per class."""
        whole = open_images(self.harmful or self.defaults.harmful, "train")
        rest = np.flatnonzero(~np.isin(whole.positions, data.harmful.positions))
        return whole.take(rest).limit(max(data.harmful.counts), seed=LIMIT_SEED)

    @property
    def budget(self) -> DeepBudget:
        """What each attacker may spend."""
        return DeepBudget(self.steps, self.trials, self.repeats, self.batch_size)

    @property
    def given(self) -> dict[tuple[str, int, str], Path]:
        """Models of the folder by backbone, seed and method; of a single pair the method may be unnamed."""
        if not self.models:
            return {}
        folder, found = Path(self.models).expanduser(), {}
        for path in sorted(folder.glob("**/theta_*.safetensors")):
            notes = read_metadata(path)
            backbone, seed = notes.get("backbone", ""), int(notes.get("seed", 0))
            method = INITIAL if path.name == "theta_0.safetensors" else notes.get("method", "theta_i")
            wanted = method in self.methods or method not in known_methods()
            if wanted and seed < self.seeds and (not self.backbone or backbone in self.backbone):
                found[backbone, seed, method] = path
        pairs = {key[:2] for key in found if key[2] != INITIAL and (*key[:2], INITIAL) in found}
        if not pairs:
            raise DataNotFoundError(
                f"{folder} has no theta_0.safetensors with a theta_I.safetensors of the same backbone and "
                "seed that is requested, as `condnum run deep --out "
                "DIR` and condnum.deep.save_backbone write them."
            )
        return {key: path for key, path in found.items() if key[:2] in pairs}

    def cells(self, data: DeepTasks) -> list[Cell]:
        """List what makes the models, then the attacks on each, net by net."""
        made = super().cells(data) if not self.models else self._given_cells()
        attacks = []
        for theta in made:
            where = {name: theta[name] for name in ("backbone", "seed")}
            for net in [theta["method"], *([AGAIN, SCRATCH] if theta.after is None else [])]:
                for attacker, shots in itertools.product(map(DeepAttacker.named, self.attackers), self.shots):
                    if net == AGAIN and attacker.closed_form:
                        continue  # nothing is drawn
                    values = attacker.trials(self.trials).tolist()
                    how = {"budget": asdict(self.budget), "values": values, "test_images": self.test_images}
                    at = {"method": net, "attacker": attacker.name, "shots": shots, **where}
                    attacks.append(Cell(at, how, after=theta))
        return [*made, *attacks]

    def _given_cells(self) -> list[Cell]:
        """List the models of the folder."""
        starts, methods = dict[tuple[str, int], Cell](), []
        order = {name: place for place, name in enumerate(known_methods())}
        places = {key: (key[2] != INITIAL, key[:2], order.get(key[2], len(order))) for key in self.given}
        for (backbone, seed, method), path in sorted(self.given.items(), key=lambda kv: places[kv[0]]):
            at = {"method": method, "backbone": backbone, "seed": seed, **self.measured}
            cell = Cell(at, {"file": sha256_file(path)}, after=starts.get((backbone, seed)))
            if method == INITIAL:
                starts[backbone, seed] = cell
            else:
                methods.append(cell)
        return [*starts.values(), *methods]

    def make(self, data: DeepTasks, cell: Cell, checkpoint: Path) -> Made:
        """Make a model, or take it from the folder."""
        if not self.models:
            return super().make(data, cell, checkpoint)
        path = self.given[cell["backbone"], cell["seed"], cell["method"]]
        return load_backbone(path), AS_LOADED, pd.DataFrame(), (), ()

    def compute(self, data: DeepTasks, cell: Cell) -> CellResult:
        """Make and measure a model, or attack one."""
        if is_model(cell):
            return super().compute(data, cell)
        target = self.target(data, cell)
        attacker, again = DeepAttacker.named(cell["attacker"]), cell["method"] == AGAIN
        found = attack(
            target, attacker, shots=cell["shots"], budget=self.budget, seed=cell["seed"], again=again
        )
        row = {name: value for name, value in vars(found).items() if np.ndim(value) == 0}
        arrays = {name: value for name, value in vars(found).items() if isinstance(value, np.ndarray)}
        arrays |= {f"trials.{name}": np.array(values.tolist()) for name, values in found.trials.items()}
        return CellResult(row, arrays)

    def target(self, data: DeepTasks, cell: Cell) -> Target:
        """Return the net that a cell attacks; the last one is kept, with its features."""
        assert cell.after is not None
        return _target(self, data, cell.after, cell["method"] == SCRATCH)

    def report(self, data: DeepTasks, results: Sequence[FinishedCell]) -> DeepAttackReport:
        """Put the attacks together."""
        runs = {}
        for cell, row, arrays in results:
            if is_model(cell):
                continue
            net = THETA_0 if cell["method"] == INITIAL else cell["method"]
            trials = {name[7:]: values for name, values in arrays.items() if name.startswith("trials.")}
            found: dict[str, Any] = {**row, **{n: v for n, v in arrays.items() if "trials." not in n}}
            place = AttackKey(cell["backbone"], net, cell["attacker"], cell["shots"], cell["seed"])
            runs[place] = DeepAttackRun(trials=pd.DataFrame(trials), **found)
        test = data.harmful_test.limit(max(1, self.test_images // len(data.harmful_test.classes)))
        return DeepAttackReport(runs, self.budget, max(test.counts) / len(test))

    def tables(self, data: DeepTasks, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return factors, every attack, its trials and curves, and the models."""
        report = self.report(data, results)
        models = net_results(data, [result for result in results if is_model(result.cell)])
        return {
            "factors": report.factors(),
            "sgrc": report.sgrc(),
            "results": report.table(),
            "trials": report.trials(),
            "immunization": net_summary(models, data),
            "curves.parquet": report.curves(),
        }

    def files(self, results: Sequence[FinishedCell], folder: Path) -> list[str]:
        """Copy the models that were made here."""
        return [] if self.models else super().files(results, folder)


@lru_cache(1)
def _target(study: DeepAttackers, data: DeepTasks, model: Cell, scratch: bool) -> Target:
    """Return the model of a cell, or the same net from scratch, with the images of an attack on it."""
    theta = load_backbone(model_file(model))
    transform = study.transform(theta).unaugmented or evaluation_transform(theta)

    def pixels(images: ImageData, most: int | None = None) -> Pixels:
        return _pixels(images, transform, most, study.workers)

    train, fresh = pixels(data.harmful), pixels(study.unused(data)) if study.fresh else None
    if scratch:
        theta = from_scratch(theta, model["seed"], train.images)
    test = [pixels(images, study.test_images) for images in (data.harmful_test, data.benign_test)]
    benign = {"benign_test": test[1]}
    if any(DeepAttacker.named(name).benign for name in study.attackers):
        benign["benign_train"] = pixels(data.benign)
    return Target(theta, train, test[0], fresh=fresh, **benign, device=study.device, kept=_kept(study))


@lru_cache(1)
def _kept(study: DeepAttackers) -> TrunkOutputs:
    """Return the place of the output of frozen trunks, which the nets of a run share."""
    return {}


@lru_cache(8)
def _pixels(images: ImageData, transform: Any, most: int | None, workers: int) -> Pixels:
    """Return images as a net sees them."""
    return load_pixels(images, transform, most=most, workers=workers)
