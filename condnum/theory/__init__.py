"""Tasks, condition numbers, alignment, regularizers, limits, erasure; no files."""

from condnum.theory.alignment import Alignment
from condnum.theory.erasure import Erasure
from condnum.theory.kappa import Clauses, ConditionNumber, Immunization
from condnum.theory.limits import RirLimit, ridge_convention_limit
from condnum.theory.regularizers import (
    RegularizerGradient,
    ill_spectrum_step,
    ill_step_bound,
    well_spectrum_step,
    well_step_bound,
)
from condnum.theory.task import Features, Task

__all__ = [
    "Features",
    "Task",
    "ConditionNumber",
    "Immunization",
    "Clauses",
    "Alignment",
    "RirLimit",
    "ridge_convention_limit",
    "Erasure",
    "RegularizerGradient",
    "well_spectrum_step",
    "well_step_bound",
    "ill_spectrum_step",
    "ill_step_bound",
]
