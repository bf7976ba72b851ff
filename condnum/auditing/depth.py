"""The audit along the depth of a net: where immunization is possible, and an extractor put there.

Behind a block with D pooled features a linear extractor θ has D² parameters; what any such θ can do follows
from the two covariances `K = XᵀX` of the block alone. Hooks on all blocks sum both while the batches pass.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from condnum.arrays import as_tensor, extractor_affine, own_state
from condnum.data.files import MAX_FEATURES
from condnum.data.images import images_of
from condnum.deep.net import (
    ALL,
    Backbone,
    block_names,
    channels_last,
    check_plain,
    copied,
    evaluating,
    first_tensor,
    layout_of,
)
from condnum.errors import InvalidInputError, RankError, check_known
from condnum.numbers import number
from condnum.page.look import BLUE, NEUTRAL, ORANGE, PURPLE, log_axis
from condnum.page.style import empty, finish
from condnum.progress import report_event
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

#: RIR from which on a layer counts as one that can be immunized.
RIR_TARGET = 10.0


@dataclass(frozen=True, eq=False)
class LayerAudit:
    """What linear extractors can do behind each layer, in the order in which they are run."""

    table: pd.DataFrame  # a row per layer, with `_COLUMNS`
    target: float  # RIR in the ridge convention
    epsilon: float  # of the ridge convention
    rows_benign: int
    rows_harmful: int
    #: layer -> the best closed form on the Pareto front `(D, D)`, ‖θ‖_F = √D, for `insert_extractor`.
    thetas: Mapping[str, Tensor] = field(default_factory=dict)
    #: layer -> pooled features of D_P and D_H, `(N, D)` each, on the CPU.
    features: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    idle: tuple[str, ...] = ()  # blocks of the net that no batch reaches

    @property
    def cheapest(self) -> str | None:
        """The layer with the fewest parameters D², the first of equals, that reaches the target."""
        reached = self.table[self.table["verdict"] == "reached"]
        return None if reached.empty else str(reached.loc[reached["parameters"].idxmin(), "layer"])

    @property
    def sentence(self) -> str:
        """Name the cheapest layer to immunize, or say that none is known to reach the target."""
        at, goal = self.cheapest, f"a ridge RIR of {number(self.target)} with (i) > 1 and (ii) ≤ 1"
        idle = f" Never called: {', '.join(self.idle)}." if self.idle else ""
        if at is None:
            return f"No layer is known to reach {goal} behind it.{idle}"
        row = self.table.set_index("layer").loc[at]
        return (
            f"The cheapest layer to immunize is {at}: a linear extractor of {row['dimension']:,d} × "
            f"{row['dimension']:,d} parameters behind it has a ridge RIR of {number(row['rir'])} "
            f"(target {number(self.target)}).{idle}"
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
    net, head = (model.model, model.head_name) if isinstance(model, Backbone) else (model, "")
    check_plain(net)
    for name, batches in (("benign", benign), ("harmful", harmful)):
        if isinstance(batches, Tensor):
            raise InvalidInputError(
                f"{name} is one tensor of shape {tuple(batches.shape)}; give a list of batches, such as "
                f"[{name}]."
            )
    known = [name for name, _ in net.named_modules() if name]
    given = layers.split(",") if isinstance(layers, str) else layers
    names = block_names(net, head) if layers == ALL else [name.strip() for name in given if name.strip()]
    if not names:
        raise InvalidInputError(f"no layers: give names of {type(net).__name__}, such as {known[:3]}.")
    for name in names:
        check_known("layer", name, [*known, ALL])
    (P, X_P), (H, X_H) = (
        _tasks(net, batches, names, which, skip_idle=layers == ALL, keep=keep_features)
        for batches, which in ((benign, "D_P"), (harmful, "D_H"))
    )
    rows, thetas = list[dict[str, Any]](), dict[str, Tensor]()
    for name in (name for name in P if name in H):
        row: dict[str, Any] = {"layer": name, "module": type(net.get_submodule(name)).__name__, "note": ""}
        row |= {"dimension": P[name].dimension, "parameters": P[name].dimension ** 2}
        try:
            measured, thetas[name] = _measures(P[name], H[name], epsilon, target)
        except RankError as error:  # a dead layer: the others are measured
            measured = {"verdict": "impossible", "note": f"behind '{name}': {error}"}
        rows.append(row | measured)
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    features = {name: (X_P[name], X_H[name]) for name in table["layer"] if name in X_P}
    N_P, N_H = (next(iter(tasks.values())).rows for tasks in (P, H))
    idle = tuple(name for name in names if name not in P or name not in H)
    return LayerAudit(table, target, epsilon, N_P, N_H, thetas, features, idle)


def _tasks(
    net: nn.Module, batches: Iterable[Any], names: Sequence[str], which: str, *, skip_idle: bool, keep: bool
) -> tuple[dict[str, Task], dict[str, Tensor]]:
    """Return the tasks behind all layers after one pass, and their rows where they are kept.

    Layers that the rule found and nobody calls are left out.
    """
    tasks, waiting, kept = dict[str, Task](), dict[str, list[Tensor]](), dict[str, list[Tensor]]()
    calls, order, size = Counter[str](), dict[str, None](), 0  # layers as they are run; rows of the batch
    seen, home = 0, next((p.device for p in net.parameters()), torch.device("cpu"))

    def take(name: str) -> None:
        X = torch.cat(waiting.pop(name)).cpu()
        of = tasks[name].extended if name in tasks else Task.of
        tasks[name] = of(X, name=f"{which} behind '{name}'")

    def add(name: str, module: nn.Module, _: Any, output: Any) -> None:
        calls[name] += 1
        order[name] = None
        X = first_tensor(output)
        if X is None or len(X) != size:
            raise InvalidInputError(
                f"layer '{name}' ({type(module).__name__}) returns {_shape(output)} for {size} inputs; "
                "features are (B, F), (B, tokens, F) or (B, C, h, w), or a tuple that begins with them: name "
                "other layers."
            )
        X = _pooled(X, layout_of(module, net))
        if X.shape[1] > MAX_FEATURES:
            raise InvalidInputError(
                f"layer '{name}' has {X.shape[1]:,d} features, more than {MAX_FEATURES}; pool them."
            )
        waiting.setdefault(name, []).append(X)
        if keep:
            kept.setdefault(name, []).append(X.cpu())
        if sum(map(len, waiting[name])) > X.shape[1]:  # enough of them at once cost least
            take(name)

    with ExitStack() as hooks, evaluating(net), torch.no_grad():  # a net may keep what it computes
        for name in names:
            hooks.enter_context(net.get_submodule(name).register_forward_hook(partial(add, name)))
        for batch in batches:
            calls.clear()
            inputs = _inputs(batch)
            size = len(inputs)
            net(inputs.to(home, copy=True))  # it may write into them
            seen += size
            report_event(stage=f"layers, {which}", step=seen)
            for name in names:
                if calls[name] > 1 or (calls[name] == 0 and not skip_idle):
                    often = f"{calls[name]} times" if calls[name] else "never"
                    raise InvalidInputError(
                        f"layer '{name}' is called {often} in a forward pass, and not once: name layers "
                        "that are."
                    )
    for name in [*waiting]:
        take(name)
    if not tasks:
        raise InvalidInputError(f"{which} has no batches, or no batch reaches a layer.")
    return {name: tasks[name] for name in order}, {name: torch.cat(rows) for name, rows in kept.items()}


def _inputs(batch: Any) -> Tensor:
    """Return what a net is given of a batch."""
    found = images_of(batch)
    if not isinstance(found, Tensor) or found.ndim == 0 or not len(found):
        raise InvalidInputError(
            f"a batch is {_shape(found)}; give a tensor with rows, a tuple that begins with one, or a "
            "dictionary with pixel_values or image."
        )
    return found


def _pooled(X: Tensor, layout: str) -> Tensor:
    """Average over positions or tokens, and copy: an in-place ReLU may write into the output."""
    if X.ndim == 2:
        return X.clone()
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
        "rank_benign": P.rank,
        "rank_harmful": H.rank,
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
        **{name: getattr(best, name, math.nan) for name in ("harmful_ratio", "benign_ratio", "rir")},
    }
    return row, theta


class _Extracting(nn.Module):
    """A layer followed by a linear extractor of D features; its other attributes are those of the layer."""

    def __init__(self, layer: nn.Module, extractor: nn.Module, D: int, name: str, layout: str) -> None:
        super().__init__()
        self.layer, self.extractor, self.D, self.name, self.layout = layer, extractor, D, name, layout

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the layer, for nets that look into their parts."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):  # `__deepcopy__` would copy the layer alone
                raise
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the layer and extract from what it returns, or from the first entry of that."""
        output = self.layer(*inputs, **options)
        D, found = self.D, first_tensor(output)
        axis = 1 if found is not None and found.ndim == 4 and not channels_last(found, self.layout) else -1
        if found is None or found.shape[axis] != D:
            raise InvalidInputError(
                f"layer '{self.name}' returns {_shape(output)}, and theta is {D} × {D}: it must have as many "
                "rows as the layer has channels (of maps), or features in the last dimension."
            )
        made = self.extractor(found.movedim(axis, -1)).movedim(-1, axis)
        return made if found is output else type(output)([made, *output[1:]])


