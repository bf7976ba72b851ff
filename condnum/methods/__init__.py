"""Algorithm 1, its baselines and its controls: one file a method, one registry, one loop."""

from condnum.methods.descent import Callback
from condnum.methods.imma import ImmaSettings
from condnum.methods.opt_kappa import OptKappaSettings
from condnum.methods.registry import get_method, immunize, method_names, register
from condnum.methods.result import History, ImmunizationResult, Progress
from condnum.methods.settings import DescentSettings

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
