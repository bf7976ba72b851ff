"""Algorithm 1, its baselines and its controls: one file a method, one registry, one loop."""

from condnum.methods.descent import Callback
from condnum.methods.imma import ImmaSettings
from condnum.methods.method import History, ImmunizationResult, Progress
from condnum.methods.opt_kappa import OptKappaSettings
from condnum.methods.registry import (
    descends_in_batches,
    get_method,
    immunize,
    immunize_batch,
    method_names,
    register,
    uses_seed,
)
from condnum.methods.settings import NAMED_SETTINGS, DescentSettings

__all__ = [
    "NAMED_SETTINGS",
    "Callback",
    "DescentSettings",
    "History",
    "ImmaSettings",
    "ImmunizationResult",
    "OptKappaSettings",
    "Progress",
    "descends_in_batches",
    "get_method",
    "immunize",
    "immunize_batch",
    "method_names",
    "register",
    "uses_seed",
]
