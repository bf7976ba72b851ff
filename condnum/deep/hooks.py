"""A look into any net while it runs: what a module is given, what modules give, its end without its trunk."""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from condnum.errors import InvalidInputError

#: Replayed and direct features differ by at most this, relative to the largest: bitwise equal on a CPU,
#: but a GPU may choose other kernels for the two passes.
REPLAY_TOLERANCE = 1e-5

#: Columns to which the output of a module is pooled, for a linear probe on it.
READ_WIDTH = 2048


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries what a module is given out of the net."""


def input_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """Run a net until it calls a module, and return what that module is given first."""

    def stop(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        raise _Reached(arguments[0] if arguments else next(iter(named.values())))

    handle = model.get_submodule(name).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(images)
    except _Reached as reached:
        found: Tensor = reached.args[0]
        return found
    finally:
        handle.remove()
    raise InvalidInputError(
        f"{type(model).__name__} never calls '{name}' in a forward pass; name another module."
    )


@dataclass(frozen=True)
class Replay:
    """How to run a net from the activations before its trained part, in its own forward pass.

    What runs before that part is skipped: each such module returns empty output of the right shape, and the
    part is given the activations.
    """

    first: str  # the module that is given the activations
    skipped: Mapping[str, Any]  # by name, output of shape (B, …) on the meta device
    image: tuple[int, ...]  # shape of one image

    @classmethod
    def of(cls, model: nn.Module, head: str, trained: Sequence[str], images: Tensor) -> "Replay":
        """Watch one pass over images, and see that the replay gives the same features."""
        before, first = dict[str, Any](), ""
        parts = tuple(f"{name}." for name in trained)

        def begin(name: str) -> None:
            nonlocal first
            if not first and f"{name}.".startswith(parts):
                first = name
            if first:
                before.pop(name, None)  # what runs again later is not skipped

        def end(name: str, output: Any) -> None:
            usual = "forward" not in vars(model.get_submodule(name))
            leaves = tree_flatten(output)[0]
            rows = all(isinstance(x, Tensor) and x.ndim and len(x) == len(images) for x in leaves)
            if not first and usual and rows:
                before[name] = tree_map(lambda x: x.detach().to("meta"), output)

        with ExitStack() as hooks, torch.no_grad():
            for name, module in model.named_modules():
                if name:
                    hooks.callback(module.register_forward_pre_hook(lambda *_, name=name: begin(name)).remove)
                    hooks.callback(
                        module.register_forward_hook(
                            lambda _, __, output, name=name: end(name, output)
                        ).remove
                    )
            expected = input_of(model, head, images)
        made = cls(first, before, tuple(images.shape[1:]))
        if not first or not made._gives(model, head, images, expected):
            raise InvalidInputError(
                f"{type(model).__name__} cannot be run from the activations before {', '.join(trained)}: "
                "later modules read the trunk too; train it on images, or choose a later trainable part."
            )
        return made

    def _gives(self, model: nn.Module, head: str, images: Tensor, expected: Tensor) -> bool:
        """Tell whether the replay gives these features, and leaves the activations as they are."""
        try:
            with torch.no_grad():
                activations = input_of(model, self.first, images)
                writes = activations._version
                found = self.features(model, head, activations)
        except (TypeError, ValueError, RuntimeError, AttributeError):  # the glue between modules needs values
            return False
        if found.shape != expected.shape or activations._version != writes:
            return False
        return bool((found - expected).abs().max() <= REPLAY_TOLERANCE * expected.abs().max())

    def features(self, model: nn.Module, head: str, activations: Tensor) -> Tensor:
        """Return what the head is given."""
        count = len(activations)

        def empty(x: Tensor) -> Tensor:
            return torch.zeros((), dtype=x.dtype, device=activations.device).expand(count, *x.shape[1:])

        def give(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if arguments:
                return (activations, *arguments[1:]), named
            return (), {**named, next(iter(named)): activations}

        with ExitStack() as undo:
            for name, output in self.skipped.items():
                module = model.get_submodule(name)
                undo.callback(vars(module).pop, "forward")
                vars(module)["forward"] = lambda *_, output=output, **__: tree_map(empty, output)
            undo.callback(
                model.get_submodule(self.first).register_forward_pre_hook(give, with_kwargs=True).remove
            )
            images = torch.zeros((), dtype=activations.dtype, device=activations.device)
            return input_of(model, head, images.expand(count, *self.image))


def layout_of(*modules: nn.Module) -> str:
    """Return timm's `output_fmt` of the first module that has one, such as `NHWC`, else ""."""
    layout = next((module.output_fmt for module in modules if hasattr(module, "output_fmt")), "")
    return str(getattr(layout, "value", layout))


def channels_last(output: Tensor, layout: str = "") -> bool:
    """Tell whether a map has its channels last: where timm's `output_fmt` says so, or positions are square.

    Examples:
        >>> channels_last(torch.empty(2, 7, 7, 96)), channels_last(torch.empty(2, 96, 7, 7))
        (True, False)
    """
    first, middle, last = output.shape[1:]
    return layout == "NHWC" or (layout != "NCHW" and first == middle != last)


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
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor) and output.ndim in (2, 3, 4):
            if output is not last[0] or output._version != last[1]:
                found[name] = _pooled(output, layout_of(model.get_submodule(name), model)).float()
            last = output, output._version

    with ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            hooks.callback(
                module.register_forward_hook(lambda _, __, output, name=name: end(name, output)).remove
            )
        yield found


def outputs_before(model: nn.Module, names: Collection[str], images: Tensor) -> dict[str, Tensor]:
    """Run the model until one of some modules begins; return the pooled output of each module before it."""

    def stop(*_: Any) -> None:
        raise _Reached

    every = [name for name, _ in model.named_modules() if name]
    with ExitStack() as hooks, torch.no_grad():
        for name in names:
            hooks.callback(model.get_submodule(name).register_forward_pre_hook(stop).remove)
        found = hooks.enter_context(pooled_outputs(model, every))
        with suppress(_Reached):
            model(images)
    if not found:
        raise InvalidInputError(
            f"nothing comes before the immunized part ({', '.join(names)}), "
            "so there is no trunk; leave out the attacker 'trunk'."
        )
    return found


def _pooled(output: Tensor, layout: str) -> Tensor:
    """Return `(B, D)`, D at most about `READ_WIDTH`, of features `(B, D)`, tokens `(B, N, D)` or a map."""
    if output.ndim == 2:
        return output.clone()
    if output.ndim == 3:
        tokens = max(1, min(output.shape[1], READ_WIDTH // output.shape[2]))
        return nn.functional.adaptive_avg_pool1d(output.mT, tokens).flatten(1)
    output = output.movedim(-1, 1) if channels_last(output, layout) else output
    side = max(1, int((READ_WIDTH / output.shape[1]) ** 0.5))
    height, width = (min(side, length) for length in output.shape[2:])
    return nn.functional.adaptive_avg_pool2d(output, (height, width)).flatten(1)
