"""The audit along the depth: against features taken by hand, in one pass; an extractor put behind a layer."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from condnum.auditing import audit, insert_extractor, layer_audit
from condnum.errors import InvalidInputError
from condnum.estimators import Eraser
from condnum.probing.panel import RAW

nets = pytest.importorskip("nets", reason="needs timm and torchvision: pip install -e '.[deep]'")


def images(seed, count=100):
    """Return batches of a task, of one scale per channel."""
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(count, 3, 32, 32, generator=draw) * torch.rand(3, 1, 1, generator=draw) + seed
    return [*X.split(40)]


TASKS = (images(0), images(1))


def by_hand(kind, net, layer, batches):
    """Return the pooled features behind a layer, taken without `layer_audit`."""
    kept = []

    def keep(_, __, output):
        X = output[0] if isinstance(output, tuple) else output
        last = X.ndim == 3 or kind == "channels last"  # tokens, or maps of positions
        kept.append(X.clone() if X.ndim == 2 else X.flatten(1, -2).mean(1) if last else X.mean((2, 3)))

    hook = net.get_submodule(layer).register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            net(batch)
    hook.remove()
    return torch.cat(kept).numpy()


@pytest.mark.parametrize("kind", nets.NETS)
def test_a_layer_is_the_audit_of_its_features_and_takes_an_extractor_in_a_copy(kind):
    net, layer = nets.NETS[kind].module(), nets.NETS[kind].layer
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found = layer_audit(net, *TASKS, layer)
    (row,) = found.table.to_dict("records")
    X_P, X_H = (by_hand(kind, net, layer, task) for task in TASKS)
    for kept, X in zip(found.features[layer], (X_P, X_H), strict=True):
        np.testing.assert_allclose(kept, X, rtol=1e-4, atol=1e-5)
    alone = audit(X_P, X_H, attackers=False)
    assert (row["rank_benign"], row["rank_harmful"]) == (alone.benign.rank, alone.harmful.rank)
    assert row["harmful_only"] == alone.limit.harmful_only_dimension
    assert row["limit_compact"] == pytest.approx(alone.limit.value, rel=1e-2)
    assert row["limit_ridge"] == pytest.approx(alone.ridge_limit, rel=1e-2)
    for task in ("benign", "harmful"):
        for convention, end in (("compact", ""), ("ridge", "_ridge")):
            kappa = alone.row(RAW, convention)[f"kappa_{task}"]
            assert row[f"kappa_{task}{end}"] == pytest.approx(kappa, rel=1e-2)
    theta, batch = found.thetas[layer], {"pixel_values": TASKS[0][0]}
    same = insert_extractor(net, layer, torch.eye(len(theta)), batch)
    outputs = [made(TASKS[0][0]) for made in (same, net)]
    outputs = [output["logits"] if isinstance(output, dict) else output for output in outputs]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)
    made = copy.deepcopy(insert_extractor(net, layer, theta, batch))
    for one, other in zip(
        layer_audit(made, *TASKS, layer).features[layer], found.features[layer], strict=True
    ):
        expected = other @ theta.float()
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert not any(part.training for part in made.modules())


def test_all_blocks_but_the_head_and_those_that_are_never_called():
    found = layer_audit(nets.Backbone(nets.Own(), trainable="part"), *TASKS)
    assert (found.table["layer"].tolist(), found.idle) == (["first", "part"], ("idle",))
    assert found.sentence.endswith(" Never called: idle.")


def test_one_pass_in_any_batches_leaves_the_net_as_it_was():
    net = nets.NETS["timm ResNet"].module().double().train()
    net.layer3.eval()
    before, flags, calls = copy.deepcopy(net.state_dict()), [part.training for part in net.modules()], []
    counter = net.register_forward_hook(lambda *_: calls.append(1))
    wide = [[batch.double() for batch in task] for task in TASKS]
    whole = layer_audit(net, *(iter([torch.cat(task)]) for task in wide), "layer2, conv1")
    assert whole.table["layer"].tolist() == ["conv1", "layer2"]  # as they are run
    assert len(calls) == 2
    labeled, named = [(batch, "label") for batch in wide[0]], [{"pixel_values": x} for x in wide[1]]
    split = layer_audit(net, labeled, named, "conv1,layer2")
    columns = ["limit_compact", "limit_ridge", "kappa_benign", "misalignment", "limit_rir"]
    np.testing.assert_allclose(whole.table[columns], split.table[columns], rtol=1e-4)
    counter.remove()
    assert [part.training for part in net.modules()] == flags
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
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
        ({"layers": "first,idle"}, "'idle' is called never in a forward pass"),
        ({"layers": "twice"}, "'twice' is called 2 times"),
        ({"layers": "deep"}, r"'deep' \(Unflatten\) returns float32 of shape \(20, 2, 1, 2, 1\) for 20"),
        ({"layers": "broken"}, "D_P behind 'broken' .*non-finite"),
        ({"benign": [{"name": "x"}]}, "a batch is a NoneType"),
        ({"benign": []}, "no batches"),
        ({"harmful": ROWS[0]}, r"harmful is one tensor of shape \(20, 4\); .* such as \[harmful\]"),
    ],
)
def test_what_cannot_be_audited_is_named(change, words):
    with pytest.raises(InvalidInputError, match=words):
        layer_audit(Odd(), **{"benign": ROWS, "harmful": ROWS, "layers": "first"} | change)


@pytest.mark.parametrize(
    ("net", "layer", "theta", "words"),
    [
        (Odd(), "first", torch.ones(4, 2), r"theta is \(4, 2\); behind a layer it must be square"),
        (Odd(), "first", torch.eye(3), r"layer 'first' returns float32 of shape .*, and theta is 3 × 3"),
        (Odd(), "twice", torch.eye(4), "'twice' is called 2 times in training"),
        (nets.Transformer(), "encoder.layers.1.linear1", torch.eye(16), "called never in evaluation without"),
    ],
)
def test_extractors_that_do_not_fit(net, layer, theta, words):
    batch = TASKS[0][0] if isinstance(net, nets.Transformer) else ROWS[0]
    with pytest.raises(InvalidInputError, match=words):
        insert_extractor(net, layer, theta, batch)


@pytest.mark.parametrize("kind", nets.WRAPPED)
def test_wrapped_nets_are_refused_early(kind):
    net = nets.WRAPPED[kind](nets.plain())
    for use in (
        lambda: layer_audit(net, *TASKS),
        lambda: insert_extractor(net, "0", torch.eye(6), TASKS[0]),
        lambda: nets.Backbone(net, trainable="2"),
    ):
        with pytest.raises(InvalidInputError, match=r"is compiled, scripted or wrapped .*; give the nn.Modu"):
            use()


def test_a_dead_layer_is_a_row_with_a_note():
    found = layer_audit(Odd(), ROWS, ROWS, ["first", "dead"])
    table = found.table.set_index("layer")
    assert (table.loc["dead", "verdict"], table.loc["first", "rank_benign"]) == ("impossible", 4)
    assert "rank 0" in table.loc["dead", "note"]


@pytest.mark.parametrize("maps", [False, True], ids=["rows", "maps"])
def test_an_eraser_is_inserted_with_its_bias(maps):
    parts = [nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1)] if maps else [nn.Linear(4, 3)]
    net, X = nn.Sequential(*parts), ROWS[0]
    features = net(X).detach().movedim(1, -1)
    eraser = Eraser().fit(features.reshape(-1, 3), torch.arange(features.numel() // 3) % 2)
    made = insert_extractor(net, str(len(parts) - 1), eraser, X)
    want = eraser.transform(features.reshape(-1, 3)).reshape(features.shape)
    torch.testing.assert_close(made(X).movedim(1, -1), want, rtol=1e-4, atol=1e-4)  # float32 layers
