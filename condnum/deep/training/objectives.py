r"""The objective of a method on a backbone, Eq. 11 among them: the gradients of θ and ω at a step.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta))

The parts are those of `condnum.deep.methods`; here a net answers what they ask of a step.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.backbone import Backbone
from condnum.deep.methods import NetMethod, NetStep, Task, Vector, get_net_method
from condnum.deep.training.samples import Batch
from condnum.deep.training.settings import DeepSettings
from condnum.errors import InvalidInputError

Batches: TypeAlias = Mapping[Task, Batch]  # of one step


class NotFiniteError(InvalidInputError):
    """Features of θ hold NaN or infinity."""


def check_finite(features: Tensor, task: str) -> None:
    """Refuse features that no spectrum can be taken of."""
    if not bool(torch.isfinite(features).all()):
        raise NotFiniteError(
            f"features of the {task} task hold NaN or infinity: check the weights or the learning rate."
        )


class DeepObjective:
    """The objective of a method on a backbone, with a head on D_H where the method trains one."""

    def __init__(
        self,
        backbone: Backbone,
        method: str | NetMethod,
        settings: DeepSettings,
        *,
        harmful_classes: int = 0,
        seed: int = 0,
    ) -> None:
        self.backbone = backbone
        self.method = get_net_method(method)
        self.settings = settings
        self.theta: Vector = [*backbone.trainable_parameters()]
        names = {parameter: name for name, parameter in backbone.named_parameters()}
        self._names = [names[parameter] for parameter in self.theta]  # type: ignore[index]
        self.probe: nn.Linear | None = None
        if self.method.probe:
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
        places = [*tasks]

        def features(task: Task, theta: Vector | None) -> Tensor:
            if theta is None:
                found = self._features(tasks[task], (*key, places.index(task)))
                check_finite(found.detach(), task)
                return found
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
                return self._features(tasks[task], key, theta)

        labels = {task: batch.labels for task, batch in tasks.items()}
        step = NetStep(
            self.theta, self.heads, self.backbone.head, self.probe, labels, self.settings, features
        )  # fmt: skip
        own = self.method.backward
        return own(step, weights) if own else step.backward(self.method.parts, weights)

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
