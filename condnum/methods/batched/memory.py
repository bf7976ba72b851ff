"""How many problems fit on a device at once."""

from __future__ import annotations

import torch

from condnum.problem import ImmunizationProblem

#: Share of the free memory that a batch may take; the rest is for what the libraries allocate.
_SHARE = 0.8
#: Matrices of the size of θ that a descent holds: θ, its copy, gradient, two moments of Adam, two
#: Hessians, their sum, and as many again for what lives inside a step (IMMA's graph, norms).
_SQUARES = 16
#: Budget on a CPU, where nobody says what is free: as a sweep's workers take.
_CPU_BYTES = 2 * 2**30


def problem_bytes(problem: ImmunizationProblem) -> int:
    """Estimate the memory that one more problem takes in a batch.

    Examples:
        >>> problem_bytes(ImmunizationProblem.from_covariances([[2.0]], [[1.0]]))
        456
    """
    D = problem.dimension
    numbers = _SQUARES * D**2 + 32 * D  # and the basis of Lanczos
    for task in (problem.pretrain, problem.harmful):
        r = task.rank
        rows = 0 if task.supervised_rows is None else task.supervised_rows.shape[0]
        numbers += 2 * r * D + rows * D
    numbers += 4 * r**2 + r * D  # the inverse of the harmful task's dual Gram matrix
    return 8 * numbers


def free_bytes(device: torch.device) -> int:
    """Return the memory that a batch may take on a device."""
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * (free + reusable))


def batch_size(problem: ImmunizationProblem, device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many problems like this one fit on a device at once.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[2.0]], [[1.0]])
        >>> batch_size(problem, torch.device("cpu"), memory_bytes=1000)
        2
    """
    available = free_bytes(device) if memory_bytes is None else memory_bytes
    return max(1, available // problem_bytes(problem))
