"""Run the frozen trunk once, and training steps from its activations.

With un-augmented images the frozen trunk gives the same activations in every epoch. What comes after
them can be run alone where it is a chain of modules: each takes the output of the one before, and
nothing else. That is read off one traced forward pass, by the identity of the tensors, and then
verified by number; where it does not hold, the error says at which module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import InvalidInputError

#: Replayed and direct features differ by at most this, relative to the largest: bitwise equal on a CPU,
#: but a GPU may choose other kernels for the two passes.
REPLAY_TOLERANCE = 1e-5


@dataclass
class _Call:
    """One call of a module in a traced forward pass."""

    name: str
    inputs: tuple[Any, ...]
    version: int  # of the first input, which counts the writes to it
    output: Any = None
    after: int = 0  # number of calls that had begun when this one ended


@dataclass
class _Trace:
    """The calls of a forward pass, in the order in which they begin."""

    calls: list[_Call] = field(default_factory=list)
    running: list[_Call] = field(default_factory=list)

    def watch(self, name: str, module: nn.Module) -> list[Any]:
        """Hook a module; return the handles."""

        def begin(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = [value for value in options.values() if value is not None]
            inputs = (*arguments, *given)
            call = _Call(name, inputs, getattr(inputs[0], "_version", 0) if inputs else 0)
            self.calls.append(call)
            self.running.append(call)

        def end(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            call = self.running.pop()
            call.output, call.after = output, len(self.calls)

        return [
            module.register_forward_pre_hook(begin, with_kwargs=True),
            module.register_forward_hook(end),
        ]


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries the activations out of the trunk."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations


def trainable_chain(model: nn.Module, trainable: tuple[str, ...], images: Tensor) -> tuple[str, ...]:
    """Return the modules from the first trainable one to the end of `forward_features`."""
    result, calls = _trace(model, images)
    index = next((i for i, call in enumerate(calls) if call.name in trainable), None)
    if index is None:
        raise InvalidInputError(f"forward_features never calls the trainable part {', '.join(trainable)}.")
    start = calls[index]
    first = start.inputs[0]
    if first._version != start.version:
        raise InvalidInputError(_no_chain(model, f"'{start.name}' writes over its input"))
    current, chain = first, []
    while index < len(calls):
        call = calls[index]
        if len(call.inputs) != 1 or call.inputs[0] is not current or not isinstance(call.output, Tensor):
            raise InvalidInputError(
                _no_chain(model, f"'{call.name}' needs more than the output of the module before it")
            )
        chain.append(call.name)
        current, index = call.output, call.after
    if current is not result:
        raise InvalidInputError(_no_chain(model, f"something follows '{chain[-1]}' that is no module"))
    with torch.no_grad():
        again = run_chain(model, tuple(chain), first)
    gap = (again - result).abs().max()
    if not bool(gap <= REPLAY_TOLERANCE * result.abs().max()):
        raise InvalidInputError(_no_chain(model, "the modules alone give other features"))
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
        return reached.activations.detach()
    finally:
        handle.remove()
    raise InvalidInputError(f"forward_features never calls '{name}'.")


def run_chain(model: nn.Module, chain: tuple[str, ...], activations: Tensor) -> Tensor:
    """Apply modules one after the other."""
    for name in chain:
        activations = model.get_submodule(name)(activations)
    return activations


def _trace(model: nn.Module, images: Tensor) -> tuple[Tensor, list[_Call]]:
    """Run `forward_features` once and return its result with the calls of all inner modules."""
    trace = _Trace()
    handles = [h for name, module in model.named_modules() if name for h in trace.watch(name, module)]
    try:
        with torch.no_grad():
            result = model.forward_features(images)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
    return result, trace.calls


def _no_chain(model: nn.Module, reason: str) -> str:
    """Return the message for a model that cannot be run from activations."""
    return (
        f"{type(model).__name__} cannot be run from frozen activations: {reason}; "
        "train it on images instead, or choose a later trainable part."
    )
