"""Many problems side by side, as stacked tensors, and what the history records of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from condnum.methods.problem import SMALL, ImmunizationProblem, LinearTask, SupervisedLoss


def _side_by_side(values: Sequence[Any], device: torch.device) -> Tensor:
    """Stack matrices, zeros below the shorter ones, or numbers as `(b, 1, 1)`."""
    if not isinstance(values[0], Tensor):
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None, None]
    return pad_sequence(list(values), batch_first=True).to(device)


@dataclass(frozen=True)
class TaskBatch:
    """One task of each problem, as stacked tensors that are made when they are first asked for."""

    tasks: Sequence[LinearTask]
    device: torch.device

    @cached_property
    def factor(self) -> Tensor:
        """`B` with `BᵀB = K` of each task, below which zeros make r = max rank; `(b, r, D)`."""
        return _side_by_side([task.factor for task in self.tasks], self.device)

    @cached_property
    def ranks(self) -> Tensor:
        """Number of rows of each B that are not padding, all of them independent; `(b,)`."""
        return torch.tensor([task.rank for task in self.tasks], device=self.device)

    @cached_property
    def small_covariance(self) -> Tensor | None:
        """K of a single task of at most `SMALL` dimensions, whose Hessian is formed and decomposed whole."""
        K = self.tasks[0].covariance
        return K.to(self.device) if len(self.tasks) == 1 and len(K) <= SMALL else None

    @cached_property
    def loss(self) -> SupervisedLoss | None:
        """The supervised losses of all tasks, or None for tasks without."""
        losses = [task.supervised for task in self.tasks]
        if losses[0] is None:
            return None
        columns = {
            field.name: _side_by_side([getattr(loss, field.name) for loss in losses], self.device)
            for field in fields(losses[0])
        }
        return type(losses[0])(**columns)


@dataclass(frozen=True)
class ProblemBatch:
    """The pairs (D_P, D_H) of many problems of one dimension."""

    pretrain: TaskBatch
    harmful: TaskBatch

    @classmethod
    def of(cls, problems: Sequence[ImmunizationProblem], device: torch.device) -> Self:
        """Put problems side by side on a device."""
        return cls(
            TaskBatch([problem.pretrain for problem in problems], device),
            TaskBatch([problem.harmful for problem in problems], device),
        )


def measure(problems: ProblemBatch, theta: Tensor, omega: Tensor | None) -> dict[str, list[float]]:
    """Return what histories record: loss, both regularizers, and compact κ's over rank(K), so continuous."""
    spectra, smallest, kappa = {}, {}, {}
    for name, tasks in (("pretrain", problems.pretrain), ("harmful", problems.harmful)):
        # cuSOLVER batches singular value decompositions up to 32×32: larger ones are the host's.
        F = (tasks.factor @ theta).cpu()
        finite = torch.isfinite(torch.linalg.vector_norm(F, ord=torch.inf, dim=(1, 2)))
        sigma = torch.linalg.svdvals(torch.where(finite[:, None, None], F, 0.0)).square()
        spectra[name] = sigma = torch.where(finite[:, None], sigma, torch.inf)
        k = tasks.ranks.cpu().clamp_max(sigma.shape[1])  # zeros of the padding follow
        smallest[name] = sigma.gather(1, (k - 1)[:, None]).squeeze(1)
        usable = torch.isfinite(sigma).all(dim=1) & (smallest[name] > 0)
        kappa[name] = torch.where(usable, sigma[:, 0] / smallest[name], torch.inf)
    P, H = spectra["pretrain"], spectra["harmful"]
    spread = (H.square().sum(dim=1) / k - smallest["harmful"].square()) / 2
    loss = torch.full_like(spread, torch.nan)
    if problems.pretrain.loss is not None and omega is not None:
        loss = problems.pretrain.loss.value(theta @ omega)
    columns = {
        "loss": loss,
        "r_well": (P[:, 0].square() - P.square().sum(dim=1) / theta.shape[2]) / 2,
        "r_ill": torch.where(spread > 0, 1 / spread, torch.inf),
        "kappa_pretrain": kappa["pretrain"],
        "kappa_harmful": kappa["harmful"],
    }
    return {name: column.tolist() for name, column in columns.items()}
