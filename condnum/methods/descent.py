"""The joint descent of a method's gradient parts, for one problem or many: weigh, step, record, stop."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from condnum.methods.method import Gradients, Method, Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.result import ImmunizationResult
from condnum.methods.run import Run
from condnum.methods.settings import DescentSettings


def descend(
    problem: ImmunizationProblem, method: Method, settings: DescentSettings, *, seed: int
) -> ImmunizationResult:
    """Run any descent, registered or not, from its random start, and do not judge it."""
    return JointDescent([problem], method, settings, [seed]).results()[0]


class JointDescent(Run):
    """Steps against the weighted sum of the gradient's parts; what becomes infinite is taken back."""

    def __init__(
        self,
        problems: Sequence[ImmunizationProblem],
        method: Method,
        settings: DescentSettings,
        seeds: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(problems, method, settings, seeds, **options)
        self._weights: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}
        self._safe = {name: torch.empty_like(tensor) for name, tensor in self.parameters.items()}
        self._optimizer = DescentOptimizer(settings.optimizer, self.parameters)

    def loop(self) -> None:
        """Step until nothing is active; leave the last finite parameters of each problem behind."""
        for step in range(self.settings.steps):
            self.step = step
            for name, tensor in self.parameters.items():
                self._safe[name].copy_(tensor)
            try:
                directions = self._directions()
            except torch.linalg.LinAlgError:
                return self.stop(self.active, "diverged")
            norm = torch.linalg.vector_norm(directions["theta"], dim=(1, 2))
            self.stop(~torch.isfinite(norm), "diverged")
            if step in self.told:
                self.record()
            self._optimizer.step(directions, self.settings.rate(step))
            self._keep_finite()
            if not bool(self.active.any()):
                return None
        self.step = self.settings.steps
        return self.stop(self.active, "steps")

    def facts(self, index: int) -> dict[str, Any]:
        """Add λ of each part, and what ran."""
        weights = {part: float(values[index]) for part, values in self._weights.items()}
        text = f" It ran {self.settings.describe([*weights])}"
        if self.reasons[index] != "steps":
            text += f"; {self.reasons[index]} after {self.steps[index]}"
        return {"part_weights": weights, "explanation": f"{super().facts(index)['explanation']}{text}."}

    def measured(self) -> dict[str, list[float]]:
        """Add the norm of each part."""
        return super().measured() | {f"norm_{part}": norms.tolist() for part, norms in self._norms.items()}

    def _gradients(self) -> Gradients:
        """Return the gradients of the method at the parameters."""
        if self.method.batched:
            return self.method.gradients(self.batch, self.parameters, self.settings, self.memory)
        (problem,) = self.problems  # what knows no batches is descended one by one
        alone = {name: tensor[0] for name, tensor in self.parameters.items()}
        found: Any = self.method.gradients(problem, alone, self.settings, self.memory)
        parts, others = (
            {name: x[None].double() for name, x in kind.items()} for kind in (found.parts, found.others)
        )
        return Gradients(parts, others)

    def _directions(self) -> dict[str, Tensor]:
        """Return the gradients of each parameter; those of θ are the weighted sums of their parts."""
        theta, gradients = self.parameters["theta"], self._gradients()
        if not self._weights or self.step in self.recorded:
            for part, gradient in gradients.parts.items():
                norm = torch.linalg.vector_norm(gradient, dim=(1, 2))
                self._norms[part] = torch.where(self.active, norm, self._norms.get(part, 0.0))
        if not self._weights:
            each = zip(*(norms.tolist() for norms in self._norms.values()), strict=True)
            chosen = [part_weights(dict(zip(self._norms, one, strict=True)), self.settings) for one in each]
            self._weights = {
                part: theta.new_tensor([weights[part] for weights in chosen]) for part in self._norms
            }
        total = torch.zeros_like(theta)
        for part, gradient in gradients.parts.items():
            total.addcmul_(self._weights[part][:, None, None], gradient)
        return {"theta": total} | gradients.others

    def _keep_finite(self) -> None:
        """Take back the step of the problems that have stopped, or whose parameters it made infinite."""
        sizes = [torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2)) for x in self.parameters.values()]
        finite = self.active & torch.isfinite(torch.stack(sizes)).all(dim=0)
        if not bool(finite.all()):
            for name, tensor in self.parameters.items():
                tensor.copy_(torch.where(finite[:, None, None], tensor, self._safe[name]))
            self.stop(~finite, "diverged")


def part_weights(norms: dict[str, float], settings: DescentSettings) -> dict[str, float]:
    """Return the weight of each gradient part: λ balanced at step 0, or fixed.

    Examples:
        >>> part_weights({"well": 4.0, "ill": 0.5}, DescentSettings(ratio=3.0))
        {'well': 0.25, 'ill': 6.0}
    """
    chosen = {"supervised": settings.loss_weight}
    if settings.weights == "fixed":
        chosen |= {"well": settings.lambda_pretrain, "ill": settings.lambda_harmful}
    else:
        wanted = {"well": 1.0, "kappa_pretrain": 1.0, "ill": settings.ratio, "kappa_harmful": settings.ratio}
        chosen |= {part: wanted[part] / norms[part] for part in wanted if norms.get(part, 0.0) > 0}
    return {part: chosen.get(part, 1.0) for part in norms}


class DescentOptimizer:
    """Plain gradient descent `x ← x − ηg`, or Adam with (0.9, 0.999, 1e-8) (Kingma & Ba, 2015), in place.

    `torch.optim.Adam` does the same, but loads torch's compiler first: 5 s a process.
    """

    def __init__(self, name: Literal["adam", "gd"], parameters: Parameters) -> None:
        self._adam, self._parameters = name == "adam", parameters
        self._moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in parameters.items()}
        self._steps = 0

    @torch.no_grad()
    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Take one step against the gradients."""
        self._steps += 1
        for name, gradient in gradients.items():
            parameter, (mean, square) = self._parameters[name], self._moments[name]
            if not self._adam:
                parameter.add_(gradient, alpha=-learning_rate)
                continue
            mean.lerp_(gradient, 1 - 0.9)
            square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
            root = square.sqrt().div_(math.sqrt(1 - 0.999**self._steps)).add_(1e-8)
            parameter.addcdiv_(mean, root, value=-learning_rate / (1 - 0.9**self._steps))
