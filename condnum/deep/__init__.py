"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0 and linear probes on features.

Names are imported when they are first used; timm, torchvision and safetensors come with the extra
`deep` and are needed only where a function says so.
"""

# ruff: file-ignore[non-empty-init-module] - the names are resolved lazily

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condnum.deep.backbone import Backbone, load_backbone, save_backbone
    from condnum.deep.features import Features, cached_features, extract_features, head_accuracy
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
    from condnum.deep.split_rules import Split, SplitRule, register_split_rule, split_choices
    from condnum.deep.training.immunization import DeepImmunization, immunize_backbone
    from condnum.deep.training.settings import DeepSettings, deep_preset, deep_preset_names
    from condnum.deep.transforms import ImageTransform, evaluation_transform, training_transform

_HOMES = {
    "condnum.deep.backbone": ["Backbone", "load_backbone", "save_backbone"],
    "condnum.deep.probe": ["ConvexProbe", "convex_probe", "ProbeAccuracy", "probe_accuracy"],
    "condnum.deep.features": ["cached_features", "Features", "extract_features", "head_accuracy"],
    "condnum.deep.regularizers": [
        "feature_r_ill",
        "feature_r_well",
        "feature_rtol",
        "PreconditionedIdentity",
        "precondition_gradient",
    ],
    "condnum.deep.images": ["ImageData", "Unreadable", "ImageBatch", "image_loader"],
    "condnum.deep.image_sets": ["open_images"],
    "condnum.deep.pretraining": ["Pretraining", "pretrain_backbone"],
    "condnum.deep.rir": ["RirEstimate", "RirTheta0", "rir_from_features", "rir_theta0"],
    "condnum.deep.split_rules": ["Split", "SplitRule", "register_split_rule", "split_choices"],
    "condnum.deep.training.immunization": ["DeepImmunization", "immunize_backbone"],
    "condnum.deep.training.settings": ["deep_preset", "deep_preset_names", "DeepSettings"],
    "condnum.deep.transforms": ["ImageTransform", "evaluation_transform", "training_transform"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    # backbones
    "Backbone",
    "save_backbone",
    "load_backbone",
    "Split",
    "SplitRule",
    "register_split_rule",
    "split_choices",
    # regularizers on features
    "feature_r_well",
    "feature_r_ill",
    "feature_rtol",
    "PreconditionedIdentity",
    "precondition_gradient",
    # images
    "ImageData",
    "Unreadable",
    "open_images",
    "ImageBatch",
    "image_loader",
    "ImageTransform",
    "evaluation_transform",
    "training_transform",
    # features
    "Features",
    "extract_features",
    "cached_features",
    # θ₀ and its accuracy
    "pretrain_backbone",
    "Pretraining",
    "head_accuracy",
    # immunization (Eq. 11)
    "immunize_backbone",
    "DeepImmunization",
    "DeepSettings",
    "deep_preset",
    "deep_preset_names",
    # Eq. 17 and Fig. 3
    "RirEstimate",
    "RirTheta0",
    "rir_from_features",
    "rir_theta0",
    "ProbeAccuracy",
    "probe_accuracy",
    "ConvexProbe",
    "convex_probe",
]


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
