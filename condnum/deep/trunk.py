"""Where the frozen trunk ends: run it once, and train from its activations.

One forward pass tells which modules follow it; they are a chain if they give the same features by themselves.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import InvalidInputError

#: Replayed and direct features differ by at most this, relative to the largest: bitwise equal on a CPU,
#: but a GPU may choose other kernels for the two passes.
REPLAY_TOLERANCE = 1e-5

#: Columns to which the output of a module is pooled, for a linear probe on it.
READ_WIDTH = 2048


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries the activations out of the trunk."""


def trainable_chain(model: nn.Module, trainable: tuple[str, ...], images: Tensor) -> tuple[str, ...]:
    """Return the modules from the first trainable one to the end of `forward_features`."""
    called, running, following = list[str](), list[int](), dict[int, int]()

    def begin(name: str) -> None:
        running.append(len(called))
        called.append(name)

    def end() -> None:
        following[running.pop()] = len(called)  # the first call after this one, whatever it called itself

    named = [(name, module) for name, module in model.named_modules() if name]
    handles = [module.register_forward_pre_hook(lambda *_, name=name: begin(name)) for name, module in named]
    handles += [module.register_forward_hook(lambda *_: end()) for _, module in named]
    try:
        with torch.no_grad():
            expected = model.forward_features(images)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
    index = next((k for k, name in enumerate(called) if name in trainable), len(called))
    chain = []
    while index < len(called):
        chain.append(called[index])
        index = following[index]
    if not chain or not _replays(model, tuple(chain), images, expected):
        raise InvalidInputError(
            f"{type(model).__name__} cannot be run from the activations before {', '.join(trainable)}: what "
            "follows is not a chain of modules; train it on images "
            "instead, or choose a later trainable part."
        )
    return tuple(chain)


def _replays(model: nn.Module, chain: tuple[str, ...], images: Tensor, expected: Tensor) -> bool:
    """Tell whether the modules of a chain give the same features, and leave what they begin with as it is."""
    activations = activations_before(model, chain[0], images)
    writes = activations._version
    try:
        with torch.no_grad():
            found = run_chain(model, chain, activations)
    except (TypeError, ValueError, RuntimeError):  # a module takes more than one tensor, or another one
        return False
    if found.shape != expected.shape or activations._version != writes:
        return False
    return bool((found - expected).abs().max() <= REPLAY_TOLERANCE * expected.abs().max())


def activations_before(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """Run the model up to a module, without gradients, and return that module's input."""

    def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        raise _Reached(arguments[0])

    handle = model.get_submodule(name).register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            model.forward_features(images)  # type: ignore[operator]
    except _Reached as reached:
        activations: Tensor = reached.args[0]
        return activations.detach()
    finally:
        handle.remove()
    raise InvalidInputError(f"forward_features never calls '{name}'.")


@contextmanager
def pooled_outputs(model: nn.Module, names: Iterable[str]) -> Generator[dict[str, Tensor]]:
    """Collect the pooled output `(B, D)` of some modules while the model runs, differentiable.

    Maps are averaged over a grid, tokens over segments, as fine as `READ_WIDTH` columns allow. A module that
    hands on the output of the one before it (a container, an identity) is left out.
    """
    found: dict[str, Tensor] = {}
    last: tuple[Tensor | None, int] = None, 0

    def end(name: str, output: Any) -> None:
        nonlocal last
        if isinstance(output, Tensor) and output.ndim in (2, 3, 4):
            if output is not last[0] or output._version != last[1]:
                found[name] = _pooled(output).float()
            last = output, output._version

    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: end(name, output))
        for name in names
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def outputs_before(model: nn.Module, names: tuple[str, ...], images: Tensor) -> dict[str, Tensor]:
    """Run the model until one of some modules begins; return the pooled output of each module before it."""

    def stop(_: nn.Module, __: tuple[Any, ...]) -> None:
        raise _Reached

    handles = [model.get_submodule(name).register_forward_pre_hook(stop) for name in names]
    every = [name for name, _ in model.named_modules() if name]
    try:
        with torch.no_grad(), pooled_outputs(model, every) as found:
            model.forward_features(images)  # type: ignore[operator]
    except _Reached:
        pass
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise InvalidInputError(
            f"nothing comes before the immunized part ({', '.join(names)}), "
            "so there is no trunk; leave out the attacker 'trunk'."
        )
    return found


def _pooled(output: Tensor) -> Tensor:
    """Return `(B, D)`, D at most about `READ_WIDTH`, of features `(B, D)`, tokens `(B, N, D)` or a map."""
    if output.ndim == 2:
        return output.clone()
    if output.ndim == 3:
        tokens = max(1, min(output.shape[1], READ_WIDTH // output.shape[2]))
        return nn.functional.adaptive_avg_pool1d(output.mT, tokens).flatten(1)
    side = max(1, int((READ_WIDTH / output.shape[1]) ** 0.5))
    height, width = (min(side, length) for length in output.shape[2:])
    return nn.functional.adaptive_avg_pool2d(output, (height, width)).flatten(1)


def run_chain(model: nn.Module, chain: tuple[str, ...], activations: Tensor) -> Tensor:
    """Apply modules one after the other."""
    for name in chain:
        activations = model.get_submodule(name)(activations)
    return activations
