"""The methods by name, and `immunize`, the one entry to all of them."""

from collections.abc import Collection
from typing import Any

from condnum.arrays import own_state
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.methods.algorithm1 import Ours, RIllOnly
from condnum.methods.baselines import Identity, Imma, Initial, OptKappa
from condnum.methods.closed_forms import Erase, MaxRir, Pareto
from condnum.methods.descent import PRESETS, Callback, ImmunizationResult, overridden, run
from condnum.methods.method import Method
from condnum.methods.problem import MAKE_IT, ImmunizationProblem

#: Methods by name, in display order.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Ours(), OptKappa(), Imma(), RIllOnly(), Identity(), Initial(), MaxRir(), Pareto(), Erase()
    )
}  # fmt: skip
_ALIASES = {"algorithm1": "ours"}


def method_names() -> list[str]:
    """Return the names of all methods that `immunize` accepts, in display order.

    Examples:
        >>> method_names()
        ['ours', 'opt_kappa', 'imma', 'r_ill_only', 'identity', 'initial', 'max_rir', 'pareto', 'erase']
    """
    return list(METHODS)


def get_method(method: str | Method) -> Method:
    """Return a method by its name; an object that is one is returned as it is.

    Args:
        method: One of `method_names()`, or `algorithm1` for `ours`.

    Returns:
        The method.

    Raises:
        UnknownNameError: There is no such method.
        InvalidInputError: A method of yours lacks its name or its start.

    Examples:
        >>> get_method("algorithm1").name
        'ours'
    """
    if isinstance(method, str):
        name = _ALIASES.get(method, method)
        check_known("method", name, METHODS)
        return METHODS[name]
    if isinstance(method, type) or not isinstance(method, Method):
        raise InvalidInputError(
            f"{method!r} is not a method: pass an object with a name and initial(problem, generator), which "
            "returns {'theta': θ}."
        )
    return method


@own_state()
def immunize(
    problem: ImmunizationProblem,
    method: str | Method = "pareto",
    *,
    seed: int = 0,
    settings: Any = None,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
    **overrides: Any,
) -> ImmunizationResult:
    """Find an extractor θ that keeps D_P well-conditioned and makes D_H ill-conditioned.

    Args:
        problem: The two tasks (`ImmunizationProblem.from_data`, `.from_pair`, `.from_covariances`).
        method: The closed forms `pareto`, `max_rir` and `erase`, which need no seed; `ours` (Algorithm 1,
            also called `algorithm1`), `r_ill_only`, `imma` and `opt_kappa`, which descend; the controls
            `identity` and `initial`; or a `Method` of your own. Its `summary` says how its time grows with D.
        seed: Seed of θ₀ and all other random numbers; the library never seeds globally.
        settings: In place of the defaults of a method that descends; a string names one of `PRESETS`.
        callback: Called with a `Progress` at each recorded step, the last one too; returning True cancels the
            run, which then returns its current result with `stop_reason="cancelled"`.
            `condnum.progress.step_line()` shows the steps and the time left.
        callback_steps: Additional steps at which the callback receives θ without measurements.
        **overrides: Single settings by name, such as `steps=200`; what has no effect here is ignored.

    Returns:
        θ with its history and stop reason, and the verdict by Definition 3.1.

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
    if not isinstance(problem, ImmunizationProblem):
        raise InvalidInputError(
            f"problem must be an ImmunizationProblem, got {type(problem).__name__}; {MAKE_IT}"
        )
    chosen, seed = get_method(method), check_integer("seed", seed, 0)
    defaults = getattr(chosen, "defaults", None)
    if defaults is None:
        return run(problem, chosen, None, seed=seed)
    if isinstance(settings, str):
        check_known("settings", settings, PRESETS)
        settings = PRESETS[settings]
    if settings is not None and not isinstance(settings, type(defaults)):
        wanted, given = type(defaults).__name__, type(settings).__name__
        raise InvalidInputError(f"method '{chosen.name}' takes {wanted}, got {given}.")
    base = overridden(defaults if settings is None else settings, **overrides)
    return run(problem, chosen, base, seed=seed, callback=callback, callback_steps=callback_steps)
