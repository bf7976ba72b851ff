"""The registry of attackers."""

from condnum.errors import InvalidInputError, check_known
from condnum.probing.attackers import Attacker
from condnum.probing.descents import (
    ADAM,
    FINE_TUNING,
    GRADIENT_DESCENT,
    HEAVY_BALL,
    NESTEROV,
    STACKED,
    STANDARDIZED,
    WHITENED,
    LineSearch,
    StochasticDescent,
)
from condnum.probing.solvers import ConjugateGradients, DirectSolution, LimitedMemoryBfgs

_ATTACKERS: dict[str, Attacker] = {
    attacker.name: attacker
    for attacker in (
        GRADIENT_DESCENT,
        LineSearch(),
        HEAVY_BALL,
        NESTEROV,
        StochasticDescent(),
        ADAM,
        ConjugateGradients(),
        LimitedMemoryBfgs(),
        STACKED,
        FINE_TUNING,
        STANDARDIZED,
        WHITENED,
        DirectSolution(),
    )
}
_BUILT_IN = frozenset(_ATTACKERS)


def register_attacker(attacker: Attacker) -> None:
    """Add an attacker to the registry under its name, in the place of a former one of your own."""
    if not isinstance(attacker, Attacker):
        raise InvalidInputError(
            f"{attacker!r} is not an attacker: derive its class from condnum.probing.Attacker."
        )
    if attacker.name in _BUILT_IN:
        raise InvalidInputError(f"'{attacker.name}' is the name of a built-in attacker; choose another name.")
    _ATTACKERS[attacker.name] = attacker


def attacker_names() -> list[str]:
    """Return the names of all registered attackers, in display order."""
    return list(_ATTACKERS)


def get_attacker(name: str) -> Attacker:
    """Return a registered attacker."""
    check_known("attacker", name, _ATTACKERS)
    return _ATTACKERS[name]
