"""condnum: model immunization from a condition-number perspective.

The public names of the library core; everything here needs NumPy, SciPy, pandas, torch and
scikit-learn alone. Figures, notebooks, deep nets and clusters live in `condnum.figures`,
`condnum.report`, … behind extras. Names are imported when they are first used, so that
`import condnum` and `condnum --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condnum.data import (
        TaskPair,
        digit_pair,
        load_diabetes_tasks,
        load_house_prices,
        load_mnist_images,
        load_small_digits,
    )
    from condnum.errors import CondnumError
    from condnum.methods import (
        NAMED_SETTINGS,
        DescentSettings,
        ImmunizationResult,
        get_method,
        immunize,
        method_names,
        register,
    )
    from condnum.methods.problem import ImmunizationProblem
    from condnum.probing import ProbeCurve, linear_probe
    from condnum.theory.alignment import Alignment, alignment
    from condnum.theory.ceiling import RirCeiling, optimal_immunizer, ridge_convention_ceiling, rir_ceiling
    from condnum.theory.immunization import Immunization, relative_immunization_ratio
    from condnum.theory.pareto import front_immunizer
    from condnum.theory.regularizers import (
        RegularizerGradient,
        r_ill,
        r_ill_gradient,
        r_ill_theta_gradient,
        r_well,
        r_well_gradient,
        r_well_theta_gradient,
    )
    from condnum.theory.spectra import ConditionNumber, condition_number, covariance, hessian
    from condnum.theory.steps import (
        ill_spectrum_step,
        ill_step,
        ill_step_bound,
        well_spectrum_step,
        well_step,
        well_step_bound,
    )

__version__ = "0.1.0"

_HOMES = {
    "condnum.theory.ceiling": ["RirCeiling", "optimal_immunizer", "ridge_convention_ceiling", "rir_ceiling"],
    "condnum.data": [
        "TaskPair",
        "digit_pair",
        "load_diabetes_tasks",
        "load_house_prices",
        "load_mnist_images",
        "load_small_digits",
    ],
    "condnum.errors": ["CondnumError"],
    "condnum.theory.immunization": ["Immunization", "relative_immunization_ratio"],
    "condnum.methods": [
        "NAMED_SETTINGS",
        "DescentSettings",
        "ImmunizationResult",
        "get_method",
        "immunize",
        "method_names",
        "register",
    ],
    "condnum.probing": ["ProbeCurve", "linear_probe"],
    "condnum.theory.alignment": ["Alignment", "alignment"],
    "condnum.theory.spectra": ["ConditionNumber", "condition_number", "covariance", "hessian"],
    "condnum.theory.pareto": ["front_immunizer"],
    "condnum.methods.problem": ["ImmunizationProblem"],
    "condnum.theory.regularizers": [
        "RegularizerGradient",
        "r_ill",
        "r_ill_gradient",
        "r_ill_theta_gradient",
        "r_well",
        "r_well_gradient",
        "r_well_theta_gradient",
    ],
    "condnum.theory.steps": [
        "ill_spectrum_step",
        "ill_step",
        "ill_step_bound",
        "well_spectrum_step",
        "well_step",
        "well_step_bound",
    ],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    # spectra
    "ConditionNumber",
    "condition_number",
    "covariance",
    "hessian",
    # immunization and its limits
    "Immunization",
    "relative_immunization_ratio",
    "Alignment",
    "alignment",
    "RirCeiling",
    "rir_ceiling",
    "ridge_convention_ceiling",
    "optimal_immunizer",
    "front_immunizer",
    # regularizers
    "RegularizerGradient",
    "r_well",
    "r_well_gradient",
    "r_well_theta_gradient",
    "well_step",
    "well_spectrum_step",
    "well_step_bound",
    "r_ill",
    "r_ill_gradient",
    "r_ill_theta_gradient",
    "ill_step",
    "ill_spectrum_step",
    "ill_step_bound",
    # methods
    "ImmunizationProblem",
    "ImmunizationResult",
    "DescentSettings",
    "NAMED_SETTINGS",
    "immunize",
    "method_names",
    "get_method",
    "register",
    # probing
    "ProbeCurve",
    "linear_probe",
    # data
    "TaskPair",
    "digit_pair",
    "load_diabetes_tasks",
    "load_house_prices",
    "load_mnist_images",
    "load_small_digits",
    # errors
    "CondnumError",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'condnum' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*globals(), *_HOME])
