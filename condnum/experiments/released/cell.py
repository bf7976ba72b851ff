"""One cell of the audit: a setting of the switches and a seed → the spectra of what it trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from condnum.experiments.released.batches import PairedBatches
from condnum.experiments.released.data_sets import AuditData
from condnum.experiments.released.gradients import SwitchedAlgorithm1
from condnum.experiments.released.switches import ProtocolSwitches
from condnum.experiments.released.tasks import SwitchedTasks, switched_tasks
from condnum.immunization import HessianSpectra
from condnum.methods import DescentSettings, ImmunizationResult
from condnum.methods.descent import descend
from condnum.spectra import hessian_spectrum
from condnum.sweep import CellPlan, CellResult
from condnum.tasks import LinearTask

#: Arrays of a cell, each descending.
SPECTRA = ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")


def compute_cell(plan: CellPlan) -> CellResult:
    """Train one extractor and keep its spectra."""
    tasks, result = train_cell(plan)
    spectra = feature_spectra(tasks, result.theta)
    row: dict[str, Any] = {
        "seed": result.seed,
        "updates": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        "dimension": tasks.inputs.dimension,
        "ridge_well": plan.payload["ridges"][0],
        "ridge_ill": plan.payload["ridges"][1],
        "rows_pretrain": _rows(tasks.inputs.pretrain),
        "rows_harmful": _rows(tasks.inputs.harmful),
    }
    return CellResult(row, {name: getattr(spectra, name).numpy() for name in SPECTRA})


def train_cell(plan: CellPlan) -> tuple[SwitchedTasks, ImmunizationResult]:
    """Run the descent of a cell."""
    payload, reference = plan.payload, plan.data
    assert reference is not None  # plans of this experiment always name their data
    data = AuditData.parse(payload["data"], reference.source)
    switches = ProtocolSwitches(**payload["switches"])
    tasks = switched_tasks(data, reference, switches)
    method = SwitchedAlgorithm1(switches, image_side=tasks.image_side, ridges=tuple(payload["ridges"]))
    problem = PairedBatches.of(tasks.problem) if switches.covariance == "minibatch" else tasks.problem
    settings = DescentSettings(**plan.settings)
    return tasks, descend(problem, method, settings, seed=payload["seed"])


def feature_spectra(tasks: SwitchedTasks, theta: Tensor) -> HessianSpectra:
    """Return the spectra of the features' Gram matrices, and of the raw inputs'."""
    identity = torch.eye(tasks.inputs.dimension, dtype=theta.dtype)
    raw, seen = tasks.inputs, tasks.problem
    return HessianSpectra(
        pretrain_before=hessian_spectrum(identity, raw.pretrain.factor),
        pretrain_after=hessian_spectrum(theta, seen.pretrain.factor),
        harmful_before=hessian_spectrum(identity, raw.harmful.factor),
        harmful_after=hessian_spectrum(theta, seen.harmful.factor),
        dimension_before=raw.dimension,
        dimension_after=theta.shape[1],
    )


def _rows(task: LinearTask) -> int:
    """Return the number of rows of a task."""
    return 0 if task.features is None else len(task.features)
