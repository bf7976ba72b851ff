"""Algorithm 1, its baselines and its controls: one registry, one loop."""

from condnum.methods.method import Gradients, Method
from condnum.methods.nets import NetPart, NetStep
from condnum.methods.registry import (
    get_method,
    immunize,
    method_names,
)
from condnum.methods.result import ImmunizationResult, Progress
from condnum.methods.settings import PRESETS, DescentSettings

__all__ = [
    "PRESETS",
    "DescentSettings",
    "Gradients",
    "ImmunizationResult",
    "Method",
    "NetPart",
    "NetStep",
    "Progress",
    "get_method",
    "immunize",
    "method_names",
]
