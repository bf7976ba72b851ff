"""Weights on disk: read safely, fitted whole, named where they do not fit."""

import argparse
import json
import re

import pytest
import safetensors
import timm
import torch
from safetensors.torch import load_file, save_file

import condnum
from condnum.deep import Backbone, load_backbone, save_backbone
from condnum.errors import DataFormatError, DataNotFoundError, OutputError


def resnet(**options):
    return Backbone("test_resnet", **{"num_classes": 5, **options})


@pytest.fixture
def saved(tmp_path):
    """A backbone of seed 3, as plain state dicts in both formats."""
    backbone = resnet(seed=3)
    state = backbone.model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"epoch": 7, "state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "c.pt")
    return tmp_path, backbone


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "old.pt", "c.pt"])
def test_files_load_but_do_not_say_what_they_hold(saved, name):
    folder, backbone = saved
    assert resnet(pretrained=folder / name).checksum == backbone.checksum != resnet().checksum
    with pytest.raises(DataFormatError, match="does not record the name"):
        load_backbone(folder / name)


@pytest.mark.parametrize(
    ("entry", "prefix"),
    [
        *(("", prefix) for prefix in ("net.", "module.", "_orig_mod.")),
        *((entry, "") for entry in ("teacher", "model_state_dict")),
        ("state_dict", "model.backbone."),
        ("checkpoint.model_state_dict", "module._orig_mod."),
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weights_below_a_prefix_or_in_an_entry(saved, entry, prefix, suffix):
    folder, backbone = saved
    state = {prefix + key: value for key, value in backbone.model.state_dict().items()}
    if suffix == "safetensors":
        save_file(
            {".".join(filter(None, [entry, key])): value for key, value in state.items()},
            folder / "f.safetensors",
        )
    else:
        content = {**state, "n_averaged": torch.tensor(3)} if prefix == "module." else state
        for name in reversed(entry.split(".") if entry else []):
            options = argparse.Namespace(lr=0.1)
            content = {
                name: content,
                "epoch": 7,
                "args": options,
                "optimizer": {"state": {0: torch.zeros(3)}},
            }
        torch.save(content, folder / "f.pt")
    assert resnet(pretrained=folder / f"f.{suffix}").checksum == backbone.checksum


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("student", "teacher"), "teacher"),
        (("model", "model_ema"), "model_ema"),
        (("ema", "state_dict"), "ema"),
    ],
)
def test_a_moving_average_goes_before_the_weights(saved, names, taken):
    folder, backbone = saved
    states = {
        name: {f"module.backbone.{k}": v for k, v in resnet(seed=9).model.state_dict().items()}
        for name in names
    }
    states[taken] = {f"module.backbone.{k}": v for k, v in backbone.model.state_dict().items()}
    states[taken]["module.head.mlp.0.weight"] = torch.zeros(2, 2)  # of the training alone
    torch.save(states, folder / "two.pt")
    assert resnet(pretrained=folder / "two.pt").checksum == backbone.checksum


def test_files_from_which_no_weights_can_be_taken_say_what_they_hold(saved):
    folder, backbone = saved
    state = backbone.model.state_dict()

    def refused(content, message):
        torch.save(content, folder / "bad.pt")
        with pytest.raises(DataFormatError, match=message):
            resnet(pretrained=folder / "bad.pt")

    twice = {f"module.encoder_{which}.{key}": value for which in "kq" for key, value in state.items()}
    refused(twice, r"more than once, below 'module\.encoder_k\.', 'module\.encoder_q\.'; save")
    refused(
        {f"net.{key}": value for key, value in state.items() if "layer4" not in key},
        r"begin with 'net\.'.*Missing",
    )
    refused({f"trunk.stem.{key}x": value for key, value in state.items()}, r"keys that begin with 'trunk\.'")
    refused(
        {"epoch": 3, "optimizer": {"lr": 0.1}},
        "not a state dict of tensors: its entries are epoch, optimizer",
    )
    refused({}, "it is empty")
    refused([torch.zeros(2)], "holds a list")
    itself = {"epoch": 3}
    itself["again"] = itself
    refused(itself, "its entries are epoch, again")


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


def test_mistakes_list_every_kind_of_key(saved):
    folder, backbone = saved
    state = dict(backbone.model.state_dict())
    del state["bn1.weight"]
    state["extra.weight"] = torch.zeros(1)
    save_file(state, folder / "bad.safetensors")
    with pytest.raises(DataFormatError, match=r"bad\.safetensors do not fit.*num_classes") as caught:
        resnet(pretrained=folder / "bad.safetensors", num_classes=7)
    for kind in (
        'Missing.*"bn1.weight"',
        'Unexpected.*"extra.weight"',
        "mismatch for fc.weight.*5, 96.*7, 96",
    ):
        assert re.search(kind, str(caught.value))


def test_a_new_classifier_keeps_the_trunk(saved):
    folder, backbone = saved
    fresh = resnet(pretrained=folder / "w.safetensors", classifier="new", num_classes=7)
    assert fresh.num_classes == 7
    assert torch.equal(fresh.model.layer4[0].conv1.weight, backbone.model.layer4[0].conv1.weight)
    same = resnet(pretrained=folder / "w.safetensors", classifier="new")
    assert not torch.equal(same.head.weight, backbone.head.weight)


@pytest.mark.parametrize("fault", [RuntimeError("No pretrained weights exist"), OSError("no route to host")])
def test_weights_that_are_not_to_be_had(monkeypatch, tmp_path, fault):
    def create_model(*_, **__):
        raise fault

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(DataNotFoundError, match=r"no weights at .*nothing\.safetensors"):
        resnet(pretrained=tmp_path / "nothing.safetensors")  # before the model is made
    with pytest.raises(DataNotFoundError, match=f"weights of test_resnet .*{fault}.*--weights FILE"):
        resnet(pretrained=True)
