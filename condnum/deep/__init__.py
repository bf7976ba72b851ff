"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0 and linear probes on features.

Names are imported when they are first used; timm, torchvision and safetensors come with the extra
`deep` and are needed only where a function says so.
"""

# ruff: file-ignore[non-empty-init-module] - the names are resolved lazily

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condnum.deep.accuracy import head_accuracy
    from condnum.deep.backbone import Backbone
    from condnum.deep.backbone_file import load_backbone, save_backbone
    from condnum.deep.convex import ConvexProbe, convex_probe
    from condnum.deep.feature_cache import cached_features
    from condnum.deep.feature_regularizers import feature_r_ill, feature_r_well, feature_rtol
    from condnum.deep.features import Features, extract_features
    from condnum.deep.image_batches import ImageBatch, image_loader
    from condnum.deep.image_data import ImageData, Unreadable
    from condnum.deep.image_names import open_images
    from condnum.deep.preconditioned_identity import PreconditionedIdentity, precondition_gradient
    from condnum.deep.pretraining import Pretraining, pretrain_backbone
    from condnum.deep.probe import ProbeAccuracy, probe_accuracy
    from condnum.deep.rir import RirEstimate, RirTheta0, rir_from_features, rir_theta0
    from condnum.deep.split_rules import Split, SplitRule, register_split_rule, split_choices
    from condnum.deep.training.immunization import immunize_backbone
    from condnum.deep.training.presets import deep_preset, deep_preset_names
    from condnum.deep.training.result import DeepImmunization
    from condnum.deep.training.settings import DeepSettings
    from condnum.deep.transforms import ImageTransform, evaluation_transform, training_transform

_HOMES = {
    "condnum.deep.backbone": ["Backbone"],
    "condnum.deep.backbone_file": ["load_backbone", "save_backbone"],
    "condnum.deep.convex": ["ConvexProbe", "convex_probe"],
    "condnum.deep.feature_cache": ["cached_features"],
    "condnum.deep.feature_regularizers": ["feature_r_ill", "feature_r_well", "feature_rtol"],
    "condnum.deep.features": ["Features", "extract_features"],
    "condnum.deep.image_data": ["ImageData", "Unreadable"],
    "condnum.deep.image_batches": ["ImageBatch", "image_loader"],
    "condnum.deep.image_names": ["open_images"],
    "condnum.deep.preconditioned_identity": ["PreconditionedIdentity", "precondition_gradient"],
    "condnum.deep.accuracy": ["head_accuracy"],
    "condnum.deep.pretraining": ["Pretraining", "pretrain_backbone"],
    "condnum.deep.probe": ["ProbeAccuracy", "probe_accuracy"],
    "condnum.deep.rir": ["RirEstimate", "RirTheta0", "rir_from_features", "rir_theta0"],
    "condnum.deep.split_rules": [
        "Split",
        "SplitRule",
        "register_split_rule",
        "split_choices",
    ],
    "condnum.deep.training.immunization": ["immunize_backbone"],
    "condnum.deep.training.presets": ["deep_preset", "deep_preset_names"],
    "condnum.deep.training.result": ["DeepImmunization"],
    "condnum.deep.training.settings": ["DeepSettings"],
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
