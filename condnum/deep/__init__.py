"""Deep nets (Sec. 5.2): a net and its images, immunization, RIR_θ0 and what later papers measure, attacks.

timm, torchvision and safetensors come with the extra `deep` and are needed only where a function says so.
"""

from condnum.data.images import ImageData, as_images, open_images
from condnum.deep.attack import Attack, Target, attack
from condnum.deep.measure import RirEstimate, RirTheta0, rfd, rir_from_features, rir_theta0, sgrc
from condnum.deep.methods import NetPart, NetStep
from condnum.deep.net import Backbone, load_backbone, save_backbone
from condnum.deep.samples import ImageFeatures, ImageTransform, Samples, evaluation_transform
from condnum.deep.train import DeepImmunization, DeepSettings, immunize_backbone

__all__ = [
    "Backbone",
    "save_backbone",
    "load_backbone",
    "ImageData",
    "open_images",
    "as_images",
    "ImageTransform",
    "evaluation_transform",
    "Samples",
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
    "sgrc",
    "rfd",
    "Target",
    "Attack",
    "attack",
]
