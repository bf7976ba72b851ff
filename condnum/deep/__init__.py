"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0, probes and attacks.

timm, torchvision and safetensors come with the extra `deep` and are needed only where a function says so.
"""

from condnum.lazy import attach

__all__, __getattr__, __dir__ = attach(
    __name__,
    {
        "Backbone": "condnum.deep.backbone",
        "save_backbone": "condnum.deep.backbone",
        "load_backbone": "condnum.deep.backbone",
        "ImageData": "condnum.deep.images",
        "open_images": "condnum.deep.image_sets",
        "as_images": "condnum.deep.image_sets",
        "ImageTransform": "condnum.deep.transforms",
        "evaluation_transform": "condnum.deep.transforms",
        "ImageFeatures": "condnum.deep.features",
        "immunize_backbone": "condnum.deep.training.immunization",
        "DeepImmunization": "condnum.deep.training.immunization",
        "DeepSettings": "condnum.deep.training.settings",
        "NetPart": "condnum.deep.methods",
        "NetStep": "condnum.deep.methods",
        "RirEstimate": "condnum.deep.rir",
        "RirTheta0": "condnum.deep.rir",
        "rir_from_features": "condnum.deep.rir",
        "rir_theta0": "condnum.deep.rir",
        "DeepBudget": "condnum.deep.attacks.attackers",
        "DeepAttackReport": "condnum.deep.attacks.report",
        "deep_attack_panel": "condnum.deep.attacks.report",
        "Pixels": "condnum.deep.attacks.target",
        "load_pixels": "condnum.deep.attacks.target",
    },
)
