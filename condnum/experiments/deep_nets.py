"""The deep-net experiment (Sec. 5.2, Table 3, Fig. 3): backbones × seeds × methods."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from condnum.arrays import resolve_device
from condnum.deep.weights import state_checksum
from condnum.experiments.deep_cell import INITIAL, DeepCells
from condnum.experiments.deep_config import DeepConfig
from condnum.experiments.deep_run import DeepRun, Prepared
from condnum.experiments.deep_studies import IMAGES
from condnum.experiments.deep_tasks import open_tasks
from condnum.experiments.deep_theta0 import create_backbone, pretraining_table
from condnum.sweep import (
    CellPlan,
    CellResult,
    Executor,
    ResultStore,
    SweepProgress,
    choose_executor,
    core_count,
    run_sweep,
)

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