@own_state()
def insert_extractor(model: nn.Module, layer: str, theta: Any, images: Any) -> nn.Module:
    """Return a copy of a net with a linear or affine extractor behind one of its layers.

    Features of the layer become `features · θ`, plus the bias of θ where it has one: along the channels of
    maps `(B, C, h, w)` or `(B, h, w, C)`, and along the last dimension of `(B, F)` and `(B, tokens, F)`. θ
    and its bias are parameters of the new net; an `Eraser` stays two layers with a bottleneck. Averaging over
    positions or tokens commutes with both, so pooled features are multiplied as in `layer_audit`.

    Args:
        model: Any net, which stays as it is; of a `Backbone` its `model`.
        layer: Name of the layer, as in `model.named_modules()`.
        theta: `(D, D)` extractor: an array, a linear module, an `Immunizer` or an `Eraser`.
        images: A batch, as those of `layer_audit`, on which the extractor is seen to take part.

    Returns:
        The copy, in the same mode, on the same device.

    Raises:
        UnknownNameError: The net has no such layer.
        InvalidInputError: θ is not square, the layer has not D features, or the net does not call it once: in
            training, in evaluation, and there without gradients too.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 2))
        >>> images = torch.ones(5, 3, 2, 2)
        >>> torch.equal(insert_extractor(net, "0", torch.eye(4), images)(images), net(images))
        True
    """
    made = copied(model.model if isinstance(model, Backbone) else model)
    check_known("layer", layer, [name for name, _ in made.named_modules() if name])
    T = as_tensor(extractor_affine(theta)[0], "theta", ndim=2).detach()
    if T.shape[0] != T.shape[1]:
        raise InvalidInputError(
            f"theta is {tuple(T.shape)}; behind a layer it must be square, as the layers that follow take as "
            "many features as before."
        )
    old = made.get_submodule(layer)
    like = next((of for of in [*old.parameters(), *made.parameters()] if of.is_floating_point()), T)
    extractor = copy.deepcopy(theta.to_linear() if hasattr(theta, "to_linear") else theta)
    if not isinstance(extractor, nn.Module):
        extractor = nn.Linear(len(T), len(T), bias=False, device="meta")  # draws nothing
        extractor.weight = nn.Parameter(T.mT.clone())
    new = _Extracting(old, extractor.to(like), len(T), layer, layout_of(old, made)).train(old.training)
    made.set_submodule(layer, new)
    _check_called(copied(made), layer, _inputs(images).to(like.device))
    return made


