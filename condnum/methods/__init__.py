"""Algorithm 1, its baselines and its controls: one registry, one loop, for one problem or many."""

from condnum.methods.baselines import ImmaSettings, OptKappaSettings
from condnum.methods.method import ClosedFormMethod, DescentMethod
from condnum.methods.registry import (
    descends_in_batches,
    get_method,
    immunize,
    immunize_batch,
    method_names,
    register_method,
    uses_seed,
)
from condnum.methods.result import ImmunizationResult, Progress
from condnum.methods.settings import PRESETS, DescentSettings, SelfTunedSettings

__all__ = [
    "PRESETS",
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
    "register_method",
    "uses_seed",
]
