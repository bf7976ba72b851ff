"""The generalized Gauss-Newton matrix of a loss in some parameters, as an operator of curvlinops."""

import warnings
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.backbone import evaluating
from condnum.errors import InvalidInputError, RankError, check_known, require

Loss = Literal["cross_entropy", "squared"]
#: Batches `(inputs, labels)`, the same at every pass: a list, or a loader without augmentation.
Data: TypeAlias = Iterable[tuple[Tensor, Tensor]]

#: Values of a layer, times directions, that one product holds at a time: 256 MiB as float32.
_VALUES = 1 << 26

FLAT = "the loss does not curve in these parameters: no output depends on them."


class _HalfSquares(nn.Module):
    """Half the squared distance from the targets, mean over rows."""

    reduction = "mean"  # curvlinops asks for it

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum() / (2 * len(outputs))


@contextmanager
def ggn_operator(model: nn.Module, parameters: Iterable[Tensor], data: Data, loss: Loss) -> Generator[Any]:
    """Yield the GGN as an operator of curvlinops; in the block the model evaluates and only these learn.

    Beside its own members it has `rows` N, `outputs` C, `gradient`, and how many `columns` it may multiply
    at a time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of what curvlinops imports
        operator = require("curvlinops", "deep").GGNLinearOperator
    check_known("loss", loss, get_args(Loss))
    chosen, own = list(parameters), {id(p) for p in model.parameters()}
    foreign = [f"{place} ({tuple(p.shape)})" for place, p in enumerate(chosen) if id(p) not in own]
    if not chosen or foreign or len({id(p) for p in chosen}) < len(chosen):
        wrong = f"of which number {foreign[0]} is none of the model's" if foreign else "each must occur once"
        raise InvalidInputError(
            f"{len(chosen)} parameters are given, {wrong}: pass tensors of model.parameters(), once each and "
            "taken after every parametrization."
        )
    objective = nn.CrossEntropyLoss() if loss == "cross_entropy" else _HalfSquares()

    def gradient() -> Tensor:
        total = torch.zeros(G.shape[0], dtype=G.dtype, device=G.device)
        for X, y in data:
            value = objective(model(X), y) * (len(X) / G.rows)
            parts = torch.autograd.grad(value, chosen, materialize_grads=True)
            total += torch.cat([part.flatten() for part in parts])
        return total

    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        model.requires_grad_(False)
        for p in chosen:
            p.requires_grad_(True)
        with evaluating(model), sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward derivative
            rows, outputs, widest = _survey(model, data, loss)
            G = operator(model, objective, chosen, data, check_deterministic=False, num_data=rows)
            G.rows, G.outputs, G.gradient = rows, outputs, gradient
            G.columns = max(1, _VALUES // max(widest, G.shape[0]))
            yield G
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)


def _survey(model: nn.Module, data: Data, loss: Loss) -> tuple[int, int, int]:
    """Return N, C and the values of the widest layer that the parameters reach; refuse bad data.

    Two passes: data that change from one to the next have no spectrum.
    """
    widest, C, passes = 0, 0, []

    def look(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal widest
        if isinstance(output, Tensor) and output.requires_grad:
            widest = max(widest, output.numel())

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(look))
        for _ in range(2):
            rows, total = 0, torch.zeros(())
            for X, y in data:
                with torch.set_grad_enabled(not widest):  # seen once is enough
                    f = model(X)
                _check_batch(f, X, y, loss)
                rows, C, total = rows + len(X), f.shape[1], total + f.detach().double().sum(dim=0).cpu()
            passes.append((rows, total))
    (before, sums), _ = passes
    if not rows or rows != before or not torch.allclose(sums, total, rtol=1e-3, atol=1e-3 * rows):
        raise InvalidInputError(
            f"data gives {before} rows in one pass and {rows} in the next, or other ones: pass a list or "
            "a loader that is not empty and neither augments nor drops rows, not a generator."
        )
    if not widest:
        raise RankError(FLAT)
    return rows, C, widest


def _check_batch(f: Any, X: Tensor, y: Tensor, loss: Loss) -> None:
    """Refuse outputs and labels that the loss cannot take."""
    if not isinstance(f, Tensor) or f.ndim != 2 or len(f) != len(X):
        got = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
        raise InvalidInputError(f"the model must return (B, C) for inputs {tuple(X.shape)}, got {got}.")
    if not bool(torch.isfinite(f).all()):
        raise InvalidInputError("the model's outputs are not finite; check its weights and the inputs.")
    if loss == "squared":
        fine, wanted = y.shape == f.shape and bool(torch.isfinite(y).all()), "finite targets (B, C)"
    else:
        rows = y.shape == (len(X),) and not y.is_floating_point()
        fine = rows and bool(((y >= 0) & (y < f.shape[1])).all())
        wanted = f"(B,) integers from 0 to {f.shape[1] - 1}"
    if not fine:
        raise InvalidInputError(
            f"labels {tuple(y.shape)}, {y.dtype}, do not fit outputs {tuple(f.shape)}: give {wanted}."
        )