def _check_called(net: nn.Module, layer: str, images: Tensor) -> None:
    """Run a throw-away net in each mode, on two rows for BatchNorm; refuse a layer not called once."""
    new, calls = net.get_submodule(layer), Counter[str]()

    def counted(name: str, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        calls[name] += 1
        return forward(*given, **named)

    for name, part in (("extractor", new), ("layer", new.get_submodule("layer"))):  # maybe twice in the net
        # a hook would keep a transformer layer from its fast path
        part.forward = partial(counted, name, part.forward)
    rows, devices = torch.cat([images, images])[:2], [images.device] if images.is_cuda else []
    modes = {
        "training": (True, True), "evaluation": (False, True), "evaluation without gradients": (False, False)
    }  # fmt: skip
    for mode, (training, gradients) in modes.items():
        calls.clear()
        with torch.random.fork_rng(devices), torch.set_grad_enabled(gradients):
            net.train(training)(rows)
        if calls != {"extractor": 1, "layer": 1}:
            how = f"{calls['layer']} times" if calls["layer"] else "never"
            raise InvalidInputError(
                f"layer '{layer}' is called {how} in {mode}, and not once, so an extractor behind it would "
                "not take part; name a layer that is, such as the module around it."
            )


def depth_figure(found: LayerAudit) -> Any:
    """Draw what is possible behind each layer along the depth; the table has κ's and ranks."""
    table, figure = found.table, empty()
    columns = ["limit_compact", "limit_rir", "rir"]
    known = table[columns].replace(np.inf, np.nan).to_numpy(dtype=float)
    top = 3 * float(np.nanmax([found.target, *known.ravel()]))  # where an infinite limit is drawn
    none = np.where(table["limit_rir"].isna(), 1.0, np.nan)
    for name, values, color, symbol in (
        ("compact: no invertible θ exceeds (top: ∞)", table["limit_compact"], PURPLE, "diamond-open"),
        ("ridge: no square θ exceeds", table["limit_rir"], NEUTRAL, "triangle-down"),
        ("ridge: a closed form reaches", table["rir"], BLUE, "circle"),
        ("ridge: none has (i) > 1 and (ii) ≤ 1", none, ORANGE, "x"),
    ):
        figure.add_scatter(
            x=table["layer"], y=np.minimum(values, top), mode="markers", name=name, customdata=values,
            marker={"color": color, "size": 10, "symbol": symbol},
            showlegend=not np.isnan(values).all(),
            hovertemplate="%{x}: RIR %{customdata:.3g}",
        )  # fmt: skip
    figure.add_hline(y=found.target, line_color=NEUTRAL, line_dash="dash")
    note = f"D<sub>P</sub>: {found.rows_benign:,d} rows, D<sub>H</sub>: {found.rows_harmful:,d} rows"
    note += "" if found.cheapest is None else f". Cheapest: {found.cheapest}"
    figure.update_xaxes(tickangle=-60, type="category")
    title = f"RIR of a linear extractor (dashed: {number(found.target)})"
    figure.update_yaxes(**log_axis(title, [*known.ravel(), top, 1.0]))
    finish(figure, "What a linear extractor can reach behind each layer", note, height=560, width=60)
    place = {"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"}
    return figure.update_layout(legend={**place, "title_text": ""}, margin_b=210)
