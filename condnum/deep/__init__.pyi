# isort: skip_file
# For editors and type checkers; `__init__.py` imports these names when they are used.
from condnum.deep.backbone import (
    Backbone as Backbone,
    save_backbone as save_backbone,
    load_backbone as load_backbone,
)
from condnum.data.images import ImageData as ImageData, open_images as open_images, as_images as as_images
from condnum.deep.transforms import (
    ImageTransform as ImageTransform,
    evaluation_transform as evaluation_transform,
)
from condnum.deep.features import ImageFeatures as ImageFeatures
from condnum.deep.training.immunization import (
    immunize_backbone as immunize_backbone,
    DeepImmunization as DeepImmunization,
)
from condnum.deep.training.settings import DeepSettings as DeepSettings
from condnum.deep.methods import NetPart as NetPart, NetStep as NetStep
from condnum.deep.rir import (
    RirEstimate as RirEstimate,
    RirTheta0 as RirTheta0,
    rir_from_features as rir_from_features,
    rir_theta0 as rir_theta0,
)
from condnum.deep.attacks.attackers import DeepBudget as DeepBudget
from condnum.deep.attacks.report import (
    DeepAttackReport as DeepAttackReport,
    deep_attack_panel as deep_attack_panel,
)
from condnum.deep.attacks.target import Pixels as Pixels, load_pixels as load_pixels
