r"""One step of Eq. 11 on a backbone: the gradients of θ and ω.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta))

The regularizers' gradients with respect to the features are computed in float64 and sent back through the
net. The outer gradient of IMMA (Zheng & Yeh, 2024) goes through the simulated fine-tuner's steps.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.backbone import Backbone
from condnum.deep.regularizers import (
    feature_r_ill,
    feature_r_well,
    feature_rtol,
    precondition_gradient,
    smaller_gram,
)
from condnum.deep.training.samples import Batch, autocast
from condnum.deep.training.settings import LABEL_SMOOTHING, DeepSettings
from condnum.errors import InvalidInputError, RankError

Task = Literal["pretrain", "harmful"]
Batches: TypeAlias = Mapping[Task, Batch]  # of one step
Vector: TypeAlias = list[Tensor]

#: Names of the losses among a step's values.
SUPERVISED = "supervised"
HARMFUL = "harmful_loss"


@dataclass(frozen=True)
class FeaturePart:
    """A term of the objective that depends on the features of one task."""

    name: str
    task: Task
    value: Callable[[Tensor, float, DeepSettings], Tensor]  # of features (N, D) and their rank tolerance

    def gradient(self, features: Tensor, settings: DeepSettings) -> tuple[float, Tensor]:
        """Return the value and its gradient with respect to the features."""
        X = features.detach().to(torch.float64).requires_grad_()
        value = self.value(X, feature_rtol(features), settings)
        if not bool(torch.isfinite(value)):
            raise RankError(
                f"{self.name} is infinite, the spectrum of {len(X)} samples flat; use more samples a step."
            )
        (gradient,) = torch.autograd.grad(value, X)
        return float(value.detach()), gradient


def _well(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_well (Eq. 3) of H̃, through the dummy layer."""
    return feature_r_well(precondition_gradient(X) if settings.precondition else X)


