# isort: skip_file
# The public names by topic, for type checkers and editors; `__init__.py` imports them when they are used.
from condnum.theory.spectra import ConditionNumber as ConditionNumber
from condnum.theory.spectra import condition_number as condition_number
from condnum.theory.spectra import covariance as covariance
from condnum.theory.spectra import hessian as hessian
from condnum.theory.immunization import Immunization as Immunization
from condnum.theory.immunization import relative_immunization_ratio as relative_immunization_ratio
from condnum.theory.alignment import Alignment as Alignment
from condnum.theory.alignment import alignment as alignment
from condnum.theory.ceiling import RirCeiling as RirCeiling
from condnum.theory.ceiling import rir_ceiling as rir_ceiling
from condnum.theory.ceiling import ridge_convention_ceiling as ridge_convention_ceiling
from condnum.theory.ceiling import max_rir_immunizer as max_rir_immunizer
from condnum.theory.pareto import pareto_immunizer as pareto_immunizer
from condnum.theory.regularizers import RegularizerGradient as RegularizerGradient
from condnum.theory.regularizers import r_well as r_well
from condnum.theory.regularizers import r_well_gradient as r_well_gradient
from condnum.theory.regularizers import r_ill as r_ill
from condnum.theory.regularizers import r_ill_gradient as r_ill_gradient
from condnum.theory.steps import well_step as well_step
from condnum.theory.steps import well_spectrum_step as well_spectrum_step
from condnum.theory.steps import well_step_bound as well_step_bound
from condnum.theory.steps import ill_step as ill_step
from condnum.theory.steps import ill_spectrum_step as ill_spectrum_step
from condnum.theory.steps import ill_step_bound as ill_step_bound
from condnum.methods.problem import ImmunizationProblem as ImmunizationProblem
from condnum.methods import ImmunizationResult as ImmunizationResult
from condnum.methods import DescentSettings as DescentSettings
from condnum.methods import PRESETS as PRESETS
from condnum.methods import immunize as immunize
from condnum.methods import method_names as method_names
from condnum.methods import get_method as get_method
from condnum.methods import register_method as register_method
from condnum.probing import ProbeCurve as ProbeCurve
from condnum.probing import linear_probe as linear_probe
from condnum.data import TaskPair as TaskPair
from condnum.data import digit_pair as digit_pair
from condnum.data import load_diabetes_tasks as load_diabetes_tasks
from condnum.data import load_house_prices as load_house_prices
from condnum.data import load_mnist_images as load_mnist_images
from condnum.data import load_small_digits as load_small_digits
from condnum.errors import CondnumError as CondnumError

__version__: str
