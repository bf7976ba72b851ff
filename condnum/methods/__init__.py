"""Algorithm 1, its baselines and its controls: one registry, one loop, for one problem or many."""

from condnum.methods.baselines import ImmaSettings, OptKappaSettings
from condnum.methods.method import Method
from condnum.methods.registry import (
    descends_in_batches,
    get_method,
    immunize,
    immunize_batch,
    method_names,
    register_method,
)
from condnum.methods.result import ImmunizationResult, Progress
from condnum.methods.settings import PRESETS, DescentSettings, SelfTunedSettings

__all__ = [
    "PRESETS",
    "DescentSettings",
    "ImmaSettings",
    "ImmunizationResult",
    "Method",
    "OptKappaSettings",
    "Progress",
    "SelfTunedSettings",
    "descends_in_batches",
    "get_method",
    "immunize",
    "immunize_batch",
    "method_names",
    "register_method",
]
