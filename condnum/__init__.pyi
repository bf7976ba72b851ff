# isort: skip_file
# For editors and type checkers; `__init__.py` imports these names when they are used.
from condnum.estimators import Immunizer as Immunizer, Eraser as Eraser
from condnum.auditing.audit import audit as audit
from condnum.experiments.referee import referee as referee
from condnum.auditing.depth import layer_audit as layer_audit
from condnum.auditing.depth import insert_extractor as insert_extractor
from condnum.probing.panel import attack_panel as attack_panel
from condnum.probing.probe import linear_probe as linear_probe
from condnum.probing.probe import probe_steps as probe_steps
from condnum.theory.task import Task as Task
from condnum.theory.kappa import (
    covariance as covariance,
    hessian as hessian,
    condition_number as condition_number,
    relative_immunization_ratio as relative_immunization_ratio,
)
from condnum.theory.alignment import alignment as alignment
from condnum.theory.limits import (
    rir_limit as rir_limit,
    max_rir_immunizer as max_rir_immunizer,
    pareto_immunizer as pareto_immunizer,
)
from condnum.theory.erasure import erasure as erasure, erasure_price as erasure_price
from condnum.theory.regularizers import (
    r_well as r_well,
    r_well_gradient as r_well_gradient,
    r_ill as r_ill,
    r_ill_gradient as r_ill_gradient,
    well_step as well_step,
    ill_step as ill_step,
)
from condnum.methods.problem import ImmunizationProblem as ImmunizationProblem
from condnum.methods.immunization import (
    immunize as immunize,
    method_names as method_names,
    get_method as get_method,
)
from condnum.methods.descent import DescentSettings as DescentSettings, PRESETS as PRESETS
from condnum.methods.method import Method as Method
from condnum.data import (
    TaskPair as TaskPair,
    digit_pair as digit_pair,
    load_house_prices as load_house_prices,
    load_diabetes_tasks as load_diabetes_tasks,
    load_mnist_images as load_mnist_images,
    load_small_digits as load_small_digits,
)
from condnum.errors import CondnumError as CondnumError

__version__: str
