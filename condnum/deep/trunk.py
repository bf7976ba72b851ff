"""Where the frozen trunk ends: run it once, and train from its activations.

One traced forward pass tells which modules follow it, and whether they are a chain, so that they can be
run by themselves.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import InvalidInputError

#: Replayed and direct features differ by at most this, relative to the largest: bitwise equal on a CPU,
#: but a GPU may choose other kernels for the two passes.
REPLAY_TOLERANCE = 1e-5

#: Columns to which the output of a module is pooled, for a linear probe on it.
READ_WIDTH = 2048


@dataclass
class _Call:
    """One call of a module in a traced forward pass."""

    name: str
    inputs: tuple[Any, ...]
    version: int  # of the first input, which counts the writes to it
    output: Any = None
    after: int = 0  # number of calls that had begun when this one ended


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries the activations out of the trunk."""


def trainable_chain(model: nn.Module, trainable: tuple[str, ...], images: Tensor) -> tuple[str, ...]:
    """Return the modules from the first trainable one to the end of `forward_features`."""

    def refusal(reason: str) -> InvalidInputError:
        return InvalidInputError(
            f"{type(model).__name__} cannot be run from frozen activations: {reason}; "
            "train it on images instead, or choose a later trainable part."
        )

    names = {module: name for name, module in model.named_modules() if name}
    calls: list[_Call] = []
    running: list[_Call] = []

    def begin(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        inputs = (*arguments, *(value for value in options.values() if value is not None))
        calls.append(_Call(names[module], inputs, getattr(inputs[0], "_version", 0) if inputs else 0))
        running.append(calls[-1])

    def end(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        call = running.pop()
        call.output, call.after = output, len(calls)

    handles = [module.register_forward_pre_hook(begin, with_kwargs=True) for module in names]
    handles += [module.register_forward_hook(end) for module in names]
    try:
        with torch.no_grad():
            result = model.forward_features(images)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
    index = next((i for i, call in enumerate(calls) if call.name in trainable), None)
    if index is None:
        raise InvalidInputError(f"forward_features never calls the trainable part {', '.join(trainable)}.")
    first = calls[index].inputs[0]
    if first._version != calls[index].version:
        raise refusal(f"'{calls[index].name}' writes over its input")
    current, chain = first, []
    while index < len(calls):
        call = calls[index]
        if len(call.inputs) != 1 or call.inputs[0] is not current or not isinstance(call.output, Tensor):
            raise refusal(f"'{call.name}' needs more than the output of the module before it")
        chain.append(call.name)
        current, index = call.output, call.after
    if current is not result:
        raise refusal(f"something follows '{chain[-1]}' that is no module")
    with torch.no_grad():
        gap = (run_chain(model, tuple(chain), first) - result).abs().max()
    if not bool(gap <= REPLAY_TOLERANCE * result.abs().max()):
        raise refusal("the modules alone give other features")
    return tuple(chain)


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


def outputs_before(model: nn.Module, names: tuple[str, ...], images: Tensor) -> dict[str, Tensor]:
    """Run the model until one of some modules begins; return the pooled output of each module before it.

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

    def stop(_: nn.Module, __: tuple[Any, ...]) -> None:
        raise _Reached

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: end(name, output))
        for name, module in model.named_modules()
        if name
    ]
    handles += [model.get_submodule(name).register_forward_pre_hook(stop) for name in names]
    try:
        with torch.no_grad():
            model.forward_features(images)  # type: ignore[operator]
    except _Reached:
        pass
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise InvalidInputError(
            f"nothing comes before the immunized part ({', '.join(names)}), so there is no trunk to read; "
            "leave out the attacker 'trunk'."
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
