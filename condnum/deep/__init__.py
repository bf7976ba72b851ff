"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0, probes and attacks.

Names are imported when they are first used; timm, torchvision and safetensors come with the extra
`deep` and are needed only where a function says so.
"""

# ruff: file-ignore[non-empty-init-module, unused-import] - the names are resolved lazily

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condnum.deep.adapters import add_lora
    from condnum.deep.attack_panel import DeepAttacker, DeepBudget
    from condnum.deep.attack_report import DeepAttackReport, deep_attack_panel
    from condnum.deep.attack_target import Pixels, load_pixels
    from condnum.deep.backbone import Backbone, load_backbone, save_backbone
    from condnum.deep.features import ImageFeatures, cached_features, extract_features, head_accuracy
    from condnum.deep.gauss_newton import Curvature, GradientSpectrum, curvature, gradient_spectrum
    from condnum.deep.image_sets import open_images
    from condnum.deep.images import ImageBatch, ImageData, Unreadable, image_loader
    from condnum.deep.pretraining import Pretraining, pretrain_backbone
    from condnum.deep.probe import ConvexProbe, ProbeAccuracy, convex_probe, probe_accuracy
    from condnum.deep.regularizers import (
        PreconditionedIdentity,
        feature_r_ill,
        feature_r_well,
        feature_rtol,
        precondition_gradient,
    )
    from condnum.deep.rir import RirEstimate, RirTheta0, rir_from_features, rir_theta0
    from condnum.deep.training.immunization import DeepImmunization, immunize_backbone
    from condnum.deep.training.settings import DeepSettings, deep_preset, deep_preset_names
    from condnum.deep.transforms import ImageTransform, evaluation_transform, training_transform

_HOMES = {
    "backbone": "Backbone save_backbone load_backbone",
    "regularizers": "feature_r_well feature_r_ill feature_rtol PreconditionedIdentity precondition_gradient",
    "images": "ImageData Unreadable ImageBatch image_loader",
    "image_sets": "open_images",
    "transforms": "ImageTransform evaluation_transform training_transform",
    "features": "ImageFeatures extract_features cached_features head_accuracy",
    "pretraining": "pretrain_backbone Pretraining",
    "training.immunization": "immunize_backbone DeepImmunization",
    "training.settings": "DeepSettings deep_preset deep_preset_names",
    "rir": "RirEstimate RirTheta0 rir_from_features rir_theta0",
    "gauss_newton": "Curvature GradientSpectrum curvature gradient_spectrum",
    "adapters": "add_lora",
    "attack_panel": "DeepAttacker DeepBudget",
    "attack_report": "DeepAttackReport deep_attack_panel",
    "attack_target": "Pixels load_pixels",
    "probe": "ProbeAccuracy probe_accuracy ConvexProbe convex_probe",
}
_HOME = {name: f"condnum.deep.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'condnum.deep' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*globals(), *_HOME])
