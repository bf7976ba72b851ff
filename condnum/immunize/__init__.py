"""Algorithm 1, its baselines and its controls: one file a method, one registry, one loop."""

from condnum.immunize.descent import Callback
from condnum.immunize.imma import ImmaSettings
from condnum.immunize.opt_kappa import OptKappaSettings
from condnum.immunize.registry import get_method, immunize, method_names, register
from condnum.immunize.result import History, ImmunizationResult, Progress
from condnum.immunize.settings import DescentSettings

__all__ = [
    "Callback",
    "DescentSettings",
    "History",
    "ImmaSettings",
    "ImmunizationResult",
    "OptKappaSettings",
    "Progress",
    "get_method",
    "immunize",
    "method_names",
    "register",
]