def _ill(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_ill (Eq. 12) of H̃, through the dummy layer."""
    return feature_r_ill(precondition_gradient(X) if settings.precondition else X, rtol=rtol)


def _kappa(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """Compact κ of H̃ (Eq. 1), through the extreme eigenvalues."""
    sigma = torch.linalg.eigvalsh(smaller_gram(X))
    if not bool(sigma[-1] > 0):
        raise RankError("the features are all zero, so that they have no condition number.")
    rank = int((sigma.detach() > rtol * sigma.detach()[-1]).sum())
    return sigma[-1] / sigma[-rank]


_R_ILL = FeaturePart("ill", "harmful", _ill)

#: Parts of each method; all descend the supervised loss on D_P too, for the head has to follow the features.
FEATURE_PARTS: Mapping[str, tuple[FeaturePart, ...]] = {
    "ours": (FeaturePart("well", "pretrain", _well), _R_ILL),
    "r_ill_only": (_R_ILL,),
    "opt_kappa": (
        FeaturePart("kappa_pretrain", "pretrain", _kappa),
        FeaturePart("kappa_harmful", "harmful", lambda *of: -_kappa(*of)),
    ),
    "imma": (),
    "erase": (),
}

#: The methods of `immunize_backbone`.
DEEP_METHODS = tuple(FEATURE_PARTS)


class NotFiniteError(InvalidInputError):
    """Features of θ hold NaN or infinity."""


def check_finite(features: Tensor, task: str) -> None:
    """Refuse features that no spectrum can be taken of."""
    if not bool(torch.isfinite(features).all()):
        raise NotFiniteError(
            f"features of the {task} task hold NaN or infinity: check the weights or the learning rate."
        )


class DeepObjective:
    """The objective of a method on a backbone; that of `imma` has the fine-tuner's head w on D_H too."""

    def __init__(
        self,
        backbone: Backbone,
        method: str,
        settings: DeepSettings,
        device: torch.device,
        *,
        harmful_classes: int = 0,
        seed: int = 0,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.settings = settings
        self.device = device
        self.parts = FEATURE_PARTS[method]
        self.theta: Vector = [*backbone.trainable_parameters()]
        self._extractor = _BatchFeatures(backbone)
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._extractor.named_parameters()}
        self._names = [names[parameter] for parameter in self.theta]
        self.probe: nn.Linear | None = None
        if method == "imma":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                probe = nn.Linear(backbone.num_features, harmful_classes)
            self.probe = probe.to(device, self.theta[0].dtype)
        probes = [] if self.probe is None else self.probe.parameters()
        self.heads = [*backbone.head_parameters(), *probes]

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradient in θ, the head left out."""
        squares = [p.grad.double().square().sum() for p in self.theta if p.grad is not None]
        return float(torch.stack(squares).sum().sqrt())

    def backward(self, tasks: Batches, weights: Mapping[str, float], key: Sequence[int]) -> dict[str, float]:
        """Fill the gradients with those of `Σ weight·part`; return the parts' values."""
        if self.probe is not None:
            return self._bilevel(tasks, self.probe, weights[SUPERVISED], key)
        parameters = [*self.theta, *self.heads]
        for parameter in parameters:
            parameter.grad = None
        values: dict[str, float] = {}
        acting = 0  # tasks that do
        for name, batch in tasks.items():
            parts = [part for part in self.parts if part.task == name and part.name in weights]
            supervised = weights.get(SUPERVISED) if name == "pretrain" else None
            if not len(batch.labels) or (not parts and supervised is None):
                continue
            features = self._features(batch, (*key, acting))
            acting += 1
            X = features.detach()
            check_finite(X, name)
            loss = features.new_zeros(())
            if parts:
                pull = torch.zeros_like(X, dtype=torch.float64)
                for part in parts:
                    values[part.name], gradient = part.gradient(X, self.settings)
                    pull += weights[part.name] * gradient
                loss = loss + (features * pull.to(features.dtype)).sum()
            if supervised is not None:
                cross_entropy = self._cross_entropy(features, batch.labels, self.backbone.head)
                loss = loss + supervised / len(X) * cross_entropy
                values[SUPERVISED] = float(cross_entropy.detach()) / len(X)
            loss.backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return values

    def _features(self, batch: Batch, key: Sequence[int], theta: Vector | None = None) -> Tensor:
        """Return a batch's features `(n, D)` at θ, the same ones each time for a key; default θ as it is."""
        values = dict(zip(self._names, self.theta if theta is None else theta, strict=True))
        with self._random_stream(key):
            how = batch, self.device, self.settings.precision
            features: Tensor = torch.func.functional_call(self._extractor, values, how)
            return features

    def _cross_entropy(self, features: Tensor, labels: Tensor, head: nn.Module) -> Tensor:
        """Return the summed label-smoothing cross-entropy of a batch."""
        with autocast(self.device, self.settings.precision):
            logits = head(features)
        return functional.cross_entropy(
            logits.float() if logits.dtype == torch.bfloat16 else logits,
            labels.to(logits.device),
            reduction="sum",
            label_smoothing=LABEL_SMOOTHING,
        )

    @contextmanager
    def _random_stream(self, key: Sequence[int]) -> Generator[None]:
        """Seed dropout and stochastic depth in the block."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(hash(tuple(key)) & (2**63 - 1))
            yield

    def _bilevel(
        self, tasks: Batches, probe: nn.Linear, loss_weight: float, key: Sequence[int]
    ) -> dict[str, float]:
        """Fill the gradients of θ (bi-level), ω and w (each its own loss); return the losses."""
        rate, head = self.settings.inner_rate, self.backbone.head
        P, H = tasks["pretrain"], tasks["harmful"]
        path, probe_gradient = [self.theta], list[Tensor]()
        for _ in range(self.settings.inner_steps):
            inner, of_probe, _ = self._derivative(H, path[-1], probe, key)
            probe_gradient = probe_gradient or of_probe  # at θ itself
            moved = [a.detach() - rate * g for a, g in zip(path[-1], inner, strict=True)]
            path.append([value.requires_grad_() for value in moved])
        benign, _, benign_loss = self._derivative(P, path[-1], head, key)
        harmful, _, harmful_loss = self._derivative(H, path[-1], probe, key)
        outer = [loss_weight * b - h for b, h in zip(benign, harmful, strict=True)]
        for theta in reversed(path[:-1]):
            curved, _, _ = self._derivative(H, theta, probe, key, along=outer)
            outer = [v - rate * c for v, c in zip(outer, curved, strict=True)]
        _, head_gradient, _ = self._derivative(P, self.theta, head, key)
        gradients = [*outer, *(loss_weight * g for g in head_gradient), *probe_gradient]
        for parameter, gradient in zip([*self.theta, *self.heads], gradients, strict=True):
            parameter.grad = gradient
        return {SUPERVISED: benign_loss, HARMFUL: harmful_loss}

    def _derivative(
        self,
        batch: Batch,
        theta: Vector,
        head: nn.Module,
        key: Sequence[int],
        along: Vector | None = None,
    ) -> tuple[Vector, Vector, float]:
        """Return the gradients of a task's mean loss in θ and in its head, and the loss.

        With `along`, `∇²L·along` stands in place of the gradient in θ.
        """
        own = list(head.parameters())
        if not len(batch.labels):
            nothing = [torch.zeros_like(p, requires_grad=False) for p in (*theta, *own)]
            return nothing[: len(theta)], nothing[len(theta) :], 0.0
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            features = self._features(batch, key, theta)
            loss = self._cross_entropy(features, batch.labels, head) / len(features)
            found = torch.autograd.grad(loss, [*theta, *own], create_graph=along is not None)
            in_theta, in_head = list(found[: len(theta)]), list(found[len(theta) :])
            if along is not None:
                in_theta = list(torch.autograd.grad(in_theta, theta, along, materialize_grads=True))
        return in_theta, in_head, float(loss.detach())


class _BatchFeatures(nn.Module):
    """`Batch.features` as a module, into which `functional_call` can put other weights."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, batch: Batch, *how: Any) -> Tensor:
        """Return the features `(n, D)`."""
        return batch.features(self.backbone, *how)
