"""The audit along the depth: against features taken by hand, in one pass."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from condnum.auditing import LayerAudit, audit, insert_extractor, layer_audit
from condnum.auditing.depth import depth_figure
from condnum.deep import Backbone, evaluation_transform, open_images
from condnum.deep.backbone import size_arguments
from condnum.deep.images import image_loader
from condnum.deep.parts import block_names
from condnum.errors import InvalidInputError
from condnum.estimators import Eraser
from condnum.probing.panel import RAW

TASKS, SIDE = {"benign": "digits-8x8:0-4", "harmful": "digits-8x8:5-9"}, 32


def check_by_hand(row, X_P, X_H, rel=1e-4):
    """Compare a layer with the audit of features that were taken from it without `layer_audit`."""
    alone = audit(X_P, X_H, attackers=False)
    assert (row["rank_benign"], row["rank_harmful"]) == (alone.benign.rank, alone.harmful.rank)
    assert row["parameters"] == X_P.shape[1] ** 2
    assert row["harmful_only"] == alone.limit.harmful_only_dimension
    assert row["limit_compact"] == pytest.approx(alone.limit.value, rel=rel)
    assert row["limit_ridge"] == pytest.approx(alone.ridge_limit, rel=rel)
    for task in TASKS:
        for convention, end in (("compact", ""), ("ridge", "_ridge")):
            kappa = alone.row(RAW, convention)[f"kappa_{task}"]
            assert row[f"kappa_{task}{end}"] == pytest.approx(kappa, rel=rel)


@pytest.fixture(scope="module")
def images():
    """Batches of both tasks, `(16, 3, 32, 32)`."""
    pytest.importorskip("timm", reason="needs timm: pip install -e '.[deep]'")
    transform = evaluation_transform(input_size=SIDE, crop_pct=1.0)
    tasks = (open_images(place, limit=24) for place in TASKS.values())
    loaders = (image_loader(task, transform, batch_size=16) for task in tasks)
    return [[batch.images for batch in loader] for loader in loaders]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_each_layer_is_the_audit_of_its_features_taken_by_hand(name, images):
    backbone = Backbone(name, **size_arguments(name, SIDE))
    found = layer_audit(backbone, *images)
    assert found.table["layer"].tolist() == block_names(backbone.model)
    assert (found.rows_benign, found.rows_harmful) == (120, 120)
    for row in found.table.to_dict("records"):
        rows = []
        for task in images:
            kept = []
            part = backbone.model.get_submodule(row["layer"])
            hook = part.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output))
            with torch.no_grad():
                for batch in task:
                    backbone.model(batch)
            hook.remove()
            X = torch.cat(kept)  # maps of positions, tokens, or a patch embedding with channels last
            last = row["layer"] == "patch_embed"
            rows.append((X.flatten(1, -2).mean(1) if last or X.ndim == 3 else X.mean((2, 3))).numpy())
        check_by_hand(row, *rows)


def test_layers_by_name_stand_in_the_order_in_which_they_are_run(images):
    found = layer_audit(Backbone("test_resnet"), *images, "layer4.0, conv1")
    assert found.table["layer"].tolist() == ["conv1", "layer4.0"]


def test_one_pass_in_any_batches_leaves_the_net_as_it_was(images):
    net = Backbone("test_resnet").double().model
    net.train()
    net.layer3.eval()
    before, flags, calls = copy.deepcopy(net.state_dict()), [part.training for part in net.modules()], []
    counter = net.register_forward_hook(lambda *_: calls.append(1))
    wide = [[batch.double() for batch in task] for task in images]
    whole = layer_audit(net, *(iter([torch.cat(task)]) for task in wide))
    assert len(calls) == 2
    split = layer_audit(net, ((batch, "label") for batch in wide[0]), [{"pixel_values": x} for x in wide[1]])
    assert len(calls) == 2 + len(wide[0]) + len(wide[1])
    columns = ["limit_compact", "limit_ridge", "kappa_benign", "misalignment", "limit_rir"]
    np.testing.assert_allclose(whole.table[columns], split.table[columns], rtol=1e-4)
    counter.remove()
    assert [part.training for part in net.modules()] == flags
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    with pytest.raises(InvalidInputError, match="no batches"):
        layer_audit(net, [], [])
    assert not any(part._forward_hooks for part in net.modules())


class Odd(nn.Module):
    """Layers that cannot be audited, beside one that can."""

    def __init__(self):
        super().__init__()
        self.first, self.idle, self.twice, self.dead = (nn.Linear(4, 4) for _ in range(4))
        self.deep, self.broken = nn.Unflatten(1, (2, 1, 2, 1)), nn.Linear(4, 4)
        nn.init.zeros_(self.dead.weight)
        nn.init.zeros_(self.dead.bias)
        nn.init.constant_(self.broken.weight, math.nan)

    def forward(self, x):
        x = self.first(x)
        return [part(x) for part in (self.deep, self.dead, self.broken, self.twice, self.twice)]


ROWS = (torch.randn(20, 4, generator=torch.Generator().manual_seed(0)),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": "firts"}, "unknown layer 'firts'; did you mean 'first'"),
        ({"layers": " ,"}, "no layers: give names of Odd, such as "),
        ({"layers": "first,idle"}, "'idle' is called never in a forward pass"),
        ({"layers": "twice"}, "'twice' is called 2 times"),
        ({"layers": "deep"}, r"'deep' \(Unflatten\) returns float32 of shape \(20, 2, 1, 2, 1\) for 20"),
        ({"layers": "broken"}, "D_P behind 'broken' .*non-finite"),
        ({"benign": [{"name": "x"}]}, "a batch is a NoneType"),
        ({"harmful": ROWS[0]}, r"harmful is one tensor of shape \(20, 4\); .* such as \[harmful\]"),
        ({"target": 1.0}, "target must be a RIR above 1, got 1.0"),
    ],
)
def test_what_cannot_be_audited_is_named(change, words):
    with pytest.raises(InvalidInputError, match=words):
        layer_audit(Odd(), **{"benign": ROWS, "harmful": ROWS, "layers": "first"} | change)


def test_a_dead_layer_is_a_row_with_a_note():
    table = layer_audit(Odd(), ROWS, ROWS, ["first", "dead"]).table.set_index("layer")
    assert (table.loc["dead", "verdict"], table.loc["first", "rank_benign"]) == ("impossible", 4)
    assert "rank 0" in table.loc["dead", "note"]
    alone = layer_audit(Odd(), ROWS, ROWS, "dead")
    assert alone.sentence.startswith("No layer is known to reach a ridge RIR of 10")


def test_what_is_said_and_drawn():
    def found(*rows):
        table = pd.DataFrame(rows, columns=["dimension", "rir", "limit_rir", "verdict"])
        table["layer"], table["parameters"] = [f"l{i}" for i in table.index], table["dimension"] ** 2
        for name in layer_audit(Odd(), ROWS, ROWS, "first").table.columns.difference(table.columns):
            table[name] = "" if name in ("module", "note") else 2.0
        return LayerAudit(table.assign(limit_compact=math.inf), 10.0, 1e-6, 5, 6)

    nothing = (4, math.nan, math.nan, "impossible")
    some = found(nothing, (9, 30.0, 40.0, "reached"), (6, 12.0, 90.0, "reached"))
    assert "cheapest layer to immunize is l2: a linear extractor of 6 × 6 parameters" in some.sentence
    drawn = {trace.name: trace for trace in depth_figure(some).data}
    assert list(drawn["ridge: a closed form reaches"].y[1:]) == [30, 12]
    assert "ridge: none has (i) > 1 and (ii) ≤ 1" in drawn
    assert found(nothing, (9, 5.0, 40.0, "open")).cheapest is None


def nets():
    """Nets of both libraries with random weights, the layers to try, and the side of their images."""
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision: pip install -e '.[deep]'")
    timm = pytest.importorskip("timm", reason="needs timm: pip install -e '.[deep]'")
    torch.manual_seed(0)
    yield torchvision.models.resnet18(weights=None), ("layer2.0",), 32
    small = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": [4, 4]}
    yield torchvision.models.SwinTransformer(**small), ("features.1",), 32  # channels last
    yield timm.create_model("test_vit"), ("patch_embed", "blocks.2.mlp"), 160
    yield timm.create_model("test_efficientnet"), ("blocks.1.0",), 64


def test_an_extractor_is_inserted_behind_any_layer_of_a_copy():
    for net, layers, side in nets():
        images = torch.randn(4, 3, side, side)
        before, want = copy.deepcopy(net.state_dict()), net.eval()(images)
        found = layer_audit(net, [images], [images.flip(0) * 0.5], layers)
        for layer in layers:
            D = len(found.thetas[layer])
            same = insert_extractor(net, layer, torch.eye(D))
            torch.testing.assert_close(same(images), want, rtol=1e-3, atol=1e-4)
            made = insert_extractor(net, layer, found.thetas[layer])
            again = layer_audit(made, [images], [images], [layer])
            theta = found.thetas[layer].float()
            torch.testing.assert_close(
                again.features[layer][0], found.features[layer][0] @ theta, rtol=1e-3, atol=1e-3
            )
            assert f"{layer}.extractor.weight" in made.state_dict()
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("maps", [False, True], ids=["rows", "maps"])
def test_an_eraser_is_inserted_with_its_bias(maps):
    parts = [nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1)] if maps else [nn.Linear(4, 3)]
    net, X = nn.Sequential(*parts), ROWS[0]
    features = net(X).detach().movedim(1, -1)
    eraser = Eraser().fit(features.reshape(-1, 3), torch.arange(features.numel() // 3) % 2)
    made = insert_extractor(net, str(len(parts) - 1), eraser)
    want = eraser.transform(features.reshape(-1, 3)).reshape(features.shape)
    # float32 layers
    torch.testing.assert_close(made(X).movedim(1, -1), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "theta", "words"),
    [
        ("firts", torch.eye(4), "unknown layer 'firts'; did you mean 'first'"),
        ("first", torch.ones(4, 2), r"theta is \(4, 2\); behind a layer it must be square"),
        ("first", torch.eye(3), r"layer 'first' returns \(20, 4\), and theta is 3 × 3"),
    ],
)
def test_extractors_that_do_not_fit(layer, theta, words):
    with pytest.raises(InvalidInputError, match=words):
        insert_extractor(Odd(), layer, theta)(ROWS[0])
