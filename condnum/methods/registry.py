"""The methods by name, and `immunize`, the one entry to all of them."""

from collections.abc import Collection
from typing import Any

from condnum.arrays import own_state
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.methods.algorithm1 import Ours, RIllOnly
from condnum.methods.baselines import MAX_RIR, PARETO, Erase, Identity, Imma, Initial, OptKappa
from condnum.methods.descent import run_method
from condnum.methods.method import Method
from condnum.methods.problem import MAKE_IT, ImmunizationProblem
from condnum.methods.result import Callback, ImmunizationResult, with_verdict
from condnum.methods.settings import PRESETS, Settings

#: Methods by name, in display order: the built-in ones, and those of one's own that a study was given.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Ours(),
        OptKappa(),
        Imma(),
        RIllOnly(),
        Identity(),
        Initial(),
        MAX_RIR,
        PARETO,
        Erase(),
    )
}
_BUILT_IN = frozenset(METHODS)
_ALIASES = {"algorithm1": "ours"}


def own_methods() -> list[Method]:
    """Return the methods that studies were given beside the built-in ones."""
    return [method for name, method in METHODS.items() if name not in _BUILT_IN]


def method_names() -> list[str]:
    """Return the names of all methods, in display order.

    Returns:
        Names that `immunize` accepts.

    Examples:
        >>> method_names()
        ['ours', 'opt_kappa', 'imma', 'r_ill_only', 'identity', 'initial', 'max_rir', 'pareto', 'erase']
    """
    return list(METHODS)


def get_method(method: str | Method) -> Method:
    """Return a method by its name; a `Method` is returned as it is.

    Args:
        method: One of `method_names()`, or `algorithm1` for `ours`.

    Returns:
        The method, with its `label`, `summary` and (if it descends) `defaults`.

    Raises:
        UnknownNameError: There is no such method.
        InvalidInputError: A method of yours lacks a name, a label or a summary.

    Examples:
        >>> get_method("algorithm1").label
        'Ours (Algorithm 1)'
    """
    if isinstance(method, str):
        name = _ALIASES.get(method, method)
        check_known("method", name, METHODS)
        return METHODS[name]
    if not isinstance(method, Method) or not all(hasattr(method, x) for x in ("name", "label", "summary")):
        raise InvalidInputError(
            f"{type(method).__name__} is not a method: derive its class from condnum.methods.Method, and "
            "define its name, label and summary."
        )
    return method


def net_methods() -> dict[str, Method]:
    """Return the methods that nets can be immunized by, `immunize_backbone`'s, in display order."""
    return {name: method for name, method in METHODS.items() if method.net_parts is not None}


def get_net_method(method: str | Method) -> Method:
    """Return a method as `get_method` does; one that is not for nets is refused."""
    if isinstance(method, str):
        check_known("method", _ALIASES.get(method, method), net_methods())
    chosen = get_method(method)
    if chosen.net_parts is None:
        raise InvalidInputError(
            f"method '{chosen.name}' has no net_parts, so it is not for nets; define them, or {{}} beside "
            "a net_backward."
        )
    return chosen


@own_state()
def immunize(
    problem: ImmunizationProblem,
    method: str | Method = "pareto",
    *,
    seed: int = 0,
    settings: Settings | str | None = None,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
    **overrides: Any,
) -> ImmunizationResult:
    """Find an extractor θ that keeps D_P well-conditioned and makes D_H ill-conditioned.

    Args:
        problem: The two tasks (`ImmunizationProblem.from_data`, `.from_pair`, `.from_covariances`).
        method: The closed forms `pareto`, `max_rir` and `erase`, which need no seed; `ours` (Algorithm 1,
            also called `algorithm1`), `r_ill_only`, `imma` and `opt_kappa`, which descend; the controls
            `identity` and `initial`; or a `Method` of your own. Its `summary` says how its time grows with D;
            the verdict takes O(D³) in any case.
        seed: Seed of θ₀ and all other random numbers; the library never seeds globally.
        settings: In place of the defaults of a method that descends; a string names one of `PRESETS`.
        callback: Called with a `Progress` at each recorded step; returning True cancels the run,
            which then returns its current result with `stop_reason="cancelled"`.
            `condnum.progress.step_line()` shows the steps and the time left.
        callback_steps: Additional steps at which the callback receives θ without measurements.
        **overrides: Single settings by name, such as `steps=200`; what has no effect here is ignored.

    Returns:
        θ with history, stop reason, the verdict by Definition 3.1, and in `explanation` what ran.

    Raises:
        UnknownNameError: Unknown method or setting.
        InvalidInputError: `problem` is not an `ImmunizationProblem`, a setting is out of range, or the method
            needs targets that are missing.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[9.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]])
        >>> result = immunize(problem, "ours", seed=0, steps=200, learning_rate=0.01)
        >>> result.stop_reason, bool(result.history["kappa_benign"][-1] < 9)
        ('steps', True)
    """
    options: dict[str, Any] = {"settings": settings, "callback": callback, "callback_steps": callback_steps}
    return with_verdict(problem, find_extractor(problem, method, seed=seed, **options, **overrides))


@own_state()
def find_extractor(
    problem: ImmunizationProblem,
    method: str | Method,
    *,
    seed: int = 0,
    settings: Settings | str | None = None,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
    **overrides: Any,
) -> ImmunizationResult:
    """Do as `immunize`, without its verdict: for studies, which measure what they find in their own ways."""
    if not isinstance(problem, ImmunizationProblem):
        raise InvalidInputError(
            f"problem must be an ImmunizationProblem, got {type(problem).__name__}; {MAKE_IT}"
        )
    chosen, seed = get_method(method), check_integer("seed", seed, 0)
    if chosen.defaults is None:
        return run_method(problem, chosen, seed=seed)
    if isinstance(settings, str):
        check_known("settings", settings, PRESETS)
        settings = PRESETS[settings]
    kind = type(chosen.defaults)
    if settings is not None and not isinstance(settings, kind):
        raise InvalidInputError(
            f"method '{chosen.name}' takes {kind.__name__}, got {type(settings).__name__}."
        )
    base: Any = (settings or chosen.defaults).with_overrides(**overrides)
    return run_method(problem, chosen, base, seed=seed, callback=callback, callback_steps=callback_steps)
