"""Evaluation of a batch on its full problems: what the histories record, as `condnum.methods.monitor`."""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.methods.batched.tasks import ProblemBatch, TaskBatch


def measure(problems: ProblemBatch, theta: Tensor, omega: Tensor | None) -> dict[str, list[float]]:
    """Return loss, both regularizers and both compact κ's over rank(K), of each problem."""
    sigma_P, sigma_H = (_spectra(tasks, theta) for tasks in (problems.pretrain, problems.harmful))
    mean_square = (sigma_H**2).sum(dim=1) / problems.harmful.ranks.cpu()
    spread = (mean_square - _smallest(problems.harmful, sigma_H) ** 2) / 2
    loss = torch.full_like(spread, torch.nan)
    if problems.pretrain.loss is not None and omega is not None:
        loss = problems.pretrain.loss.value(theta @ omega)
    columns = {
        "loss": loss,
        "r_well": (sigma_P[:, 0] ** 2 - (sigma_P**2).sum(dim=1) / theta.shape[2]) / 2,
        "r_ill": torch.where(spread > 0, 1 / spread, torch.inf),
        "kappa_pretrain": _kappa(problems.pretrain, sigma_P),
        "kappa_harmful": _kappa(problems.harmful, sigma_H),
    }
    return {name: column.tolist() for name, column in columns.items()}


def _spectra(tasks: TaskBatch, theta: Tensor) -> Tensor:
    """Return the spectra of H(θ), zeros behind rank(K), on the host `(b, n)`.

    cuSOLVER batches singular value decompositions up to 32×32: larger ones are the host's.
    """
    F = (tasks.factor @ theta).cpu()
    finite = torch.isfinite(torch.linalg.vector_norm(F, ord=torch.inf, dim=(1, 2)))
    sigma = torch.linalg.svdvals(torch.where(finite[:, None, None], F, 0.0)) ** 2
    return torch.where(finite[:, None], sigma, torch.inf)


def _smallest(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ_k of each spectrum, the last one before the zeros of the padding."""
    return sigma.gather(1, (tasks.ranks.cpu() - 1)[:, None]).squeeze(1)


def _kappa(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ₁/σ_k, infinite where σ_k is exactly zero or the features overflow."""
    smallest = _smallest(tasks, sigma)
    usable = torch.isfinite(sigma).all(dim=1) & (smallest > 0)
    return torch.where(usable, sigma[:, 0] / smallest, torch.inf)
