r"""The objectives of the methods on a backbone, Eq. 11 first: the gradients of θ and ω at a step.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta))

Spectra are those of features in float64. The outer gradient of IMMA (Zheng & Yeh, 2024) goes through the
simulated fine-tuner's steps.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

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
from condnum.deep.training.samples import Batch
from condnum.deep.training.settings import LABEL_SMOOTHING, DeepSettings
from condnum.errors import InvalidInputError, RankError

Task = Literal["pretrain", "harmful"]
Batches: TypeAlias = Mapping[Task, Batch]  # of one step
Vector: TypeAlias = Sequence[Tensor]

#: Names of the losses among a step's values.
SUPERVISED = "supervised"
HARMFUL = "harmful_loss"


class FeaturePart(NamedTuple):
    """A term of the objective that depends on the features of one task."""

    task: Task
    value: Callable[[Tensor, float], Tensor]  # of features (N, D) in float64 and their rank tolerance
    preconditioned: bool = True  # whether the dummy layer of Sec. 4.4 may act on it


def _kappa(X: Tensor, rtol: float) -> Tensor:
    """Compact κ of H̃ (Eq. 1), through the extreme eigenvalues."""
    sigma = torch.linalg.eigvalsh(smaller_gram(X))
    if not bool(sigma[-1] > 0):
        raise RankError("the features are all zero, so that they have no condition number.")
    rank = int((sigma.detach() > rtol * sigma.detach()[-1]).sum())
    return sigma[-1] / sigma[-rank]


_R_ILL = FeaturePart("harmful", lambda X, rtol: feature_r_ill(X, rtol=rtol))

#: Parts of each method; all descend the supervised loss on D_P too, for the head has to follow the features.
FEATURE_PARTS: Mapping[str, Mapping[str, FeaturePart]] = {
    "ours": {"well": FeaturePart("pretrain", lambda X, _: feature_r_well(X)), "ill": _R_ILL},
    "r_ill_only": {"ill": _R_ILL},
    "opt_kappa": {
        "kappa_pretrain": FeaturePart("pretrain", _kappa, preconditioned=False),
        "kappa_harmful": FeaturePart("harmful", lambda X, rtol: -_kappa(X, rtol), preconditioned=False),
    },
    "imma": {},
    "erase": {},
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
        *,
        harmful_classes: int = 0,
        seed: int = 0,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.settings = settings
        self.parts = FEATURE_PARTS[method]
        self.theta: Vector = [*backbone.trainable_parameters()]
        names = {parameter: name for name, parameter in backbone.named_parameters()}
        self._names = [names[parameter] for parameter in self.theta]  # type: ignore[index]
        self.probe: nn.Linear | None = None
        if method == "imma":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                probe = nn.Linear(backbone.num_features, harmful_classes)
            self.probe = probe.to(self.theta[0])
        probes = [] if self.probe is None else self.probe.parameters()
        self.heads = [*backbone.head_parameters(), *probes]

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        return self.theta[0].device

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradient in θ, the head left out."""
        squares = [p.grad.double().square().sum() for p in self.theta if p.grad is not None]
        return float(torch.stack(squares).sum().sqrt())

    def backward(self, tasks: Batches, weights: Mapping[str, float], key: Sequence[int]) -> dict[str, float]:
        """Fill the gradients with those of `Σ weight·part`; return the parts' values."""
        for parameter in (*self.theta, *self.heads):
            parameter.grad = torch.zeros_like(parameter)
        if self.probe is not None:
            return self._bilevel(tasks, self.probe, weights[SUPERVISED], key)
        values: dict[str, float] = {}
        for place, (task, batch) in enumerate(tasks.items()):
            parts = {name: of for name, of in self.parts.items() if of.task == task and name in weights}
            supervised = weights.get(SUPERVISED) if task == "pretrain" else None
            if not len(batch.labels) or (not parts and supervised is None):
                continue
            features = self._features(batch, (*key, place))
            check_finite(features.detach(), task)
            X, loss = features.double(), features.new_zeros(())
            for name, part in parts.items():
                Z = precondition_gradient(X) if self.settings.precondition and part.preconditioned else X
                value = part.value(Z, feature_rtol(features))
                values[name] = float(value.detach())
                if not bool(torch.isfinite(value)):
                    raise RankError(
                        f"{name} is infinite, the spectrum of {len(X)} samples flat; use more samples a step."
                    )
                loss = loss + weights[name] * value
            if supervised is not None:
                cross_entropy = self._cross_entropy(features, batch.labels, self.backbone.classify)
                values[SUPERVISED] = float(cross_entropy.detach())
                loss = loss + supervised * cross_entropy
            loss.backward()
        return values

    def _features(self, batch: Batch, key: Sequence[int], theta: Vector | None = None) -> Tensor:
        """Return a batch's features `(n, D)` at θ, the same ones each time for a key; default θ as it is."""
        with self._random_stream(key):
            if theta is None or not len(batch.labels):
                return batch.features(self.backbone)
            values = dict(zip(self._names, theta, strict=True))
            how = {"activations": batch.activations}
            found: Tensor = torch.func.functional_call(self.backbone, values, (batch.at(self.backbone),), how)
            return found

    @contextmanager
    def _random_stream(self, key: Sequence[int]) -> Generator[None]:
        """Seed dropout and stochastic depth in the block."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(hash(tuple(key)) & (2**63 - 1))
            yield

    @staticmethod
    def _cross_entropy(features: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean label-smoothing cross-entropy of a batch, 0 of an empty one."""
        logits = head(features)
        options = {"reduction": "sum", "label_smoothing": LABEL_SMOOTHING}
        loss = functional.cross_entropy(logits, labels.to(logits.device), **options)  # type: ignore[arg-type]
        return loss / max(1, len(labels))

    def _bilevel(
        self, tasks: Batches, probe: nn.Linear, loss_weight: float, key: Sequence[int]
    ) -> dict[str, float]:
        """Fill the gradients of θ (bi-level), ω and w (each its own loss, at θ); return the losses."""
        P, H = tasks["pretrain"], tasks["harmful"]

        def loss(batch: Batch, head: Callable[[Tensor], Tensor], theta: Vector) -> Tensor:
            return self._cross_entropy(self._features(batch, key, theta), batch.labels, head)

        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            moved, inner = self.theta, loss(H, probe, self.theta)
            own = loss_weight * loss(P, self.backbone.classify, self.theta) + inner
            gradients = list(torch.autograd.grad(own, self.heads, retain_graph=True))
            for step in range(self.settings.inner_steps):
                inner = inner if step == 0 else loss(H, probe, moved)
                slopes = torch.autograd.grad(inner, list(moved), create_graph=True, materialize_grads=True)
                moved = [a - self.settings.inner_rate * g for a, g in zip(moved, slopes, strict=True)]
            benign, harmful = loss(P, self.backbone.classify, moved), loss(H, probe, moved)
            weighted = loss_weight * benign - harmful
            outer = torch.autograd.grad(weighted, list(self.theta), materialize_grads=True)
        for parameter, gradient in zip([*self.theta, *self.heads], [*outer, *gradients], strict=True):
            parameter.grad = gradient
        return {SUPERVISED: float(benign.detach()), HARMFUL: float(harmful.detach())}
