"""Where in a net immunization is possible: an audit of every block's pooled features, from one pass a task.

Behind a block with D pooled features a linear extractor θ has D² parameters; what any such θ can do follows
from the two covariances `K = XᵀX` of the block alone. Hooks on all blocks sum both while the batches pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from condnum.arrays import own_state
from condnum.data.files import MAX_FEATURES
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.hooks import channels_last, layout_of
from condnum.deep.image_sets import images_of
from condnum.deep.parts import block_names
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.numbers import number
from condnum.studies.frame import several
from condnum.theory.alignment import alignment
from condnum.theory.kappa import PUBLISHED_RIDGE, Seen, both_conventions, unit_scale
from condnum.theory.limits import (
    FeasibleRegion,
    limit_of,
    pareto_candidates,
    ridge_convention_limit,
    ridge_limits,
)
from condnum.theory.task import Task

#: All blocks that the rule of `block_names` finds.
ALL = "all"
#: RIR from which on a layer counts as one that can be immunized.
RIR_TARGET = 10.0


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """What linear extractors can do behind each layer, in the order in which the layers are run."""

    table: pd.DataFrame  # a row per layer, with `_COLUMNS`
    target: float  # RIR in the ridge convention
    epsilon: float  # of the ridge convention
    rows_benign: int
    rows_harmful: int
    #: layer -> the best closed form on the Pareto front `(D, D)`, ‖θ‖_F = √D, for `insert_extractor`.
    thetas: Mapping[str, Tensor] = field(default_factory=dict)
    #: layer -> pooled features of D_P and D_H, `(N, D)` each, on the CPU.
    features: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def cheapest(self) -> str | None:
        """The layer with the fewest parameters D², the first of equals, that reaches the target."""
        reached = self.table[self.table["verdict"] == "reached"]
        return None if reached.empty else str(reached.loc[reached["parameters"].idxmin(), "layer"])

    @property
    def sentence(self) -> str:
        """Name the cheapest layer to immunize, or say that none is known to reach the target."""
        at, goal = self.cheapest, f"a ridge RIR of {number(self.target)} with (i) > 1 and (ii) ≤ 1"
        if at is None:
            return f"No layer is known to reach {goal} behind it."
        row = self.table.set_index("layer").loc[at]
        return (
            f"The cheapest layer to immunize is {at}: a linear extractor of {row['dimension']:,d} × "
            f"{row['dimension']:,d} parameters behind it has a ridge RIR of {number(row['rir'])} "
            f"(target {number(self.target)})."
        )


@own_state()
def layer_audit(
    model: nn.Module,
    benign: Iterable[Any],
    harmful: Iterable[Any],
    layers: str | Sequence[str] = ALL,
    *,
    epsilon: float = PUBLISHED_RIDGE,
    target: float = RIR_TARGET,
    keep_features: bool = True,
) -> LayerAudit:
    """Audit the pooled features behind each layer of a net, in one pass over the batches of each task.

    The net runs in evaluation mode, where it is, without gradients, and is left as it was. A map
    `(B, C, h, w)` or `(B, h, w, C)` is averaged over positions, `(B, tokens, F)` over tokens.

    Args:
        model: Any net.
        benign: Batches of D_P: tensors, tuples that begin with one, or dictionaries with `pixel_values` or
            `image`.
        harmful: Batches of D_H.
        layers: Names as in `model.named_modules()`; `all` are the blocks of the net.
        epsilon: ε of the ridge convention.
        target: RIR in the ridge convention from which on a layer can be immunized.
        keep_features: Keep the pooled features as well.

    Returns:
        A table with a row per layer, θ of each layer for `insert_extractor`, and the features.

    Raises:
        InvalidInputError: A layer without pooled features, or one that is not run once per forward pass.
        UnknownNameError: Unknown layer.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> tasks = [[torch.randn(50, 4, generator=generator)] for _ in range(2)]
        >>> found = layer_audit(net, *tasks, "0")
        >>> found.thetas["0"].shape, found.features["0"][1].shape
        (torch.Size([4, 4]), torch.Size([50, 4]))
    """
    if not (1 < target < math.inf):
        raise InvalidInputError(f"target must be a RIR above 1, got {target}.")
    net: nn.Module = model.model if isinstance(model, Backbone) else model
    for name, batches in (("benign", benign), ("harmful", harmful)):
        if isinstance(batches, Tensor):
            raise InvalidInputError(
                f"{name} is one tensor of shape {tuple(batches.shape)}; give a list of batches, such as "
                f"[{name}]."
            )
    names = layer_names(net, layers)
    P, H = (
        _sums(net, batches, names, task, skip_idle=layers == ALL, keep=keep_features)
        for batches, task in ((benign, "D_P"), (harmful, "D_H"))
    )
    rows, thetas, features = [], dict[str, Tensor](), dict[str, tuple[Tensor, Tensor]]()
    for name in (name for name in P if name in H):
        row, theta = _row(name, P[name], H[name], epsilon, target)
        rows.append({"layer": name, "module": type(net.get_submodule(name)).__name__} | row)
        if theta is not None:
            thetas[name] = theta
        if keep_features:
            features[name] = torch.cat(P[name].features), torch.cat(H[name].features)
    N_P, N_H = (next(iter(sums.values())).rows for sums in (P, H))
    return LayerAudit(pd.DataFrame(rows, columns=_COLUMNS), target, epsilon, N_P, N_H, thetas, features)


def layer_names(model: nn.Module, layers: str | Sequence[str] = ALL) -> list[str]:
    """Return the names of the layers that are meant, or say which there are."""
    blocks = block_names(model)
    if layers == ALL:
        if not blocks:
            raise InvalidInputError(
                f"{type(model).__name__} has no blocks with weights; give the names of the layers."
            )
        return blocks
    chosen, known = several(str)("layers", layers), dict(model.named_modules())
    if not chosen:
        raise InvalidInputError(f"expected at least one layer; give {ALL}, or some of {', '.join(blocks)}.")
    for name in chosen:
        if name not in known:
            raise UnknownNameError("layer", name, [ALL, *blocks])
    return list(chosen)


@dataclass
class _Sum:
    """What is kept of a layer and a task."""

    name: str  # of both, for messages
    task: Task | None = None
    rows: int = 0
    waiting: list[Tensor] = field(default_factory=list)  # rows that are not in the task yet
    features: list[Tensor] = field(default_factory=list)

    def add(self, X: Tensor) -> None:
        """Take rows; enough of them at once cost least."""
        self.rows += len(X)
        self.waiting.append(X)
        if sum(map(len, self.waiting)) > X.shape[1]:
            self.finish()

    def finish(self) -> Task:
        """Return the task of all rows."""
        if self.waiting:
            X = torch.cat(self.waiting).cpu()
            of = Task.of if self.task is None else self.task.extended
            self.waiting, self.task = [], of(X, name=self.name)
        assert self.task is not None  # there are rows
        return self.task


def _sums(
    net: nn.Module, batches: Iterable[Any], names: Sequence[str], task: str, *, skip_idle: bool, keep: bool
) -> dict[str, _Sum]:
    """Sum the covariances of all layers over one pass, but of those that the rule found and nobody calls."""
    found: dict[str, _Sum] = {}
    calls: Counter[str] = Counter()
    size = 0  # of the batch that passes
    home = next((p.device for p in net.parameters()), torch.device("cpu"))

    def add(name: str, module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, tuple | list) and len(output):  # as layers of transformers return it
            output = output[0]
        calls[name] += 1
        where = f"layer '{name}' ({type(module).__name__})"
        X = _pooled(output, layout_of(module, net))
        if not isinstance(X, Tensor) or X.ndim != 2 or len(X) != size or not X.is_floating_point():
            raise InvalidInputError(
                f"{where} returns {_shape(output)} for {size} inputs, pooled to {_shape(X)}; features "
                "are (B, F), (B, tokens, F) or (B, C, h, w), or "
                "a tuple that begins with them: name other layers."
            )
        D = X.shape[1]
        if D > MAX_FEATURES:
            raise InvalidInputError(f"{where} has {D:,d} features, more than {MAX_FEATURES}; pool them.")
        own = found.setdefault(name, _Sum(f"{task} behind '{name}'"))
        own.add(X)
        if keep:
            own.features.append(X.cpu())

    with ExitStack() as hooks, evaluating(net), torch.inference_mode():
        for name in names:
            hooks.enter_context(net.get_submodule(name).register_forward_hook(partial(add, name)))
        for batch in batches:
            calls.clear()
            inputs = images_of(batch)
            if not isinstance(inputs, Tensor) or inputs.ndim == 0 or not len(inputs):
                raise InvalidInputError(
                    f"a batch is {_shape(inputs)}; give a tensor with rows, a tuple that begins with one, or "
                    "a dictionary with pixel_values or image."
                )
            size = len(inputs)
            net(inputs.to(home))
            for name in names:
                if calls[name] > 1 or (calls[name] == 0 and not skip_idle):
                    often = f"{calls[name]} times" if calls[name] else "never"
                    raise InvalidInputError(
                        f"layer '{name}' is called {often} in a forward "
                        "pass, and not once: name layers that are."
                    )
    if not found:
        raise InvalidInputError(f"{task} has no batches, or no batch reaches a layer.")
    return found


def _pooled(X: Any, layout: str) -> Any:
    """Average over positions or tokens; what cannot be pooled comes back as it is."""
    if not isinstance(X, Tensor) or not X.is_floating_point() or X.ndim not in (3, 4):
        return X
    places = (1,) if X.ndim == 3 else (1, 2) if channels_last(X, layout) else (2, 3)
    return X.mean(dim=places, dtype=torch.promote_types(X.dtype, torch.float32))


def _shape(value: Any) -> str:
    """Name what was returned."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


