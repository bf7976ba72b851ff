"""Algorithm 1, its baselines and its controls: one registry, one loop, for one problem or many."""

from condnum.methods.baselines import ImmaSettings, OptKappaSettings
from condnum.methods.method import ClosedFormMethod, DescentMethod
from condnum.methods.registry import (
    descends_in_batches,
    get_method,
    immunize,
    immunize_batch,
    method_names,
    register,
    uses_seed,
)
from condnum.methods.result import ImmunizationResult, Progress
from condnum.methods.settings import NAMED_SETTINGS, DescentSettings, SelfTunedSettings

__all__ = [
    "NAMED_SETTINGS",
    "ClosedFormMethod",
    "DescentMethod",
    "DescentSettings",
    "ImmaSettings",
    "ImmunizationResult",
    "OptKappaSettings",
    "Progress",
    "SelfTunedSettings",
    "descends_in_batches",
    "get_method",
    "immunize",
    "immunize_batch",
    "method_names",
    "register",
    "uses_seed",
]
