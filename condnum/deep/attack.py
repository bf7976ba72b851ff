"""Attacks on a net as people make them: a head, the last stage, LoRA or all weights, each at its best rate.

Attacks are paired: a seed gives the held-out images, the new head, LoRA's factors and the batches, and these
are the same for θ₀, θ_I and the same net from scratch; `again` draws others, for A against A.
"""

from __future__ import annotations

import copy
import math
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from condnum.data.images import ImageSource, as_images
from condnum.deep.measure import head_accuracy
from condnum.deep.net import Backbone, copied, evaluating
from condnum.deep.samples import CHUNK, ImageFeatures, ImageTransform, Rows, Samples, hold_out, minibatches
from condnum.errors import InvalidInputError, UnknownNameError, check_integer
from condnum.machine import memory_advice
from condnum.progress import duration, report_event
from condnum.theory.features import smaller_gram

#: Passes over the attacker's images after which accuracies are compared.
HORIZONS = (1, 5, 10, 50)
#: Images in a step: of a new head, as in Fig. 3, and of an attacker who trains weights.
_HEAD_BATCH, _BATCH = 100, 32
#: Smallest and largest value that is tried, on a logarithmic grid: learning rates, of SGD in units of 1/L
#: with the bound L of `smoothness`; for `ridge` the penalty (of the mean eigenvalue), for `logistic`
#: scikit-learn's C.
RANGES: Mapping[str, tuple[float, float]] = {
    "head-sgd": (0.03, 300.0),
    "head-adamw": (1e-4, 1e-1),
    "head-muon": (1e-4, 1e-1),
    "adamw": (3e-5, 3e-2),
    "muon": (1e-3, 3e-1),
    "ridge": (1e-6, 10.0),
    "logistic": (1e-3, 10.0),
}
#: Changes of images `(n, 3, height, width)`, one of which an attacker makes to all images, test images too.
#: The last four are of none of the kinds that `transformed_images` trains `erase` on.
CHANGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "negated": torch.neg,
    "twice the side": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "negated, twice the side": lambda x: -functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "blurred": lambda x: functional.avg_pool2d(x, 5, stride=1, padding=2),
    "contrast × 3": lambda x: 3 * x,
    "turned by 90°": lambda x: x.rot90(1, (2, 3)),
    "upside down": lambda x: x.flip(2),
    "twice as wide": lambda x: functional.interpolate(x, scale_factor=(1, 2), mode="bilinear"),
    "halves swapped": lambda x: x.roll(x.shape[3] // 2, 3),
    "thresholded": lambda x: (x > 0).to(x.dtype),
    "squared": torch.square,
}