_COLUMNS = (
    "layer", "module",
    "dimension", "parameters",  # D and D²
    "rank_benign", "rank_harmful", "harmful_only",  # the last: null directions of K_P that D_H excites
    "kappa_benign", "kappa_harmful", "kappa_benign_ridge", "kappa_harmful_ridge",
    "misalignment",  # fraction of K_P^{-1/2}K_HK_P^{-1/2} off the diagonal in the eigenvectors of D_P
    "limit_compact",  # also the largest (i) at (ii) = 1 there
    "limit_ridge", "limit_harmful_ratio", "limit_rir",  # in the ridge convention with (ii) ≤ 1
    "harmful_ratio", "benign_ratio", "rir",  # of the best closed form
    "verdict",  # reached, open (between closed form and limit), impossible
    "note",
)  # fmt: skip


def _row(name: str, P: _Sum, H: _Sum, epsilon: float, target: float) -> tuple[dict[str, Any], Tensor | None]:
    """Measure one layer; return also its extractor."""
    tasks = P.finish(), H.finish()
    D = tasks[0].dimension
    row = {"dimension": D, "parameters": D**2, "verdict": "impossible", "note": ""}
    try:
        for task, found in zip(("D_P", "D_H"), tasks, strict=True):
            if not bool(found.products[0].any()):
                raise RankError(f"{task} behind '{name}' is all zero: its covariance has rank 0.")
        row |= {"rank_benign": tasks[0].rank, "rank_harmful": tasks[1].rank}
        measured, theta = _measures(*tasks, epsilon, target)
        return row | measured, theta
    except RankError as error:  # a dead layer: the others are measured
        return row | {"note": str(error)}, None


