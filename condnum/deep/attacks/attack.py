"""Attacks on a deep net as people make them: head, LoRA or all weights, tuned optimizers, few images.

Attacks are paired: a seed and the number of a repeat give the new head, LoRA's factors and the batches, and
these are the same for θ₀, θ_I and the same net from scratch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.data.task_pair import standardize
from condnum.deep.attacks.attacked_net import AttackedNet, Muon
from condnum.deep.attacks.attackers import RANGES, DeepAttacker, DeepBudget
from condnum.deep.attacks.target import CHUNK, Target
from condnum.deep.images import minibatches
from condnum.deep.probe import logistic_head, smoothness
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice
from condnum.progress import report_event

MOMENTUM = 0.9
#: Of the head on whitened features, whose curvature is known: in units of 1/L.
_WHITENED_RATE = 3.0

#: Rows that tell the scale of features.
_SCALE_ROWS = 256

#: Held-out accuracy and loss, and test accuracy, at a step.
_Scores = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class DeepAttackRun:
    """One attacker on one net with some images: its trials, and the curves of the chosen one."""

    trials: pd.DataFrame  # trial, value, layer (of each the best), held_out, final (test)
    chosen: float  # value of the trial with the best held-out accuracy in the end
    at_edge: bool  # it is the first or the last of the grid
    layer: str  # whose output `trunk` reads, or the change of images; else ""
    steps: NDArray[np.int64]  # (T,) of what is solved: passes over the images
    accuracy: NDArray[np.float64]  # (R, T) on test images, a row for each repeat
    benign_accuracy: float  # on D_P's test images after the attack, by the released head; NaN if unknown
    rows: int  # images that were trained on, without the held-out ones
    seconds: float  # of all trials and repeats

    @property
    def final_accuracy(self) -> float:
        """Test accuracy in the end, mean over repeats."""
        return float(self.accuracy[:, -1].mean())


def attack(
    target: Target,
    attacker: DeepAttacker,
    *,
    shots: int = 0,
    budget: DeepBudget | None = None,
    seed: int = 0,
    again: bool = False,
) -> DeepAttackRun:
    """Attack a net: trials from the same start, then the best by held-out accuracy from other starts.

    A fifth of each class of the attacker's images is held out; nothing is trained on it afterwards. The trial
    with the best held-out accuracy in the end is chosen. The seed chooses the images; seed and repeat the new
    head, LoRA's factors and the batches, which are the same for every net. `again` takes other heads and
    batches: for A against A.
    """
    budget, started = budget or DeepBudget(), time.perf_counter()
    images = _Images(target, attacker, shots, seed)
    draws = [
        int(np.random.SeedSequence([seed, repeat + again * budget.repeats]).generate_state(1)[0])
        for repeat in range(budget.repeats)
    ]

    def run(value: float, layer: str, draw: int) -> _Trial:
        if attacker.closed_form:
            return _solve(target, attacker, images, value, layer)
        return _descend(target, attacker, images, value, budget, draw)

    values = attacker.trials(budget.trials).tolist()
    tried = [run(value, layer, draws[0]) for value in values for layer in images.layers]
    best = max(tried, key=_Trial.score)
    if math.isnan(best.held_loss[-1]):
        raise InvalidInputError(
            f"every trial of '{attacker.label}' diverges ({', '.join(f'{v:.3g}' for v in values)})."
        )
    if len(images.layers) > 1:  # of each the best one
        tried = [max((t for t in tried if t.layer == layer), key=_Trial.score) for layer in images.layers]
    rows = [(k, t.value, t.layer, t.held[-1], t.accuracy[-1]) for k, t in enumerate(tried, 1)]
    others = () if attacker.closed_form else draws[1:]  # what is solved starts from nothing that is drawn
    runs = [best, *(run(best.value, best.layer, draw) for draw in others)]
    return DeepAttackRun(
        trials=pd.DataFrame(rows, columns=["trial", "value", "layer", "held_out", "final"]),
        chosen=best.value,
        at_edge=len(values) > 1 and best.value in (values[0], values[-1]),
        layer=best.layer,
        steps=best.steps,
        accuracy=np.stack([found.accuracy for found in runs]),
        benign_accuracy=float(np.mean([found.benign_accuracy for found in runs])),
        rows=len(images.labels[0]),
        seconds=time.perf_counter() - started,
    )


class _Images:
    """The attacker's images of D_H: to train on, held out, and the test images; and what it starts from."""

    def __init__(self, target: Target, attacker: DeepAttacker, shots: int, seed: int) -> None:
        own = target.fresh if attacker.fresh else target.train
        if own is None:
            raise InvalidInputError(
                f"attacker '{attacker.name}' needs images on which θ_I was not trained; give fresh=…."
            )
        fit, held = own.chosen_rows(shots, seed)
        sets = [(own, fit), (own, held), (target.test, np.arange(len(target.test)))]
        self.labels = [of.labels[torch.from_numpy(rows)].to(target.device) for of, rows in sets]
        self.inputs = [target.inputs(attacker.subset, of, rows) for of, rows in sets]
        self.layers = {"": self.inputs}  # what a solver may read
        if attacker.optimizer == "trunk" or attacker.transformed:
            read = target.trunk_outputs if attacker.optimizer == "trunk" else target.transformed
            found = [read(of, rows) for of, rows in sets]
            self.layers = {name: [part[name] for part in found] for name in found[0]}
        self.sample = own.images[torch.from_numpy(scale_rows(fit))]
        self.benign = target.benign_train if attacker.benign else None
        if attacker.benign and self.benign is None:
            raise InvalidInputError(
                f"attacker '{attacker.name}' begins with training images of D_P; give benign_train=…."
            )