def drawn_changes(count: int, seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Draw changes of images that are on no list: colors mixed, filtered, bent, and the image rolled around.

    Examples:
        >>> (change,) = drawn_changes(1, seed=0).values()
        >>> change(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """

    def drawn(place: int) -> Callable[[Tensor], Tensor]:
        generator = np.random.default_rng([seed, place])
        mix = torch.from_numpy(np.linalg.qr(generator.standard_normal((3, 3)))[0]).float()
        kernel = torch.from_numpy(generator.standard_normal((3, 1, 3, 3))).float() / 3
        kernel[:, :, 1, 1] += 1
        bend, (down, right) = generator.uniform(0.5, 2.0), generator.uniform(0.2, 0.8, 2)

        def change(x: Tensor) -> Tensor:
            x = torch.einsum("ij,njhw->nihw", mix.to(x), x)
            x = functional.conv2d(x, kernel.to(x), padding=1, groups=3)
            x = x.sign() * x.abs() ** bend
            return x.roll((int(down * x.shape[2]), int(right * x.shape[3])), (2, 3))

        return change

    return {f"drawn {place + 1}": drawn(place) for place in range(count)}


#: The panel unless others are named.
ATTACKERS = (
    "head-sgd", "head-adamw", "head-muon", "ridge", "logistic", "transformed-ridge", "stage-adamw",
    "stage-muon", "lora8-adamw", "all-adamw", "benign-all-adamw",
)  # fmt: skip
_WORDS = {
    "sgd": "SGD", "adamw": "AdamW", "muon": "Muon", "ridge": "ridge regression, solved",
    "logistic": "logistic regression, solved",
}  # fmt: skip


@dataclass(frozen=True)
class Attacker:
    """What is trained, by what, and on which images.

    `transformed-ridge` solves for a head on changed images and takes the best of `CHANGES` by held-out
    images. `benign-all-adamw` trains all weights and the released head on D_P alone, and then solves for a
    head on D_H.

    Examples:
        >>> attacker = Attacker.named("lora16-adamw")
        >>> attacker.part, attacker.rank, attacker.label
        ('lora', 16, 'LoRA rank 16, AdamW')
    """

    name: str
    part: Literal["head", "lora", "stage", "all"]
    how: Literal["sgd", "adamw", "muon", "ridge", "logistic"]
    rank: int = 0  # of LoRA
    transformed: bool = False
    benign: bool = False

    @classmethod
    def named(cls, name: str) -> Attacker:
        """Read a name of `ATTACKERS`, or one that is made like them."""
        found = re.fullmatch(r"(transformed-)?(ridge|logistic)", name)
        if found:
            return cls(name, "head", cast(Any, found[2]), transformed=bool(found[1]))
        if found := re.fullmatch(r"head-(sgd|adamw|muon)", name):
            return cls(name, "head", cast(Any, found[1]))
        found = re.fullmatch(r"(benign-)?(stage|all|lora(?=[1-9]))(\d{0,4})-(adamw|muon)", name)
        if not found or (found[3] and found[2] != "lora"):
            raise UnknownNameError(
                "deep attacker",
                name,
                [*ATTACKERS, "transformed-logistic", "lora16-muon", "benign-stage-adamw"],
            )
        rank = int(found[3] or 0)
        return cls(name, cast(Any, found[2]), cast(Any, found[4]), rank, benign=bool(found[1]))

    @property
    def solved(self) -> bool:
        """Whether it is solved, in no passes that count."""
        return self.how in ("ridge", "logistic")

    @property
    def label(self) -> str:
        """The attacker in words."""
        if self.solved:
            return _WORDS[self.how] + ", transformed images" * self.transformed
        parts = {
            "head": "new head",
            "lora": f"LoRA rank {self.rank}",
            "stage": "last stage",
            "all": "all weights",
        }
        own = f"{parts[self.part]}, {_WORDS[self.how]}"
        return own + ", on D_P alone; then ridge regression" * self.benign

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that is tried."""
        return RANGES.get(f"{self.part}-{self.how}", RANGES.get(self.how, (0.0, 0.0)))


class Target:
    """A net under attack with the images of its attackers; what its parts give for them is computed once.

    Args:
        net: θ₀, θ_I or another net.
        train: D_H's images that the attacker may have (`as_images`).
        test: D_H's test images, on which accuracy is measured.
        transform: Of PIL images.
        benign: Training images of D_P, for attackers who begin with it.
        benign_test: D_P's test images, for what is left of the benign task after an attack.
        folder: Where the output of the trunk is kept, for all nets that share it; None: in memory.
        workers: Processes that decode.
        changes: Of images, which `transformed-…` attackers try.
    """

    def __init__(
        self,
        net: Backbone,
        train: ImageSource,
        test: ImageSource,
        *,
        transform: ImageTransform | None = None,
        benign: ImageSource | None = None,
        benign_test: ImageSource | None = None,
        folder: Path | None = None,
        workers: int = 0,
        changes: Mapping[str, Callable[[Tensor], Tensor]] = CHANGES,
    ) -> None:
        given = {"train": train, "test": test, "benign": benign, "benign_test": benign_test}
        self.net: Any = net  # None: features alone are known
        self.transform, self.folder, self.workers, self._changes = transform, folder, workers, changes
        self.data = {name: as_images(of, name) for name, of in given.items() if of is not None}
        self.labels = self.data["train"].labels
        self.classes = max(int(self.data[name].labels.max()) + 1 for name in ("train", "test"))
        self._samples: dict[tuple[str, bool], Samples] = {}
        self._features: dict[tuple[str, str], tuple[Tensor, Tensor, Rows]] = {}

    @classmethod
    def of_features(cls, train: ImageFeatures, test: ImageFeatures) -> Target:
        """Return a target whose features are known, for attackers of a head alone."""
        made = cls.__new__(cls)
        made.net, made.data = None, {}
        made._features = {
            (name, ""): (
                torch.from_numpy(np.array(of.values)),
                torch.from_numpy(of.labels),
                np.arange(len(of)),
            )
            for name, of in (("train", train), ("test", test))
        }
        made.labels, made.classes = train.labels, int(max(train.labels.max(), test.labels.max())) + 1
        return made

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        return torch.device("cpu") if self.net is None else next(self.net.parameters()).device

    def samples(self, name: str, *, pixels: bool = False) -> Samples:
        """Return the images of a set, kept as pixels, or as what the frozen trunk makes of them."""
        if name not in self.data:
            raise InvalidInputError(f"this attacker needs images of D_P; give {name}=….")
        if (name, pixels) not in self._samples:
            made = Samples(self.data[name], self.transform, workers=self.workers)
            self._samples[name, pixels] = made.keep(None if pixels else self.net, self.folder)
        return self._samples[name, pixels]

    def features(self, name: str, change: str = "") -> tuple[Tensor, Tensor, Rows]:
        """Return the features `(n, D)` of a set whose images were changed or not, labels, and row numbers."""
        key = name, change
        if key not in self._features:
            if not change:
                found = self.samples(name).features(self.net)
                self._features[key] = (
                    torch.from_numpy(np.array(found.values)), torch.from_numpy(found.labels), found.indices
                )  # fmt: skip
            else:
                parts, device = [], next(self.net.parameters()).device
                for batch in self.samples(name, pixels=True).batches(_chunks(len(self.data[name]))):
                    with evaluating(self.net), torch.no_grad():
                        rows = self.net(self._changes[change](batch.inputs.to(device))).cpu()
                    parts.append((rows, batch.labels, batch.indices))
                X, y, indices = (torch.cat(of) for of in zip(*parts, strict=True))
                self._features[key] = X, y, indices.numpy()
        return self._features[key]

    def changes(self) -> list[str]:
        """Return the changes of images that this net takes: some nets have one size only."""
        example, known = next(self.samples("train", pixels=True).batches(_chunks(2))).inputs, []
        device = next(self.net.parameters()).device
        for name, change in self._changes.items():
            try:
                with evaluating(self.net), torch.no_grad():
                    self.net(change(example.to(device)))
                known.append(name)
            except (AssertionError, RuntimeError):
                if change(example).shape == example.shape:
                    raise
        return known

    def benign_accuracy(self, net: Backbone | None = None) -> float:
        """Return the accuracy of the released head on D_P's test images, with θ or what became of it."""
        if "benign_test" not in self.data:
            return math.nan
        if net is None:
            return head_accuracy(self.net, self.samples("benign_test").features(self.net))
        return head_accuracy(net, self.samples("benign_test", pixels=True).features(net))


@dataclass(frozen=True)
class Attack:
    """What an attacker reached on a net."""

    attacker: str
    passes: NDArray[np.int64]  # (T,) over the attacker's images
    accuracy: NDArray[np.float64]  # (T,) on test images after so many passes
    chosen: float  # rate or penalty with the best held-out accuracy in the end
    at_edge: bool  # it is the smallest or the largest that was tried
    change: str  # of images, the best by held-out images; else ""
    benign_accuracy: float  # on D_P's test images afterwards, by the released head; NaN if unknown
    chance: float  # fraction of the most common class of the test images
    rows: int  # images that were trained on, without those held out
    steps: int  # of a pass over them; 0 where a head is solved
    seconds: float

    @property
    def final(self) -> float:
        """Test accuracy in the end."""
        return float(self.accuracy[-1])

    def after(self, passes: int) -> float:
        """Return the test accuracy after so many passes; NaN where none was measured."""
        place = np.flatnonzero(self.passes == passes)
        return float(self.accuracy[place[0]]) if len(place) else math.nan


def attack(
    target: Target,
    attacker: str,
    *,
    passes: int = 50,
    trials: int = 4,
    seed: int = 0,
    again: bool = False,
) -> Attack:
    """Attack a net: tune on a fifth of each class of the attacker's images, and score on test images.

    Every attacker has the same number of trials on every net: `trials` values of a logarithmic grid, then the
    two neighbors of the best. The best is the one with the highest held-out accuracy in the end.

    Args:
        target: The net with the attacker's images.
        attacker: A name as in `ATTACKERS`.
        passes: Over the attacker's images; accuracy is measured after each pass of a head, and after
            `HORIZONS` of what trains weights.
        trials: Values that are tried first.
        seed: Of the held-out images, the new head and the batches.
        again: Other heads and batches: A against A.

    Returns:
        The attack.

    Raises:
        UnknownNameError: No such attacker.
        InvalidInputError: Every trial diverges, or images that the attacker needs are missing.

    Examples:
        >>> from condnum.deep import evaluation_transform, open_images
        >>> D_H = [open_images("digits-8x8:5-9", split, limit=20) for split in ("train", "test")]
        >>> net = Backbone("test_resnet", num_classes=5)
        >>> found = attack(Target(net, *D_H, transform=evaluation_transform(net, input_size=16)), "ridge")
        >>> found.passes.tolist(), found.final > found.chance
        ([1], True)
    """
    who, started = Attacker.named(attacker), time.perf_counter()
    passes, trials = check_integer("passes", passes, 1), check_integer("trials", trials, 1)
    fit, held = hold_out(target.labels, [seed, 4], 0.2)
    draw = int(np.random.SeedSequence([seed, int(again)]).generate_state(1)[0])

    # 1. What its head reads: rows to train on, held out, and test rows.
    def read(change: str = "") -> list[tuple[Tensor, Tensor]]:
        X, y, indices = target.features("train", change)
        own = [torch.from_numpy(np.isin(indices, rows)) for rows in (fit, held)]
        return [*((X[rows], y[rows]) for rows in own), target.features("test", change)[:2]]

    # 2. One trial, and the search over its values.
    def run(value: float, change: str, measured: Collection[int] = ()) -> _Trial:
        if who.solved:
            scores = _solved(who.how, sets[change], value)
            return _Trial(value, change, scores[:2], np.array([1]), np.array([scores[2]]))
        with torch.random.fork_rng(devices=[target.device] if target.device.type == "cuda" else []):
            torch.manual_seed(draw)  # the new head, and dropout
            return _descend(target, who, sets[change], (fit, held), value, passes, draw, measured)

    sets = {change: read(change) for change in (target.changes() if who.transformed else [""])}
    grid = (
        np.geomspace(*who.range, 2 * trials - 1) if trials > 1 else [math.sqrt(who.range[0] * who.range[1])]
    )
    horizons = sorted(
        range(passes + 1) if who.part == "head" else {0, passes, *(h for h in HORIZONS if h < passes)}
    )
    tried: dict[tuple[str, int], _Trial] = {}
    for change in sets:
        for places in (range(0, len(grid), 2), (-1, 1)):
            best = max((k for c, k in tried if c == change), key=lambda k: tried[change, k].score, default=0)
            for place in places if isinstance(places, range) else (best + step for step in places):
                if 0 <= place < len(grid) and (change, place) not in tried:
                    tried[change, place] = run(float(grid[place]), change, horizons if len(grid) == 1 else ())

    # 3. The best by held-out images.
    (_, place), best_trial = max(tried.items(), key=lambda item: item[1].score)
    if not math.isfinite(best_trial.score[1]):
        values = ", ".join(f"{value:.3g}" for value in grid)
        raise InvalidInputError(f"every trial of '{who.label}' diverges ({values}).")
    if not who.solved and len(grid) > 1:  # once more, as test images are looked at for the best alone
        best_trial = run(best_trial.value, "", horizons)
    labels = target.features("test")[1].numpy()
    return Attack(
        attacker=attacker,
        passes=best_trial.passes,
        accuracy=best_trial.accuracy,
        chosen=best_trial.value,
        at_edge=len(grid) > 1 and place in (0, len(grid) - 1),
        change=best_trial.change,
        benign_accuracy=target.benign_accuracy(best_trial.net),
        chance=float(np.bincount(labels).max() / len(labels)),
        rows=len(sets[best_trial.change][0][0]),
        steps=0 if who.solved else max(1, len(fit) // (_HEAD_BATCH if who.part == "head" else _BATCH)),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, eq=False)
class _Trial:
    """What one value gave."""

    value: float
    change: str
    score: tuple[float, float]  # held-out accuracy in the end, and minus its loss; -inf if it diverges
    passes: NDArray[np.int64]
    accuracy: NDArray[np.float64]  # on test images
    net: Backbone | None = None  # what became of θ; None: it stays


def _descend(
    target: Target,
    who: Attacker,
    sets: Sequence[tuple[Tensor, Tensor]],
    split: tuple[Rows, Rows],
    value: float,
    passes: int,
    draw: int,
    measured: Collection[int],
) -> _Trial:
    """Train by an optimizer on D_H, or first on D_P alone, and measure after passes."""
    net: Any = None if who.part == "head" else copied(target.net).requires_grad_(False)
    device = target.device
    X = sets[0][0]
    scale = float(X.double().square().mean().sqrt()) or 1.0  # the scale of θ is a free parameter
    head: nn.Module = nn.Linear(X.shape[1], target.classes).to(device)
    chosen: list[nn.Parameter] = []
    if who.part == "lora":
        chosen = add_lora(net, who.rank, seed=draw)
    elif net is not None:
        kept = {id(p) for p in net.head_parameters()}
        own = net.trainable_parameters() if who.part == "stage" else net.model.parameters()
        chosen = [p for p in own if id(p) not in kept and p.is_floating_point()]
        for parameter in chosen:
            parameter.requires_grad_()
    if who.benign:
        head, scale = copy.deepcopy(net.head).requires_grad_(), 1.0
    parameters = [*chosen, *head.parameters()]
    optimizer: torch.optim.Optimizer
    if who.how == "sgd":
        for parameter in head.parameters():  # from zero, as in Fig. 3
            nn.init.zeros_(parameter)
        optimizer = torch.optim.SGD(parameters, lr=value / smoothness(X / scale))
    elif who.how == "adamw":
        optimizer = torch.optim.AdamW(parameters, lr=value, weight_decay=0.0)
    else:
        optimizer = Muon(parameters, lr=value)

    # Batches of the features themselves, of what the frozen trunk gives, or of images.
    name, pixels = "benign" if who.benign else "train", who.part != "stage"
    samples = None if who.part == "head" else target.samples(name, pixels=pixels)
    rows = np.arange(len(target.data["benign"])) if who.benign else split[0]
    order = np.arange(len(X)) if who.part == "head" else rows
    size = min(_HEAD_BATCH if who.part == "head" else _BATCH, len(order))

    def features(inputs: Tensor, *, activations: bool) -> Tensor:
        return inputs if net is None else net(inputs, activations=activations)

    def scores(which: str, own: Rows | None) -> tuple[float, float]:
        """Return accuracy and loss on held-out or test rows."""
        with torch.no_grad():
            if net is None:
                Z, z = sets[1 if own is not None else 2]
                logits = head(Z.to(device) / scale).cpu()
            else:
                every = np.arange(len(target.data[which])) if own is None else own
                parts = []
                net.eval()
                for batch in target.samples(which, pixels=pixels).batches(_chunks(every)):
                    out = net(batch.inputs.to(device), activations=batch.activations)
                    parts.append((head(out / scale).cpu(), batch.labels))
                logits, z = (torch.cat(of) for of in zip(*parts, strict=True))
        loss = float(functional.cross_entropy(logits, z))
        return float((logits.argmax(dim=1) == z).double().mean()), -loss if math.isfinite(loss) else -math.inf

    reached, score, started = dict[int, float](), (0.0, -math.inf), time.perf_counter()
    epochs = minibatches(order, size, [draw])
    with memory_advice(size, device, who.label):
        for epoch in range(passes + 1):
            if epoch in measured and not who.benign:
                reached[epoch] = scores("test", None)[0]
            if epoch == passes:
                break
            if net is not None:
                net.model.train(who.part == "all")  # statistics of batches only where all weights are trained
            batches = next(epochs)
            given: Iterable[Any] = (
                ((X[part], sets[0][1][part], False) for part in map(torch.from_numpy, batches))
                if samples is None
                else ((b.inputs, b.labels, b.activations) for b in samples.batches(batches))
            )
            for inputs, labels, activations in given:
                if len(labels) < 2:  # BatchNorm needs two rows
                    continue
                out = head(features(inputs.to(device), activations=activations) / scale)
                loss = functional.cross_entropy(out, labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if not math.isfinite(float(loss.detach())):
                break
            left = duration((time.perf_counter() - started) / (epoch + 1) * (passes - epoch - 1))
            report_event(stage=f"{who.label} at {value:.2g}, {left} left", step=epoch + 1, steps=passes)
    finite = all(bool(torch.isfinite(p).all()) for p in parameters) and math.isfinite(float(loss.detach()))
    if finite and who.benign:
        net.eval()
        again = Target(net, target.data["train"], target.data["test"], transform=target.transform)
        again._samples = {(key, False): target.samples(key, pixels=True) for key in ("train", "test")}
        F, y, indices = again.features("train")
        folds = [torch.from_numpy(np.isin(indices, part)) for part in split]
        parts = [*((F[part], y[part]) for part in folds), again.features("test")[:2]]
        tried = (_solved("ridge", parts, penalty) for penalty in np.geomspace(*RANGES["ridge"], 7))
        found = max(tried, key=lambda scores: scores[0])  # by held-out images alone
        score, reached = found[:2], {passes: found[2]} if measured else {}
    elif finite:
        score = scores("train", split[1])
    if not finite:
        reached |= {epoch: 0.0 for epoch in measured if epoch not in reached}
    places = np.array(sorted(reached))
    curve = np.array([reached[int(place)] for place in places])
    return _Trial(value, "", score, places, curve, None if net is None else net.eval())


def _solved(how: str, sets: Sequence[tuple[Tensor, Tensor]], value: float) -> tuple[float, float, float]:
    """Solve for a head; return held-out accuracy, 0 in place of a loss, and test accuracy."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    (X, y), (Z, z), (T, t) = ((of.double().numpy(), labels.numpy()) for of, labels in sets)
    if how == "ridge":
        spread = float(((X - X.mean(axis=0)) ** 2).sum() / X.shape[1]) or 1.0
        model: Any = RidgeClassifier(alpha=value * spread)
    else:
        scaler = StandardScaler().fit(X)
        X, Z, T = map(scaler.transform, (X, Z, T))
        model = LogisticRegression(C=value, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it need not converge: the score is held out
        model.fit(X, y)
    return float(model.score(Z, z)), 0.0, float(model.score(T, t))


def smoothness(X: Tensor) -> float:
    """Return Böhning's bound on the curvature of softmax regression, `½·λ_max(X̄ᵀX̄/N)` with a bias column.

    Examples:
        >>> smoothness(torch.tensor([[1.0], [-1.0]]))
        0.5
    """
    extended = torch.cat([X.double(), X.new_ones(len(X), 1).double()], dim=1)
    return 0.5 * float(torch.linalg.eigvalsh(smaller_gram(extended))[-1]) / len(X)


def _chunks(rows: Rows | int) -> list[Rows]:
    """Return rows in parts that go through a net at a time."""
    every = np.arange(rows) if isinstance(rows, int) else rows
    return [every[k : k + CHUNK] for k in range(0, len(every), CHUNK)]


class LowRank(nn.Module):
    """`W + BA` for a weight W of `(out, …)`, B `(out, r)` zero at first and A `(r, rest)` drawn."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = len(weight), weight[0].numel()
        least = min(rank, rows, columns)
        drawn = torch.randn(least, columns, generator=generator) / columns**0.5
        self.A = nn.Parameter(drawn.to(weight))
        self.B = nn.Parameter(weight.new_zeros(rows, least))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + (self.B @ self.A).view_as(weight)


def add_lora(net: Backbone, rank: int, *, seed: int = 0) -> list[nn.Parameter]:
    """Put low-rank factors (LoRA, arXiv 2106.09685) on every linear and convolution layer, and return them.

    At first B = 0 and the net is the same; of a convolution the matrix `(out, in/groups · k · k)` is adapted.
    LoRA's scale is left out, as the learning rate is searched.
    """
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [part for part in net.model.modules() if isinstance(part, kinds) and part is not net.head]
    if not layers:
        raise InvalidInputError(f"{net.name} has no linear or convolution layer to adapt.")
    generator, found = torch.Generator().manual_seed(seed), list[nn.Parameter]()
    for layer in layers:
        adapter = LowRank(layer.weight.detach(), rank, generator)
        parametrize.register_parametrization(layer, "weight", adapter)
        found += list(adapter.parameters())
    return found


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024).

    A convolution's kernel is the matrix `(out, in · k · k)`. Newton–Schulz steps with the authors' three
    coefficients bring all singular values near 1. Each step has the root mean square `lr`, whatever the shape
    (Liu et al., arXiv 2502.16982). Vectors take it along their momentum; the authors use AdamW for them and
    for the head.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; there is no closure."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.95).add_(p.grad)
                way = p.grad.add(momentum, alpha=0.95).flatten(1 if p.ndim > 1 else 0)
                if p.ndim > 1:
                    way = _orthogonal(way)
                p.sub_(way.view_as(p), alpha=group["lr"] / max(float(way.square().mean().sqrt()), 1e-12))


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return `UVᵀ` of a matrix `UΣVᵀ`, roughly."""
    X = matrix.mT if (tall := matrix.shape[0] > matrix.shape[1]) else matrix
    X = X / X.norm().clamp_min(1e-12)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.mT if tall else X


def from_scratch(
    backbone: Backbone, data: ImageSource, transform: ImageTransform | None, *, seed: int
) -> Backbone:
    """Return the same architecture with weights drawn anew, and BatchNorm's statistics of these images.

    As they are drawn, statistics are 0 and 1, with which the features of a deep net are nearly constant.
    Scales of norms that are drawn as 0, as timm does at the end of residual branches, are set to 1: else a
    ResNet18 sees 36 of 1,024 pixels, and is no net that could learn.
    """
    if backbone.model_arguments is None:
        made = _drawn_anew(backbone, 1_000 + seed)
    else:
        made = Backbone(
            backbone.name, trainable=backbone.trainable, num_classes=backbone.num_classes, seed=1_000 + seed,
            **backbone.model_arguments,
        )  # fmt: skip
    for part in made.modules():
        scale = getattr(part, "weight", None)
        if isinstance(scale, nn.Parameter) and scale.ndim == 1 and not scale.any():
            nn.init.ones_(scale)
    norms = [part for part in made.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [part.momentum for part in norms]
    for part in norms:
        part.reset_running_stats()
        part.train().momentum = None  # a plain mean over all batches
    samples = Samples(data, transform)
    with torch.no_grad():
        for batch in samples.batches(_chunks(len(samples))) if norms else ():
            made(batch.inputs)
    for part, momentum in zip(norms, momenta, strict=True):
        part.eval().momentum = momentum
    return made


def _drawn_anew(backbone: Backbone, seed: int) -> Backbone:
    """Return a copy of any module whose layers were drawn anew, each by its own `reset_parameters`."""
    made = copied(backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, part in made.model.named_modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
            elif own := [f"{name}.{key}".strip(".") for key, _ in part.named_parameters(recurse=False)]:
                raise InvalidInputError(
                    f"'{own[0]}' of a {backbone.name} cannot be drawn anew: a {type(part).__name__} has no "
                    "reset_parameters(); add one."
                )
    return made
