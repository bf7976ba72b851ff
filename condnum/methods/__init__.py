"""Algorithm 1, its baselines, controls and closed forms: one dict, one loop."""

from condnum.methods.descent import PRESETS, DescentSettings, ImmunizationResult, Progress
from condnum.methods.immunization import METHODS, get_method, immunize, method_names
from condnum.methods.method import Gradients, Method, random_start
from condnum.methods.problem import ImmunizationProblem

__all__ = [
    "METHODS",
    "PRESETS",
    "DescentSettings",
    "Gradients",
    "ImmunizationProblem",
    "ImmunizationResult",
    "Method",
    "Progress",
    "get_method",
    "immunize",
    "method_names",
    "random_start",
]
