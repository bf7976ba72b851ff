"""Attacks on a deep net as people make them: head, LoRA or all weights, tuned optimizers, few rows.

Every attacker meets three nets: θ₀, the immunized θ_I, and the same net from scratch. A factor of steps
says little by itself: immunization is void where the attack on θ_I is as fast as on θ₀, and complete where it
is no faster than from scratch.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.deep.adapters import Attacked, Subset
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.features import collect
from condnum.deep.images import ImageData, check_unreadable, hold_out_rows, image_loader
from condnum.deep.probe import smoothness
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError, UnknownNameError, check_integer
from condnum.machine import memory_advice
from condnum.probing.line_search import log_spaced_steps
from condnum.progress import report_event

#: References of a panel.
THETA_0, SCRATCH = "theta_0", "scratch"

#: Shares of θ₀'s final accuracy that count as arrived.
SHARES = (0.5, 0.8, 0.9, 0.95)

#: Rows of each class that the attacker has; 0: all.
SHOTS = (8, 32, 128, 0)

#: Share of the attacker's rows, of each class, on which the trials are judged.
HELD_OUT = 0.2

#: Smallest and largest value that the trials try, on a logarithmic grid: learning rates, of SGD multiples
#: of 1/L of the new head, for `whitened` the floor under the eigenvalues (of the largest), for `ridge` the
#: penalty (of the mean eigenvalue), for `logistic` scikit-learn's C. A net from scratch takes rates a hundred
#: times those that suit θ₀, so the ranges are wide.
RANGES: Mapping[str, tuple[float, float]] = {
    "head-sgd": (0.1, 100.0),
    "head-adamw": (1e-4, 1e-1),
    "lora-adamw": (3e-5, 3e-2),
    "sgd": (1e-3, 1.0),
    "adamw": (1e-5, 3e-2),
    "muon": (1e-4, 3e-2),
    "whitened": (1e-6, 1e-1),
    "ridge": (1e-6, 1e1),
    "logistic": (1e-3, 1e2),
}

MOMENTUM = 0.9
#: Of the head on whitened features, whose curvature is known: in units of 1/L.
_WHITENED_RATE = 3.0

#: Images of a set that are held as tensors take at most this many bytes.
IMAGE_BUDGET = 8 << 30
#: Images that go through a net at a time where nothing is trained, and rows that tell the scale of features.
CHUNK = 250
_SCALE_ROWS = 256

_OF_HEADS = {
    "whitened": "head on whitened features, SGD",
    "ridge": "ridge regression, solved",
    "logistic": "logistic regression, solved",
}
_OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}

#: The panel unless others are named.
ATTACKERS = (
    "head-sgd", "head-adamw", "whitened", "ridge", "logistic", "lora4-adamw", "lora16-adamw", "stage-sgd",
    "stage-adamw", "all-sgd", "all-adamw", "all-muon",
)  # fmt: skip


@dataclass(frozen=True)
class DeepAttacker:
    """What is trained, and by what.

    Examples:
        >>> attacker = DeepAttacker.named("lora16-adamw")
        >>> attacker.subset, attacker.rank, attacker.label
        ('lora', 16, 'LoRA rank 16, AdamW')
        >>> DeepAttacker.named("head-muon")
        Traceback (most recent call last):
            ...
        condnum.errors.UnknownNameError: unknown deep attacker 'head-muon'; did you mean 'all-muon'? ...
    """

    name: str
    subset: Subset
    optimizer: Literal["sgd", "adamw", "muon", "whitened", "ridge", "logistic"]
    rank: int = 0  # of LoRA

    @classmethod
    def named(cls, name: str) -> DeepAttacker:
        """Read a name: one of `ATTACKERS`, or `lora<rank>|stage|all` with `-sgd|-adamw|-muon`."""
        if name in _OF_HEADS:
            return cls(name, "head", cast(Any, name))
        found = re.fullmatch(r"(head|stage|all|lora([1-9]\d{0,3}))-(sgd|adamw|muon)", name)
        if found is None or name == "head-muon":  # Muon leaves heads to AdamW
            raise UnknownNameError("deep attacker", name, [*ATTACKERS, "lora8-sgd", "stage-muon", "…"])
        part, rank, optimizer = found.groups()
        return cls(name, cast(Any, "lora" if rank else part), cast(Any, optimizer), int(rank or 0))

    @property
    def label(self) -> str:
        """The attacker in words."""
        if self.name in _OF_HEADS:
            return _OF_HEADS[self.name]
        part = {"head": "new head", "lora": f"LoRA rank {self.rank}", "stage": "last stage"}
        return f"{part.get(self.subset, 'all weights')}, {_OPTIMIZERS[self.optimizer]}"

    @property
    def closed_form(self) -> bool:
        """Whether it arrives at once, or not at all."""
        return self.optimizer in ("ridge", "logistic")

    @property
    def full_batch(self) -> bool:
        """Whether a step passes over all rows: those of a head do, which cost next to nothing."""
        return self.subset == "head"

    def trials(self, count: int) -> NDArray[np.float64]:
        """Return the values that are tried, ascending."""
        low, high = RANGES.get(f"{self.subset}-{self.optimizer}", RANGES[self.optimizer])
        return np.geomspace(low, high, count) if count > 1 else np.array([math.sqrt(low * high)])


@dataclass(frozen=True)
class DeepBudget:
    """What each attacker may spend."""

    steps: int = 100
    trials: int = 4
    batch_size: int = 32
    checkpoints: int = 10  # log-spaced, at which accuracy is measured

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("trials", 1), ("batch_size", 2), ("checkpoints", 2)):
            check_integer(name, getattr(self, name), least)

    @property
    def measured(self) -> NDArray[np.int64]:
        """Steps at which accuracy is measured, 0 among them."""
        return log_spaced_steps(self.steps, self.checkpoints)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images as a net takes them, with their labels."""

    images: Tensor  # (N, 3, height, width)
    labels: Tensor  # (N,) int64
    classes: int

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def few(self, per_class: int, seed: int) -> NDArray[np.int64]:
        """Return so many rows of each class (0: all), ascending; fewer are a subset of more."""
        labels = self.labels.numpy()
        own = [np.flatnonzero(labels == c) for c in range(self.classes)]
        drawn = [np.random.default_rng([seed, c]).permutation(rows) for c, rows in enumerate(own)]
        return np.sort(np.concatenate([rows[: per_class or None] for rows in drawn]))


