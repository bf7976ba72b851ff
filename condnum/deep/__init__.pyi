# isort: skip_file
# The public names by topic, for type checkers and editors; `__init__.py` imports them when they are used.
from condnum.deep.backbone import Backbone as Backbone
from condnum.deep.backbone import save_backbone as save_backbone
from condnum.deep.backbone import load_backbone as load_backbone
from condnum.deep.images import ImageData as ImageData
from condnum.deep.image_sets import open_images as open_images
from condnum.deep.transforms import ImageTransform as ImageTransform
from condnum.deep.transforms import evaluation_transform as evaluation_transform
from condnum.deep.features import ImageFeatures as ImageFeatures
from condnum.deep.training.immunization import immunize_backbone as immunize_backbone
from condnum.deep.training.immunization import DeepImmunization as DeepImmunization
from condnum.deep.training.settings import DeepSettings as DeepSettings
from condnum.deep.rir import RirEstimate as RirEstimate
from condnum.deep.rir import RirTheta0 as RirTheta0
from condnum.deep.rir import rir_from_features as rir_from_features
from condnum.deep.rir import rir_theta0 as rir_theta0
from condnum.deep.attack_kinds import DeepBudget as DeepBudget
from condnum.deep.attack_report import DeepAttackReport as DeepAttackReport
from condnum.deep.attack_report import deep_attack_panel as deep_attack_panel
from condnum.deep.attack_target import Pixels as Pixels
from condnum.deep.attack_target import load_pixels as load_pixels
