"""Attacks on a deep net as people make them: head, LoRA or all weights, tuned optimizers, few images.

Attacks are paired: a seed and the number of a repeat give the new head, LoRA's factors and the batches, and
these are the same for θ₀, θ_I and the same net from scratch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.deep.adapters import Attacked
from condnum.deep.attack_kinds import DeepAttacker, DeepBudget
from condnum.deep.attack_target import CHUNK, Pixels, Target
from condnum.deep.probe import logistic_head, smoothness, standardized
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice
from condnum.progress import report_event

#: References of a panel: θ₀, θ₀ once more with other random numbers (A against A), and the drawn net.
THETA_0, AGAIN, SCRATCH = "theta_0", "theta_0 again", "scratch"

MOMENTUM = 0.9
#: Of the head on whitened features, whose curvature is known: in units of 1/L.
_WHITENED_RATE = 3.0

#: Rows that tell the scale of features.
_SCALE_ROWS = 256


@dataclass(frozen=True, eq=False)
class DeepAttackRun:
    """One attacker on one net with some images: its trials, and the curves of the chosen one."""

    trials: pd.DataFrame  # trial, value, held_out (mean held-out accuracy), final (test), best_so_far
    chosen: float  # value of the chosen trial
    at_edge: bool  # it is the first or the last of the grid
    layer: str  # whose output `trunk` chose; else ""
    steps: NDArray[np.int64]  # (T,) of what is solved: passes over the images
    accuracy: NDArray[np.float64]  # (R, T) on test images, a row for each repeat
    pretrain_accuracy: float  # on D_P's test images after the attack, by the released head; NaN if unknown
    rows: int  # images that were trained on, without the held-out ones
    seconds: float  # of all trials and repeats

    @property
    def final_accuracy(self) -> float:
        """Test accuracy in the end, mean over repeats."""
        return float(self.accuracy[:, -1].mean())


def draw_of(seed: int, repeat: int) -> int:
    """Return the seed of head, factors and batches of an attack."""
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])


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

    A fifth of each class of the attacker's images is held out. The best trial has the largest mean held-out
    accuracy over all steps, so that an attacker in a hurry is chosen. Nothing is trained on the held-out
    images afterwards. The seed chooses the images; seed and repeat the new head, LoRA's factors and the
    batches, which are the same for every net. `again` takes other heads and batches: for A against A.
    """
    budget, started = budget or DeepBudget(), time.perf_counter()
    images = target.fresh if attacker.fresh else target.train
    if images is None:
        raise InvalidInputError(
            f"attacker '{attacker.name}' needs images on which θ_I was not trained; give fresh=…."
        )
    fit, held = images.chosen_rows(shots, seed)
    sets = [_Set(target, attacker, of, rows)
            for of, rows in ((images, fit), (images, held), (target.test, None))]  # fmt: skip
    values = attacker.trials(budget.trials)
    draws = [draw_of(seed, repeat + again * budget.repeats) for repeat in range(budget.repeats)]
    run = _solve if attacker.closed_form else _descend
    rows, best = [], None
    for trial, value in enumerate(values):
        found = run(target, attacker, float(value), sets, budget, draws[0])
        score = (_mean(found.held, found.steps), -_mean(found.held_loss, found.steps))
        whole = not math.isnan(score[1])  # else it diverged
        rows.append((trial + 1, value, score[0] if whole else 0.0, float(found.accuracy[-1])))
        if whole and (best is None or score > best[0]):
            best = score, float(value), found
    if best is None:
        raise InvalidInputError(
            f"every trial of '{attacker.label}' diverges ({', '.join(f'{v:.3g}' for v in values)})."
        )
    trials = pd.DataFrame(rows, columns=["trial", "value", "held_out", "final"])
    leader = [int(trials["held_out"][: k + 1].idxmax()) for k in range(len(trials))]
    trials["best_so_far"] = trials["final"].to_numpy()[leader]
    _, value, first = best
    others = () if attacker.closed_form else draws[1:]  # what is solved starts from nothing that is drawn
    repeats = [first, *(run(target, attacker, value, sets, budget, draw) for draw in others)]
    return DeepAttackRun(
        trials=trials,
        chosen=value,
        at_edge=len(values) > 1 and value in (values[0], values[-1]),
        layer=first.layer,
        steps=first.steps,
        accuracy=np.stack([found.accuracy for found in repeats]),
        pretrain_accuracy=float(np.mean([target.pretrain_accuracy(found.net) for found in repeats])),
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

    def __init__(
        self, target: Target, attacker: DeepAttacker, of: Pixels, rows: NDArray[np.int64] | None
    ) -> None:
        rows = np.arange(len(of)) if rows is None else rows
        self.inputs = target.inputs(attacker.subset, of, rows)
        self.layers = {"": self.inputs}  # what a solver may read
        if attacker.optimizer == "trunk":
            self.layers = target.trunk_outputs(of, rows)
        self.labels = of.labels[torch.from_numpy(rows)].to(target.device)
        self.some = of.images[torch.from_numpy(scale_rows(rows))]


@dataclass(frozen=True, eq=False)
class _Trial:
    """What one trial gave."""

    steps: NDArray[np.int64]
    held: NDArray[np.float64]  # (T,) held-out accuracy
    held_loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]  # (T,) on test images
    net: nn.Module | None  # afterwards; None: θ itself
    layer: str = ""


