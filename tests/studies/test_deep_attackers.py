"""The panel of deep attacks as a study: models made or given, resume, tables, what it refuses."""

import dataclasses

import pytest
from studies.test_deep_nets import SHORT_NETS

from condnum.deep import Backbone, save_backbone
from condnum.errors import InvalidInputError
from condnum.studies.deep_attackers import DeepAttackers

SHORT = DeepAttackers(
    "embedded",
    epochs=6,
    attackers=("head-sgd", "ridge", "trunk", "fresh-ridge", "stage-adamw"),
    shots=(6, 0),
    steps=12,
    trials=2,
    test_images=60,
    **SHORT_NETS,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run with its store."""
    folder = tmp_path_factory.mktemp("attacks")
    run = SHORT.run(out=folder, jobs=1)
    run.save(folder)
    return run, folder


class TestRun:
    def test_fresh_images_are_none_of_those_that_immunization_took(self):
        data = SHORT.load()
        fresh = SHORT.unused(data)
        assert not set(fresh.positions) & set(data.harmful.positions)
        assert fresh.counts == data.harmful.counts
        assert fresh.split == "train"

    def test_models_of_a_folder_are_attacked_alike(self, finished, tmp_path):
        run, folder = finished
        given = dataclasses.replace(SHORT, models=str(folder), methods=(), attackers=("ridge",)).run(
            out=tmp_path, jobs=1
        )
        columns = ["net", "shots", "final_accuracy", "pretrain_accuracy"]
        mine = run.tables["results"].query("attacker == 'ridge'")[columns].reset_index(drop=True)
        assert given.tables["results"][columns].reset_index(drop=True).equals(mine)
        assert not list(tmp_path.glob("*.safetensors"))

    def test_a_single_pair_without_notes(self, tmp_path):
        for name, seed in (("theta_0", 0), ("theta_I", 1)):
            save_backbone(Backbone("test_resnet", num_classes=5, seed=seed), tmp_path / f"{name}.safetensors")
        study = dataclasses.replace(SHORT, models=str(tmp_path), methods=(), attackers=("ridge",), shots=(6,))
        run = study.run(jobs=1)
        assert set(run.tables["results"]["net"]) == {"theta_0", "theta_i", "scratch"}
        with pytest.raises(InvalidInputError, match="no image is known to be fresh"):
            dataclasses.replace(study, attackers=("ridge", "fresh-ridge")).load()
