"""R_well and R_ill: values, gradients, preconditioned steps and their step-size bounds.

`R_well` (Eq. 3) lowers a condition number, `R_ill` (Eq. 12) raises one. Both are differentiable
where the extreme singular value is unique, and neither is invariant to scale.
"""

from condnum.regularizers.bounds import BoundSource, ill_step_bound, well_step_bound
from condnum.regularizers.ill import r_ill, r_ill_gradient, r_ill_theta_gradient
from condnum.regularizers.pairs import (
    ill_gradient_from_pair,
    r_ill_from_pair,
    r_well_from_pair,
    well_gradient_from_pair,
)
from condnum.regularizers.result import RegularizerGradient
from condnum.regularizers.steps import ill_spectrum_step, ill_step, well_spectrum_step, well_step
from condnum.regularizers.well import r_well, r_well_gradient, r_well_theta_gradient

__all__ = [
    "RegularizerGradient",
    "r_well",
    "r_well_gradient",
    "r_well_theta_gradient",
    "r_ill",
    "r_ill_gradient",
    "r_ill_theta_gradient",
    "well_step",
    "well_spectrum_step",
    "well_step_bound",
    "ill_step",
    "ill_spectrum_step",
    "ill_step_bound",
    "BoundSource",
    "r_well_from_pair",
    "well_gradient_from_pair",
    "r_ill_from_pair",
    "ill_gradient_from_pair",
]
