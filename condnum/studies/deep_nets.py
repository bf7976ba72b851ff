"""The deep-net experiment (Sec. 5.2, Table 3, Fig. 3): backbones × seeds × methods."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.deep.weights import state_checksum
from condnum.errors import DataNotFoundError, require
from condnum.files import atomic_write, output_folder, write_tables
from condnum.studies.cell import CellPlan, CellResult
from condnum.studies.deep_cells import (
    IMAGES,
    INITIAL,
    DeepCells,
    DeepConfig,
    DeepTasks,
    create_backbone,
    open_tasks,
    pretraining_table,
)
from condnum.studies.deep_tables import curves_table, notes_table, results_table, summary_table
from condnum.studies.executors import Executor, choose_executor, core_count
from condnum.studies.store import ResultStore
from condnum.studies.sweep import SweepProgress, SweepReport, run_sweep

# The finished deep-net experiment: its tables, what it was, and the files that it leaves.


@dataclass(frozen=True)
class Prepared:
    """A configuration that has been checked against the data, the weights and the backbones."""

    config: DeepConfig
    tasks: DeepTasks
    weights: dict[str, str]  # SHA-256 of what each backbone starts from; "" where it is drawn


@dataclass(frozen=True)
class DeepRun:
    """The finished experiment: cells, and the tables made from them."""

    prepared: Prepared
    plans: list[CellPlan]  # of the cells that are finished, θ₀ first
    cells: list[CellResult]  # in the same order
    models: list[Path]  # likewise; gone after a run without a folder
    sweeps: tuple[SweepReport, SweepReport]  # of θ₀, of the methods
    note: str = ""  # what became of `jobs`

    @property
    def config(self) -> DeepConfig:
        """What was run."""
        return self.prepared.config

    @property
    def tasks(self) -> DeepTasks:
        """Its images."""
        return self.prepared.tasks

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row per backbone × seed × method × convention."""
        return results_table(self.tasks, self.cells)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean and spread over seeds, beside Table 3."""
        return summary_table(self.results, self.tasks)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Probe curves and histories in long form."""
        return curves_table(self.cells)

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        rows = [row for sweep in self.sweeps for row in sweep.failure_rows]
        return pd.DataFrame(rows, columns=["cell", "error"])

    @property
    def warnings(self) -> pd.DataFrame:
        """What the measurements warn of."""
        return notes_table(self.cells, "warnings")

    @property
    def unreadable(self) -> pd.DataFrame:
        """Images that do not decode and were left out."""
        return notes_table(self.cells, "unreadable")

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        config, tasks = self.config, self.tasks
        device = resolve_device(config.device)
        place = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        timm = require("timm", "deep").__version__
        of_test = min(config.group_size, len(tasks.pretrain_test), len(tasks.harmful_test))
        facts = {
            "pre-training task": f"{tasks.pretrain.name}: classes {', '.join(tasks.pretrain.classes[:12])}"
            + (", …" if len(tasks.pretrain.classes) > 12 else ""),
            "harmful task": f"{tasks.harmful.name}: classes {', '.join(tasks.harmful.classes[:12])}"
            + (", …" if len(tasks.harmful.classes) > 12 else ""),
            **{f"SHA-256 of {name}": checksum for name, checksum in tasks.checksums.items()},
            "images per class and split": "all" if config.images_per_class is None
            else f"at most {config.images_per_class}",
            "side of the images": "the backbone's own" if config.side is None else f"{config.side} pixels",
            "groups of Eq. 17": f"{config.groups} of {config.group_size} training and of {of_test} test "
            "images, un-augmented",
            "seeds": ", ".join(map(str, range(config.seeds))),
            "cells": f"{sum(s.computed for s in self.sweeps)} computed, "
            f"{sum(s.reused for s in self.sweeps)} from the store, {len(self.failures)} failed",
            **({"workers": self.note} if self.note else {}),
            "seconds": f"{sum(s.seconds for s in self.sweeps):,.0f}",
            "device": f"{place} ({device})",
            "peak memory": str(self.sweeps[1].memory),
            "versions": f"condnum {_version()}, timm {timm}, torch {torch.__version__}, "
            f"Python {platform.python_version()}",
        }  # fmt: skip
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write the tables, and the models: at the top for a single cell, else a folder for each."""
        tables = {"results.csv": self.results, "summary.csv": self.summary, "curves.parquet": self.curves}
        names = write_tables(folder, tables | ({"failures.csv": self.failures} if len(self.failures) else {}))
        target = Path(folder)
        single = len(self.plans) == 2  # one θ₀, one method
        for plan, model in zip(self.plans, self.models, strict=True):
            names.append(_copy_model(model, target, Path() if single else _model_folder(plan), plan))
        return names


def _model_folder(plan: CellPlan) -> Path:
    """Return `<backbone>/seed-<n>` or `<backbone>/seed-<n>/<method>`."""
    payload = plan.payload
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in str(payload["backbone"]))
    place = Path(name) / f"seed-{payload['seed']}"
    return place if payload["method"] == INITIAL else place / str(payload["method"])


def _copy_model(model: Path, target: Path, place: Path, plan: CellPlan) -> str:
    """Copy a model to its name among the results."""
    if not model.is_file():
        raise DataNotFoundError(
            f"the model {model} is gone; run the experiment with a folder that is kept, and save before that "
            "folder goes."
        )
    name = "theta_0.safetensors" if plan.payload["method"] == INITIAL else "theta_I.safetensors"
    output_folder(target / place)
    with atomic_write(target / place / name) as temporary:
        shutil.copyfile(model, temporary)
    return (place / name).as_posix()


def _version() -> str:
    """Return the version of this package."""
    from condnum import __version__

    return __version__


#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "3"


def prepare(config: DeepConfig) -> Prepared:
    """Open the images and make each backbone once, so that what cannot run fails before anything runs."""
    tasks = open_tasks(config)
    sums = {}
    for name in config.chosen_backbones:
        backbone = create_backbone(config, tasks, name, seed=0)
        new_head = f"{backbone.split.head}." if config.backbone(name).pretraining is not None else None
        state = {
            key: value
            for key, value in backbone.model.state_dict().items()
            if new_head is None or not key.startswith(new_head)  # a new head is drawn from the seed
        }
        sums[name] = "" if config.chosen_weights == "none" else state_checksum(state)
    return Prepared(config, tasks, sums)


def plans(prepared: Prepared) -> tuple[list[CellPlan], list[CellPlan]]:
    """List the cells of a run: those that make θ₀, and the methods that start from it."""
    config, checksum = prepared.config, prepared.tasks.checksum
    measure = {
        "groups": config.groups,
        "group_size": config.group_size,
        "probe_epochs": config.probe_epochs,
        "image_size": config.side,
        "augmentation": config.study.augmentation,
    }
    starts, methods = [], []
    for name in config.chosen_backbones:
        recipe = config.backbone(name)
        origin = {
            "arguments": dict(recipe.arguments),
            "weights": prepared.weights[name],
            "pretraining": dict(recipe.pretraining or {}),
            "device": resolve_device(config.device).type,
        }
        for seed in range(config.seeds):
            where = {"backbone": name, "seed": seed}
            start = CellPlan("deep", {"method": INITIAL, **where, **measure}, origin, checksum, CODE_VERSION)
            starts.append(start)
            for method in config.methods:
                payload = {"method": method, **where, **measure, "start": start.key}
                settings = asdict(config.settings(name, method))
                methods.append(CellPlan("deep", payload, settings, checksum, CODE_VERSION))
    return starts, methods


def run(
    config: DeepConfig | Prepared,
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> DeepRun:
    """Run the experiment, or what is left of it."""
    prepared = prepare(config) if isinstance(config, DeepConfig) else config
    starts, methods = plans(prepared)
    kept = tempfile.TemporaryDirectory() if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        compute = DeepCells(prepared.config, Path(place).absolute())
        _forget_without_model([*starts, *methods], compute, store)
        sweeps, note = [], ""
        for cells in (starts, methods):
            executor = _executor(prepared.config, len(cells), jobs)
            ready = [p for p in cells if p in starts or store.done(str(p.payload["start"]))]
            sweeps.append(run_sweep(ready, compute, store, executor, on_progress=on_progress, score=_score))
            sweeps[-1].check()
            note = executor.note
        finished = [(p, c) for p in [*starts, *methods] if (c := store.get(p.key)) is not None]
    done, cells_of = [p for p, _ in finished], [c for _, c in finished]
    models = [compute.model_file(p.key) for p in done]
    return DeepRun(prepared, done, cells_of, models, (sweeps[0], sweeps[1]), note)


def theta_0_table(config: DeepConfig) -> pd.DataFrame:
    """Say where each θ₀ comes from; see `pretraining_table`."""
    return pretraining_table(config)


def _score(result: CellResult) -> float:
    """Return the RIR that progress shows."""
    return float(result.row["compact.rir"])  # type: ignore[arg-type]


def _executor(config: DeepConfig, cells: int, jobs: int | None) -> Executor:
    """Return where cells are computed; the small studies gain more from cells than from threads."""
    small = config.data != IMAGES and resolve_device(config.device).type == "cpu"
    workers = jobs if jobs is not None else (core_count() if small else 1)
    return choose_executor(workers, cells=cells, threads=1 if small else None)


def _forget_without_model(cells: list[CellPlan], compute: DeepCells, store: ResultStore) -> None:
    """Mark cells whose model file is gone as not done, so that they are computed again."""
    for plan in cells:
        if store.done(plan.key) and not compute.model_file(plan.key).is_file():
            store.fail(plan.key, "the model file is gone")
