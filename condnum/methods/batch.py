"""`immunize_batch`: the sibling of `immunize` for many problems at once, on a GPU or a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from condnum.errors import InvalidInputError
from condnum.methods.batched.descent import descend_batch
from condnum.methods.batched.method import BatchedMethod
from condnum.methods.method import ClosedFormMethod
from condnum.methods.registry import get_method, immunize
from condnum.methods.result import ImmunizationResult
from condnum.methods.settings import DescentSettings
from condnum.problem import ImmunizationProblem


def descends_in_batches(method: str, settings: DescentSettings | None = None) -> bool:
    """Tell whether a method has a batched form that can do what the settings ask for.

    Args:
        method: Registry name.
        settings: Of the method; None for its defaults.

    Returns:
        False for closed forms, for methods that declare no batched gradients, for mini-batches and `auto`.

    Examples:
        >>> descends_in_batches("ours"), descends_in_batches("ours", DescentSettings())
        (False, True)
        >>> descends_in_batches("optimal")
        False
    """
    chosen = get_method(method)
    if isinstance(chosen, ClosedFormMethod) or not isinstance(chosen, BatchedMethod):
        return False
    chosen_settings = chosen.defaults if settings is None else settings
    return chosen_settings.batch_size is None and not chosen_settings.auto


def immunize_batch(
    problems: Sequence[ImmunizationProblem],
    method: str = "ours",
    *,
    seeds: Sequence[int],
    settings: DescentSettings | None = None,
    device: str | torch.device | None = None,
) -> list[ImmunizationResult]:
    """Immunize many problems of one dimension at once; one by one where the method knows no batches.

    Args:
        problems: Ranks and rows may differ; dimensions, kinds of loss and numbers of targets may not.
        method: A registered method.
        seeds: One a problem.
        settings: The same for all; default those of the method.
        device: Where to descend; default where the first problem is. Only θ and the batch's copy of the
            data need to be there: the problems may stay on the CPU.

    Returns:
        What `immunize` returns for each problem and seed, up to round-off; θ and ω are views of the
        batch's tensors. A problem that diverges keeps its last finite θ and does not touch the others.

    Raises:
        InvalidInputError: The problems do not fit together, settings are of another method, or the
            method needs targets that are missing.
        UnknownNameError: Unknown method.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[9.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]])
        >>> results = immunize_batch([problem, problem], seeds=[0, 1], settings=DescentSettings(steps=20))
        >>> [(result.seed, result.stop_reason) for result in results]
        [(0, 'steps'), (1, 'steps')]
    """
    if len(problems) != len(seeds) or not problems:
        raise InvalidInputError(f"a batch needs one seed a problem, got {len(problems)} and {len(seeds)}.")
    chosen = get_method(method)
    if isinstance(chosen, ClosedFormMethod) or not descends_in_batches(method, settings):
        return [
            immunize(problem, method, seed=seed, settings=settings)
            for problem, seed in zip(problems, seeds, strict=True)
        ]
    base = chosen.defaults if settings is None else settings
    if not isinstance(base, type(chosen.defaults)):
        raise InvalidInputError(
            f"method '{method}' takes {type(chosen.defaults).__name__}, got {type(base).__name__}."
        )
    where = problems[0].device if device is None else torch.device(device)
    return descend_batch(problems, chosen, base, seeds=seeds, device=where)
