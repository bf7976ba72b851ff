"""Algorithm 1, its baselines and its controls: one registry, one loop, for one problem or many."""

from condnum.methods.baselines import ImmaSettings, OptKappaSettings
from condnum.methods.method import (
    NAMED_SETTINGS,
    DescentSettings,
    ImmunizationResult,
    Progress,
    SelfTunedSettings,
)
from condnum.methods.registry import (
    descends_in_batches,
    get_method,
    immunize,
    immunize_batch,
    method_names,
    register,
    uses_seed,
)

__all__ = [
    "NAMED_SETTINGS",
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
