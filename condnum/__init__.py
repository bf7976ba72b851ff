"""condnum: model immunization from a condition-number perspective.

The public names of the library core; everything here needs NumPy, SciPy, pandas, torch and
scikit-learn alone. Figures, notebooks, deep nets and clusters live in `condnum.figures`,
`condnum.report`, … behind extras. Names are imported when they are first used, so that
`import condnum` and `condnum --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which do not read the table below
    from condnum.data import TaskPair as TaskPair
    from condnum.data import digit_pair as digit_pair
    from condnum.data import load_diabetes_tasks as load_diabetes_tasks
    from condnum.data import load_house_prices as load_house_prices
    from condnum.data import load_mnist_images as load_mnist_images
    from condnum.data import load_small_digits as load_small_digits
    from condnum.errors import CondnumError as CondnumError
    from condnum.methods import NAMED_SETTINGS as NAMED_SETTINGS
    from condnum.methods import DescentSettings as DescentSettings
    from condnum.methods import ImmunizationResult as ImmunizationResult
    from condnum.methods import get_method as get_method
    from condnum.methods import immunize as immunize
    from condnum.methods import method_names as method_names
    from condnum.methods import register as register
    from condnum.methods.problem import ImmunizationProblem as ImmunizationProblem
    from condnum.probing import ProbeCurve as ProbeCurve
    from condnum.probing import linear_probe as linear_probe
    from condnum.theory.alignment import Alignment as Alignment
    from condnum.theory.alignment import alignment as alignment
    from condnum.theory.ceiling import RirCeiling as RirCeiling
    from condnum.theory.ceiling import optimal_immunizer as optimal_immunizer
    from condnum.theory.ceiling import ridge_convention_ceiling as ridge_convention_ceiling
    from condnum.theory.ceiling import rir_ceiling as rir_ceiling
    from condnum.theory.immunization import Immunization as Immunization
    from condnum.theory.immunization import relative_immunization_ratio as relative_immunization_ratio
    from condnum.theory.pareto import front_immunizer as front_immunizer
    from condnum.theory.regularizers import RegularizerGradient as RegularizerGradient
    from condnum.theory.regularizers import r_ill as r_ill
    from condnum.theory.regularizers import r_ill_gradient as r_ill_gradient
    from condnum.theory.regularizers import r_ill_theta_gradient as r_ill_theta_gradient
    from condnum.theory.regularizers import r_well as r_well
    from condnum.theory.regularizers import r_well_gradient as r_well_gradient
    from condnum.theory.regularizers import r_well_theta_gradient as r_well_theta_gradient
    from condnum.theory.spectra import ConditionNumber as ConditionNumber
    from condnum.theory.spectra import condition_number as condition_number
    from condnum.theory.spectra import covariance as covariance
    from condnum.theory.spectra import hessian as hessian
    from condnum.theory.steps import ill_spectrum_step as ill_spectrum_step
    from condnum.theory.steps import ill_step as ill_step
    from condnum.theory.steps import ill_step_bound as ill_step_bound
    from condnum.theory.steps import well_spectrum_step as well_spectrum_step
    from condnum.theory.steps import well_step as well_step
    from condnum.theory.steps import well_step_bound as well_step_bound

__version__ = "0.1.0"

_NAMES = {
    "condnum.theory.spectra": "ConditionNumber condition_number covariance hessian",
    "condnum.theory.immunization": "Immunization relative_immunization_ratio",
    "condnum.theory.alignment": "Alignment alignment",
    "condnum.theory.ceiling": "RirCeiling rir_ceiling ridge_convention_ceiling optimal_immunizer",
    "condnum.theory.pareto": "front_immunizer",
    "condnum.theory.regularizers": "RegularizerGradient r_well r_well_gradient r_well_theta_gradient "
    "r_ill r_ill_gradient r_ill_theta_gradient",
    "condnum.theory.steps": "well_step well_spectrum_step well_step_bound ill_step "
    "ill_spectrum_step ill_step_bound",
    "condnum.methods.problem": "ImmunizationProblem",
    "condnum.methods": "ImmunizationResult DescentSettings NAMED_SETTINGS immunize "
    "method_names get_method register",
    "condnum.probing": "ProbeCurve linear_probe",
    "condnum.data": "TaskPair digit_pair load_diabetes_tasks load_house_prices "
    "load_mnist_images load_small_digits",
    "condnum.errors": "CondnumError",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOME)


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