def _descend(
    target: Target, attacker: DeepAttacker, value: float, sets: Sequence[_Set], budget: DeepBudget, seed: int
) -> _Trial:
    """Train by an optimizer, and measure at log-spaced steps."""
    fit, held, test = sets
    inputs = [part.inputs for part in sets]
    if attacker.optimizer == "whitened":
        inputs = _whitened(inputs, value)
    features = inputs[0] if attacker.subset == "head" else target.through(target.theta, fit.some)
    model, rate = Attacked(target.theta, attacker, target.train.classes, features, seed=seed), value
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
        records.append((0.0, math.nan, 0.0))
    net = None if attacker.subset == "head" else model.net
    accuracy, losses, test_accuracy = np.array(records).T
    return _Trial(measured, accuracy, losses, test_accuracy, net)


def _solve(
    target: Target, attacker: DeepAttacker, value: float, sets: Sequence[_Set], budget: DeepBudget, seed: int
) -> _Trial:
    """Solve the head's problem by ridge regression on one-hot labels, or by logistic regression.

    Of several layers, as `trunk` reads them, the one with the largest held-out accuracy is taken.
    """
    from sklearn.linear_model import RidgeClassifier

    y, z, t = (part.labels.cpu().numpy() for part in sets)
    best = None
    for layer in sets[0].layers:
        rows = [part.layers[layer].double().cpu() for part in sets]
        if attacker.optimizer == "logistic":
            X, Z, T = (part.numpy() for part in standardized(*rows))
            model = logistic_head(X, y, value)
        else:
            X, Z, T = (part.numpy() for part in rows)
            spread = float(((X - X.mean(axis=0)) ** 2).sum() / X.shape[1]) or 1.0
            model = RidgeClassifier(alpha=value * spread).fit(X, y)
        held = float((model.predict(Z) == z).mean())
        if best is None or held > best.held[0]:
            passes = int(np.max(model.n_iter_)) if attacker.optimizer == "logistic" else 1
            accuracy = np.array([(model.predict(T) == t).mean()])
            best = _Trial(np.array([passes]), np.array([held]), np.zeros(1), accuracy, None, layer)
    assert best is not None  # there is a layer
    return best


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
) -> tuple[float, float, float]:
    """Return held-out accuracy and loss, and test accuracy."""
    model.eval()
    with torch.no_grad():
        logits, other = (torch.cat([model(x) for x in part.split(CHUNK)]) for part in inputs)
        loss = float(nn.functional.cross_entropy(logits, held))
        found = ((x.argmax(dim=1) == y).double().mean() for x, y in ((logits, held), (other, test)))
        accuracy, test_accuracy = map(float, found)
        return accuracy, loss, test_accuracy
