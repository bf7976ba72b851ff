r"""Softmax regression by gradient descent, for a whole grid of learning rates at once.

.. math:: L(W) = -\frac1N \sum_n \log \mathrm{softmax}(W^\top x_n + b)_{y_n}, \qquad
   \lambda_{\max}(\nabla^2 L) \le \tfrac12\, \lambda_{\max}(\tfrac1N \bar X^\top \bar X)

with :math:`\bar X = [X, 1]` (Böhning 1992, Ann. Inst. Stat. Math. 44, 197–200). All rates see the same
batches and share one matrix product: their weights lie side by side, `(D, rates·C)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Optimizer = Literal["gd", "sgd"]

#: Logits held at a time (rows × rates × classes), 64 MiB as float32.
_LOGITS = 1 << 24


@dataclass(frozen=True, eq=False)
class DescentCurves:
    """Loss and accuracy after each epoch; row 0 is the start. NaN from where a rate diverges."""

    train_loss: NDArray[np.float64]  # (epochs + 1, rates) mean cross-entropy
    accuracies: NDArray[np.float64]  # (epochs + 1, sets, rates) of each evaluation set
    losses: NDArray[np.float64]  # (epochs + 1, sets, rates)


def smoothness(X: Tensor) -> float:
    """Return Böhning's bound on the curvature of the loss, `½·λ_max(X̄ᵀX̄/N)` with a bias column.

    Examples:
        >>> smoothness(torch.tensor([[1.0], [-1.0]]))
        0.5
    """
    extended = torch.cat([X.double(), X.new_ones(len(X), 1).double()], dim=1)
    N, D = extended.shape
    gram = extended @ extended.mT if N < D else extended.mT @ extended
    return 0.5 * float(torch.linalg.eigvalsh(gram)[-1]) / N


def descend(
    X: Tensor,
    y: Tensor,
    classes: int,
    learning_rates: Tensor,
    evaluation: list[tuple[Tensor, Tensor]],
    *,
    epochs: int,
    optimizer: Optimizer,
    batch_size: int,
    seed: int,
) -> DescentCurves:
    """Fit a softmax regression from zero weights at each learning rate."""
    rates = len(learning_rates)
    step = learning_rates.to(X).repeat_interleave(classes)
    W, b = X.new_zeros(X.shape[1], rates * classes), X.new_zeros(rates * classes)
    generator = torch.Generator().manual_seed(seed)
    records = [_record(W, b, [(X, y), *evaluation], classes)]
    for _ in range(epochs):
        if optimizer == "gd":
            batches: tuple[Tensor | None, ...] = (None,)
        else:
            batches = torch.randperm(len(X), generator=generator).to(X.device).split(batch_size)
        for batch in batches:
            rows, labels = (X, y) if batch is None else (X[batch], y[batch])
            G_W, g_b = _gradient(W, b, rows, labels, classes)
            W -= step * G_W
            b -= step * g_b
        records.append(_record(W, b, [(X, y), *evaluation], classes))
    accuracies, losses = (np.stack([record[k] for record in records]) for k in (0, 1))
    return DescentCurves(losses[:, 0], accuracies[:, 1:], losses[:, 1:])


def _chunks(X: Tensor, y: Tensor, outputs: int) -> list[tuple[Tensor, Tensor]]:
    """Return the rows in parts whose logits fit into memory."""
    size = max(1, _LOGITS // outputs)
    return list(zip(X.split(size), y.split(size), strict=True))


def _gradient(W: Tensor, b: Tensor, X: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of the mean loss, of all rates."""
    G_W, g_b = torch.zeros_like(W), torch.zeros_like(b)
    for rows, labels in _chunks(X, y, W.shape[1]):
        residual = torch.softmax(torch.addmm(b, rows, W).view(len(rows), -1, classes), dim=-1)
        residual[torch.arange(len(rows), device=X.device), :, labels] -= 1
        flat = residual.view(len(rows), -1)
        G_W += rows.mT @ flat
        g_b += flat.sum(dim=0)
    return G_W / len(X), g_b / len(X)


def _record(
    W: Tensor, b: Tensor, sets: list[tuple[Tensor, Tensor]], classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return accuracy and mean loss of each set and rate, `(sets, rates)`; NaN where weights overflow."""
    alive = (torch.isfinite(W).all(dim=0) & torch.isfinite(b)).view(-1, classes).all(dim=1)
    found = []
    for X, y in sets:
        correct, loss = torch.zeros(2, len(alive), dtype=torch.float64, device=X.device)
        for rows, labels in _chunks(X, y, W.shape[1]):
            log_p = torch.log_softmax(torch.addmm(b, rows, W).view(len(rows), -1, classes), dim=-1)
            correct += (log_p.argmax(dim=-1) == labels[:, None]).sum(dim=0)
            loss -= log_p[torch.arange(len(rows), device=X.device), :, labels].sum(dim=0, dtype=torch.float64)
        values = torch.stack([correct, loss]) / len(X)
        found.append(torch.where(alive & torch.isfinite(loss), values, torch.nan).cpu().numpy())
    stacked = np.stack(found)
    return stacked[:, 0], stacked[:, 1]
