"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0, probes and attacks.

timm, torchvision and safetensors come with the extra `deep` and are needed only where a function says so.
"""

from importlib import import_module
from typing import Any

#: The public names, by the module that each is imported from.
_HOMES = {
    "condnum.deep.backbone": ["Backbone", "save_backbone", "load_backbone"],
    "condnum.data.images": ["ImageData", "open_images", "as_images"],
    "condnum.deep.transforms": ["ImageTransform", "evaluation_transform"],
    "condnum.deep.features": ["ImageFeatures"],
    "condnum.deep.training.immunization": ["immunize_backbone", "DeepImmunization"],
    "condnum.deep.training.settings": ["DeepSettings"],
    "condnum.deep.methods": ["NetPart", "NetStep"],
    "condnum.deep.rir": ["RirEstimate", "RirTheta0", "rir_from_features", "rir_theta0"],
    "condnum.deep.attacks.attackers": ["DeepBudget"],
    "condnum.deep.attacks.report": ["DeepAttackReport", "deep_attack_panel"],
    "condnum.deep.attacks.target": ["Pixels", "load_pixels"],
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562), so that no help text waits for torch."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
