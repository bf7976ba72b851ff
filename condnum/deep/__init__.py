"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0, probes and attacks.

timm, torchvision and safetensors come with the extra `deep` and are needed only where a function says so.
"""

from condnum.data.images import ImageData, as_images, open_images
from condnum.deep.attacks.attackers import DeepBudget
from condnum.deep.attacks.report import DeepAttackReport, deep_attack_panel
from condnum.deep.attacks.target import Pixels, load_pixels
from condnum.deep.backbone import Backbone, load_backbone, save_backbone
from condnum.deep.features import ImageFeatures
from condnum.deep.methods import NetPart, NetStep
from condnum.deep.rir import RirEstimate, RirTheta0, rir_from_features, rir_theta0
from condnum.deep.training.immunization import DeepImmunization, immunize_backbone
from condnum.deep.training.settings import DeepSettings
from condnum.deep.transforms import ImageTransform, evaluation_transform

__all__ = [
    "Backbone",
    "save_backbone",
    "load_backbone",
    "ImageData",
    "open_images",
    "as_images",
    "ImageTransform",
    "evaluation_transform",
    "ImageFeatures",
    "immunize_backbone",
    "DeepImmunization",
    "DeepSettings",
    "NetPart",
    "NetStep",
    "RirEstimate",
    "RirTheta0",
    "rir_from_features",
    "rir_theta0",
    "DeepBudget",
    "DeepAttackReport",
    "deep_attack_panel",
    "Pixels",
    "load_pixels",
]
