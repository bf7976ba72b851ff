"""condnum: model immunization from a condition-number perspective.

The public names of the library core; everything here needs NumPy, SciPy, pandas, torch and
scikit-learn alone. Figures, notebooks, deep nets and clusters live in `condnum.plots`,
`condnum.report`, … behind extras.
"""

from condnum.alignment import Alignment, alignment
from condnum.ceiling import RirCeiling, optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.data import (
    TaskPair,
    digit_pair,
    load_diabetes_tasks,
    load_house_prices,
    load_mnist_images,
    load_small_digits,
)
from condnum.errors import CondnumError
from condnum.immunization import Immunization, relative_immunization_ratio
from condnum.immunize import (
    DescentSettings,
    ImmunizationResult,
    get_method,
    immunize,
    method_names,
    register,
)
from condnum.probing import ProbeCurve, linear_probe
from condnum.regularizers import (
    RegularizerGradient,
    ill_spectrum_step,
    ill_step,
    ill_step_bound,
    r_ill,
    r_ill_gradient,
    r_ill_theta_gradient,
    r_well,
    r_well_gradient,
    r_well_theta_gradient,
    well_spectrum_step,
    well_step,
    well_step_bound,
)
from condnum.spectra import ConditionNumber, condition_number, covariance, hessian
from condnum.tasks import ImmunizationProblem

__version__ = "0.1.0"

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