def load_pixels(
    data: ImageData, transform: ImageTransform, *, most: int | None = None, workers: int = 0
) -> Pixels:
    """Load images as tensors, un-augmented, as attacks take them.

    Args:
        data: The images of a task; those that do not decode are left out.
        transform: An un-augmented transform.
        most: Largest number of images, the same number of each class and the same ones each time; None: all.
        workers: Processes that decode.

    Returns:
        Tensors and labels.

    Raises:
        InvalidInputError: They take more than 8 GiB, or the transform is random.
        DataFormatError: More than a tenth does not decode.
    """
    if transform.random:
        raise InvalidInputError("this transform is random; attacks take un-augmented images.")
    kept = data if most is None else data.limit(max(1, most // len(data.classes)))
    size = 4 * math.prod(transform.input_size) * len(kept)
    if size > IMAGE_BUDGET:
        raise InvalidInputError(
            f"{len(kept)} images of {kept.title} take {size / 2**30:.1f} GiB as tensors, at most "
            f"{IMAGE_BUDGET >> 30} are held; take fewer a class with limit=…."
        )
    loader = image_loader(kept, transform, batch_size=CHUNK, workers=workers)
    found = collect(lambda images: images, loader, f"images of {kept.name}", total=len(kept))
    check_unreadable(found[3], len(kept), kept.title)
    return Pixels(found[0], found[1], len(kept.classes))


@dataclass(frozen=True, eq=False)
class AttackRun:
    """One attacker on one net with some rows: its trials, and the curve of the chosen one."""

    trials: pd.DataFrame  # trial, value, held_out (mean held-out accuracy), final (test), best_so_far
    chosen: float  # value of the chosen trial
    at_edge: bool  # it is the first or the last of the grid
    steps: NDArray[np.int64]  # (T,)
    correct: NDArray[np.bool_]  # (T, M) which test images are classified rightly
    pretrain_accuracy: float  # on D_P's test images after the attack, by the released head; NaN if unknown
    rows: int  # rows that were trained on, without the held-out ones
    seconds: float  # of all trials

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Test accuracy `(T,)`."""
        found: NDArray[np.float64] = self.correct.mean(axis=1)
        return found


class Target:
    """A net under attack: what its parts give for images is computed once."""

    def __init__(
        self,
        theta: nn.Module,
        train: Pixels,
        test: Pixels,
        *,
        pretrain_test: Pixels | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = resolve_device(device)
        self.theta = theta.to(self.device)
        self.train, self.test, self.pretrain_test = train, test, pretrain_test
        self._features: dict[int, Tensor] = {}

    def features(self, of: Pixels) -> Tensor:
        """Return the features `(N, D)` of a set."""
        if id(of) not in self._features:
            self._features[id(of)] = self.through(self.theta, of.images)
        return self._features[id(of)]

    def through(self, run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Return what a net gives for images, in evaluation mode."""
        module = run if isinstance(run, nn.Module) else self.theta
        with evaluating(module), torch.no_grad():
            return torch.cat([run(part.to(self.device)) for part in images.split(CHUNK)])

    def attacked(self, attacker: DeepAttacker, features: Tensor, seed: int) -> Attacked:
        """Return a copy of θ as an attacker begins with it; features `(n, D)` tell their scale."""
        return Attacked(
            self.theta,
            attacker.subset,
            self.train.classes,
            dimension=features.shape[1],
            scale=float(features.double().square().mean().sqrt()) or 1.0,
            rank=attacker.rank,
            seed=seed,
            matrices=attacker.optimizer == "muon",
        )

    def pretrain_accuracy(self, net: nn.Module | None = None) -> float:
        """Return the accuracy of the released head on D_P's test images, with θ or what became of it."""
        known, net = self.pretrain_test, self.theta if net is None else net
        if known is None or not isinstance(net, Backbone):
            return math.nan
        rows = self.features(known) if net is self.theta else self.through(net, known.images)
        with torch.no_grad():
            return float((net.head(rows).argmax(dim=1).cpu() == known.labels).double().mean())

    def inputs(self, subset: Subset, of: Pixels, rows: NDArray[np.int64]) -> Tensor:
        """Return what the trained part starts from: images, the frozen trunk's output, or features."""
        chosen = torch.from_numpy(rows)
        if subset == "head":
            return self.features(of)[chosen.to(self.device)]
        images = of.images[chosen]
        if subset == "stage" and isinstance(self.theta, Backbone):
            try:
                return self.through(self.theta.frozen_activations, images)
            except InvalidInputError:
                pass  # what follows the trunk is no chain of modules: images go through the whole net
        return images.to(self.device)


def chosen_rows(target: Target, shots: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the attacker's rows: those to train on, and a fifth of each class that is held out."""
    chosen = target.train.few(shots, seed)
    parts = hold_out_rows(target.train.labels.numpy()[chosen], HELD_OUT, [seed, 4])
    if not len(parts[1]):
        raise InvalidInputError(f"{shots} row(s) a class leave none to choose by; an attacker needs two.")
    return [chosen[part] for part in parts]


def draw_of(seed: int, stream: int) -> int:
    """Return the seed of head, factors and batches of an attack."""
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def attack(
    target: Target,
    attacker: DeepAttacker,
    *,
    shots: int = 0,
    budget: DeepBudget | None = None,
    seed: int = 0,
    stream: int = 0,
) -> AttackRun:
    """Attack a net: every trial from the same start, the best by its mean held-out accuracy.

    A fifth of each class of the attacker's rows is held out; the mean is over all steps, so that an attacker
    in a hurry is chosen. Nothing is trained on the held-out rows afterwards.
    The seed chooses the rows; seed and stream together the new head, LoRA's factors and the batches.

    Raises:
        InvalidInputError: A class has fewer than two rows, a net that cannot be attacked so, or every trial
            diverges.
    """
    budget, started = budget or DeepBudget(), time.perf_counter()
    fit, held = chosen_rows(target, shots, seed)
    sets = [_Set(target, attacker.subset, of, rows)
            for of, rows in ((target.train, fit), (target.train, held), (target.test, None))]  # fmt: skip
    values, draw = attacker.trials(budget.trials), draw_of(seed, stream)
    run = _closed_form if attacker.closed_form else _descent
    rows, best = [], None
    for trial, value in enumerate(values):
        found = run(target, attacker, float(value), sets, budget, draw)
        score = (_mean(found.held, found.steps), -_mean(found.held_loss, found.steps))
        whole = not math.isnan(score[1])  # else it diverged
        rows.append((trial + 1, value, score[0] if whole else 0.0, float(found.correct[-1].mean())))
        if whole and (best is None or score > best[0]):
            best = score, float(value), found, target.pretrain_accuracy(found.net)
    if best is None:
        raise InvalidInputError(
            f"every trial of '{attacker.label}' diverges ({', '.join(f'{v:.3g}' for v in values)})."
        )
    trials = pd.DataFrame(rows, columns=["trial", "value", "held_out", "final"])
    leader = [int(trials["held_out"][: k + 1].idxmax()) for k in range(len(trials))]
    trials["best_so_far"] = trials["final"].to_numpy()[leader]
    _, value, found, pretrain = best
    return AttackRun(
        trials=trials,
        chosen=value,
        at_edge=len(values) > 1 and value in (values[0], values[-1]),
        steps=found.steps,
        correct=found.correct,
        pretrain_accuracy=pretrain,
        rows=len(fit),
        seconds=time.perf_counter() - started,
    )


def _mean(curve: NDArray[np.float64], steps: NDArray[np.int64]) -> float:
    """Return the mean of a curve over all steps, linear between those that were measured."""
    if len(steps) == 1:
        return float(curve[0])
    return float(((curve[1:] + curve[:-1]) / 2 * np.diff(steps)).sum() / (steps[-1] - steps[0]))


def scale_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows by whose features a head is scaled: some of all, for the first may be of one class."""
    return np.sort(np.random.default_rng(0).permutation(rows)[:_SCALE_ROWS])


class _Set:
    """Inputs and labels of some rows, on the device."""

    def __init__(self, target: Target, subset: Subset, of: Pixels, rows: NDArray[np.int64] | None) -> None:
        rows = np.arange(len(of)) if rows is None else rows
        self.inputs = target.inputs(subset, of, rows)
        self.labels = of.labels[torch.from_numpy(rows)].to(target.device)
        self.some = of.images[torch.from_numpy(scale_rows(rows))]


@dataclass(frozen=True, eq=False)
class _Trial:
    """What one trial gave."""

    steps: NDArray[np.int64]
    held: NDArray[np.float64]  # (T,) held-out accuracy
    held_loss: NDArray[np.float64]
    correct: NDArray[np.bool_]  # (T, M)
    net: nn.Module | None  # afterwards; None: θ itself


def _descent(
    target: Target, attacker: DeepAttacker, value: float, sets: Sequence[_Set], budget: DeepBudget, seed: int
) -> _Trial:
    """Train by an optimizer, and measure at log-spaced steps."""
    fit, held, test = sets
    inputs = [part.inputs for part in sets]
    if attacker.optimizer == "whitened":
        inputs = _whitened(inputs, value)
    features = inputs[0] if attacker.subset == "head" else target.through(target.theta, fit.some)
    model, rate = target.attacked(attacker, features, seed), value
    if attacker.optimizer == "sgd":
        rate = value / smoothness(features / model.scale)
    elif attacker.optimizer == "whitened":  # λ_max of whitened features is 1
        rate = 2 * _WHITENED_RATE / max(1.0, model.scale**-2)
    steppers = _optimizers(attacker, model, rate)
    batches = _batches(len(fit.labels), None if attacker.full_batch else budget.batch_size, seed)
    measured, records = budget.measured, []
    what = f"{attacker.label}, {len(fit.labels)} rows"
    with memory_advice(budget.batch_size, target.device, what):
        for step in range(budget.steps + 1):
            if step in measured:
                records.append(_measure(model, inputs[1:], held.labels, test.labels))
                report_event(stage=what, step=step, steps=budget.steps)
            if step == budget.steps or math.isnan(records[-1][1]):
                break
            rows = next(batches).to(target.device)
            model.train()
            loss = nn.functional.cross_entropy(model(inputs[0][rows]), fit.labels[rows])
            for stepper in steppers:
                stepper.zero_grad(set_to_none=True)
            loss.backward()
            for stepper in steppers:
                stepper.step()
    while len(records) < len(measured):  # it diverged
        records.append((0.0, math.nan, np.zeros(len(test.labels), dtype=np.bool_)))
    accuracy, losses, correct = zip(*records, strict=True)
    net = None if attacker.subset == "head" else model.net
    return _Trial(measured, np.array(accuracy), np.array(losses), np.array(correct), net)


def _closed_form(
    target: Target, attacker: DeepAttacker, value: float, sets: Sequence[_Set], budget: DeepBudget, seed: int
) -> _Trial:
    """Solve the head's problem: ridge regression on one-hot labels at once, or logistic regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    X, Z, T = (part.inputs.double().cpu().numpy() for part in sets)
    y, z, t = (part.labels.cpu().numpy() for part in sets)
    if attacker.optimizer == "ridge":
        spread = float(((X - X.mean(axis=0)) ** 2).sum() / X.shape[1]) or 1.0
        model: Any = RidgeClassifier(alpha=value * spread)
    else:
        scaler = StandardScaler().fit(X)
        X, Z, T = (scaler.transform(part) for part in (X, Z, T))
        model = LogisticRegression(C=value, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it has had its thousand iterations
        model.fit(X, y)
    held = float((model.predict(Z) == z).mean())
    return _Trial(
        np.ones(1, dtype=np.int64), np.array([held]), np.zeros(1), (model.predict(T) == t)[None], None
    )


def _whitened(inputs: Sequence[Tensor], floor: float) -> list[Tensor]:
    """Return features in the principal axes of the first set, each at unit variance above a floor."""
    rows = inputs[0].double()
    mean = rows.mean(dim=0)
    _, sigma, axes = torch.linalg.svd(rows - mean, full_matrices=False)
    lam = sigma.square() / len(rows)
    constant = lam[0] <= torch.finfo(torch.float32).eps ** 2 * mean.square().sum()  # a net may be blind
    scale = torch.zeros_like(lam) if constant else (lam + floor * lam[0]).rsqrt()
    return [((part.double() - mean) @ axes.mT * scale).float() for part in inputs]


def _optimizers(attacker: DeepAttacker, model: Attacked, rate: float) -> list[torch.optim.Optimizer]:
    """Return what trains the model; Muon takes the matrices of the trunk and leaves the rest to AdamW."""
    trained = list(model.trained())
    if attacker.optimizer in ("sgd", "whitened"):
        return [torch.optim.SGD(trained, lr=rate, momentum=MOMENTUM)]
    if attacker.optimizer == "adamw":
        return [torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)]
    if not hasattr(torch.optim, "Muon"):
        raise InvalidInputError(f"torch {torch.__version__} has no Muon, which came with 2.9; leave it out.")
    head = set(model.new_head.parameters())
    matrices = [p for p in trained if p.ndim == 2 and p not in head]
    others = [p for p in trained if p.ndim != 2 or p in head]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=rate, weight_decay=0.0)]


def _batches(rows: int, size: int | None, seed: int) -> Iterator[Tensor]:
    """Yield rows without end: all of them, or batches of new permutations; a rest is left out."""
    if size is None or size >= rows:
        while True:
            yield torch.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(rows, generator=generator)
        yield from order[: rows // size * size].split(size)


def _measure(
    model: Attacked, inputs: Sequence[Tensor], held: Tensor, test: Tensor
) -> tuple[float, float, NDArray[np.bool_]]:
    """Return held-out accuracy and loss, and which test images are classified rightly."""
    model.eval()
    with torch.no_grad():
        logits, other = (torch.cat([model(x) for x in part.split(CHUNK)]) for part in inputs)
        loss = float(nn.functional.cross_entropy(logits, held))
        accuracy = float((logits.argmax(dim=1) == held).double().mean())
        return accuracy, loss, (other.argmax(dim=1) == test).cpu().numpy()