def scale_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows by whose features a head is scaled: some of all, for the first may be of one class."""
    return np.sort(np.random.default_rng(0).permutation(rows)[:_SCALE_ROWS])


@dataclass(frozen=True, eq=False)
class _Trial:
    """What one trial gave."""

    value: float
    steps: NDArray[np.int64]
    held: NDArray[np.float64]  # (T,) held-out accuracy
    held_loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]  # (T,) on test images
    benign_accuracy: float  # afterwards, on D_P's test images
    layer: str = ""

    def score(self) -> tuple[float, float]:
        """Return held-out accuracy in the end, then loss; the least of a trial that diverges."""
        return (-1.0, 0.0) if math.isnan(self.held_loss[-1]) else (self.held[-1], -self.held_loss[-1])


def _descend(
    target: Target, attacker: DeepAttacker, images: _Images, value: float, budget: DeepBudget, seed: int
) -> _Trial:
    """Train by an optimizer, and measure at log-spaced steps."""
    inputs = _whitened(images.inputs, value) if attacker.optimizer == "whitened" else images.inputs
    train, labels = inputs[0], images.labels[0]
    features = train if attacker.subset == "head" else target.through(target.theta, images.sample)
    model, rate = AttackedNet(target.theta, attacker, target.train.classes, features, seed=seed), value
    if (P := images.benign) is not None:
        model.take_released_head()
        train, labels = target.inputs(attacker.subset, P, np.arange(len(P))), P.labels.to(target.device)
    if attacker.optimizer == "sgd":
        rate = value / smoothness(features / model.scale)
    elif attacker.optimizer == "whitened":  # λ_max of whitened features is 1
        rate = 2 * _WHITENED_RATE / max(1.0, model.scale**-2)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.trained, lr=rate, momentum=MOMENTUM)
    if attacker.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.trained, lr=rate, weight_decay=0.0)
    elif attacker.optimizer == "muon":
        optimizer = Muon(model.trained, lr=rate)
    size = len(labels) if attacker.full_batch else budget.batch_size
    batches = (rows for _, parts in minibatches(np.arange(len(labels)), size, [seed]) for rows in parts)
    measured, records = budget.measured(len(labels) / min(size, len(labels))), list[_Scores]()
    # Before its steps, one that solves in the end is `ridge`, which needs none.
    scores, measured = (_solved, measured[-1:]) if attacker.benign else (_measure, measured)
    what = f"{attacker.label}, {len(labels)} rows"
    with memory_advice(budget.batch_size, target.device, what):
        for step in range(budget.steps + 1):
            if step in measured:
                records.append(scores(model, inputs, images.labels))
                report_event(stage=what, step=step, steps=budget.steps)
            if step == budget.steps or (records and math.isnan(records[-1][1])):
                break
            rows = torch.from_numpy(next(batches)).to(target.device)
            model.train()
            loss = nn.functional.cross_entropy(model(train[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    records += [(0.0, math.nan, 0.0)] * (len(measured) - len(records))  # it diverged
    net = None if attacker.subset == "head" else model.net
    held, losses, test = np.array(records).T
    return _Trial(value, measured, held, losses, test, target.benign_accuracy(net))


def _solved(model: AttackedNet, inputs: Sequence[Tensor], labels: Sequence[Tensor]) -> _Scores:
    """Return held-out and test accuracy of ridge regression on the features, at its best penalty."""
    model.eval()
    with torch.no_grad():
        parts = [torch.cat([model.features(x) for x in part.split(CHUNK)]) for part in inputs]
    if not all(bool(part.isfinite().all()) for part in parts):
        return 0.0, math.nan, 0.0
    tried = [_ridge(parts, labels, value) for value in np.geomspace(*RANGES["ridge"], 4)]
    held, test = max(tried, key=lambda scores: scores[0])
    return held, 0.0, test


def _ridge(parts: Sequence[Tensor], labels: Sequence[Tensor], value: float) -> tuple[float, float]:
    """Return held-out and test accuracy of ridge regression on one-hot labels."""
    from sklearn.linear_model import RidgeClassifier

    X, Z, T = (part.cpu().double().numpy() for part in parts)
    y, z, t = (part.cpu().numpy() for part in labels)
    spread = float(((X - X.mean(axis=0)) ** 2).sum() / X.shape[1]) or 1.0
    model = RidgeClassifier(alpha=value * spread).fit(X, y)
    return model.score(Z, z), model.score(T, t)


def _solve(target: Target, attacker: DeepAttacker, images: _Images, value: float, layer: str) -> _Trial:
    """Solve the head's problem by ridge regression on one-hot labels, or by logistic regression."""
    rows, passes = images.layers[layer], 1
    if attacker.optimizer == "logistic":
        X, Z, T = (part.cpu().double().numpy() for part in rows)
        y, z, t = (part.cpu().numpy() for part in images.labels)
        model = logistic_head(standardize(X), y, value)
        held, test = (model.score(standardize(of, reference=X), known) for of, known in ((Z, z), (T, t)))
        passes = int(np.max(model.n_iter_))
    else:
        held, test = _ridge(rows, images.labels, value)
    scores = np.array([held]), np.zeros(1), np.array([test])
    return _Trial(value, np.array([passes]), *scores, target.benign_accuracy(), layer)


def _whitened(inputs: Sequence[Tensor], floor: float) -> list[Tensor]:
    """Return features in the principal axes of the first set, each at unit variance above a floor."""
    rows = inputs[0].double()
    mean = rows.mean(dim=0)
    _, sigma, axes = torch.linalg.svd(rows - mean, full_matrices=False)
    lam = sigma.square() / len(rows)
    constant = lam[0] <= torch.finfo(torch.float32).eps ** 2 * mean.square().sum()  # a net may be blind
    scale = torch.zeros_like(lam) if constant else (lam + floor * lam[0]).rsqrt()
    return [((part.double() - mean) @ axes.mT * scale).float() for part in inputs]


def _measure(model: AttackedNet, inputs: Sequence[Tensor], labels: Sequence[Tensor]) -> _Scores:
    """Return held-out accuracy and loss, and test accuracy."""
    model.eval()
    with torch.no_grad():
        logits, other = (torch.cat([model(x) for x in part.split(CHUNK)]) for part in inputs[1:])
    loss = float(nn.functional.cross_entropy(logits, labels[1]))
    held, test = (float((x.argmax(dim=1) == y).double().mean())
                  for x, y in ((logits, labels[1]), (other, labels[2])))  # fmt: skip
    return held, loss, test
