"""Options of the notebook and the command: the embedded example, and a backbone with images."""

import pytest

from condnum.audit import FeatureAudit
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
def test_features_of_a_backbone(monkeypatch, tmp_path):
    pytest.importorskip("timm", reason="needs timm: pip install 'condnum[deep]'")
    monkeypatch.setattr("condnum.audit.study.user_cache", lambda: tmp_path)
    study = FeatureAudit(
        backbone="test_resnet", pretrain_images="digits-8x8:0-1", harmful_images="digits-8x8:8-9"
    )
    found = study.load()
    assert found.pretrain.dimension == found.harmful.dimension > 1
    assert found.harmful.count == len(found.targets)
    assert sorted(set(found.targets.tolist())) == [0, 1]