def _measures(P: Task, H: Task, epsilon: float, target: float) -> tuple[dict[str, Any], Tensor]:
    """Measure the two tasks of one layer, and say which θ does most there."""
    limit, limits = limit_of(P, H), ridge_limits(P, H, ridge=epsilon)
    region = FeasibleRegion.of(P, H, limit)
    excluded, tried = not limits.rir >= target, []
    for ratio in (1.0, 1 / 3, 1 / target):  # to the (ii) at which (i) > 1 is the target
        for theta in map(unit_scale, pareto_candidates(P, H, region, ratio)):
            compact, ridged = both_conventions(Seen.of(theta, P, H, (None, None)), ridge=epsilon)
            tried.append((ridged, theta))
    best, theta = max(
        (own for own in tried if own[0].success), key=lambda own: own[0].rir, default=(None, tried[0][1])
    )
    reached = best is not None and best.rir >= target
    row = {
        "harmful_only": limit.harmful_only_dimension,
        "kappa_benign": compact.benign_before.value,
        "kappa_harmful": compact.harmful_before.value,
        "kappa_benign_ridge": ridged.benign_before.value,
        "kappa_harmful_ridge": ridged.harmful_before.value,
        "misalignment": alignment(P.whitener, H).misalignment,
        "limit_compact": limit.value,
        "limit_ridge": ridge_convention_limit(P, H, ridge=epsilon),
        "limit_harmful_ratio": limits.harmful_ratio,
        "limit_rir": limits.rir,
        "verdict": "impossible" if excluded else "reached" if reached else "open",
        "harmful_ratio": math.nan if best is None else best.harmful_ratio,
        "benign_ratio": math.nan if best is None else best.benign_ratio,
        "rir": math.nan if best is None else best.rir,
    }
    return row, theta
