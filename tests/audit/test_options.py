"""Options of the notebook and the command: the embedded example, and a backbone with images."""

import pytest

from condnum.audit import FeatureAudit, backbone_features
from condnum.errors import InvalidInputError


def test_without_files_the_embedded_digits_are_audited():
    study = FeatureAudit(bootstrap=0, attackers=False)
    found = study.found(study.run().cells)
    assert (found.pretrain.rows, found.harmful.rows, found.pretrain.dimension) == (901, 896, 64)
    assert found.clause_c["optimal"].kept


def test_files_and_a_backbone_exclude_each_other():
    images = {"backbone": "test_resnet", "pretrain_images": "a", "harmful_images": "b"}
    with pytest.raises(InvalidInputError, match="not both"):
        FeatureAudit(pretrain="P.npy", harmful="H.npy", **images)
    with pytest.raises(InvalidInputError, match="belong together"):
        FeatureAudit(backbone="test_resnet")


@pytest.mark.slow
def test_features_of_a_backbone():
    pytest.importorskip("timm", reason="needs timm: pip install 'condnum[deep]'")
    found = backbone_features("test_resnet", "digits-8x8:0-4", "digits-8x8:5-9", limit=4)
    assert (found.pretrain.count, found.harmful.count) == (20, 20)
    assert found.pretrain.dimension == found.harmful.dimension > 1
    assert sorted(set(found.harmful_labels.tolist())) == [0, 1, 2, 3, 4]
