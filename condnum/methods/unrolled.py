r"""Defenses against an attacker who is simulated step by step: `trap` and `contract`, on a squared loss.

Both papers are known here by their abstracts (Sarker et al., *Trapping Harmful Fine-Tuning*, Lock-LLM 2025;
CLAMP, CVPR 2026), and no code is public: these are readings of them for linear extractors.
`condnum.probing.attack_path` has the same quantities in closed form, and what is proved about them.
"""

from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from condnum.errors import InvalidInputError
from condnum.methods.algorithm1 import Ours, benign_gradients
from condnum.methods.method import Gradients, Parameters
from condnum.methods.nets import NetPart, NetStep
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings
from condnum.theory.extremes import largest_vector

#: On a net a step costs K second derivatives of it: about 0.5 s at K = 3, on one busy core, 8×8 digits and a
#: small ResNet. K = 1, 3, 5 and η from 0.01 to 1 were tried there on one seed; η = 0.01 delays a probe most.
_NET_ATTACK = {"inner_steps": 3, "inner_rate": 0.01, "steps": 200, "record_every": 10}


#: An update this many times as long as the first is round-off: all is learned, and nothing contracts.
_LEARNED = 1e-12


class Attack(NamedTuple):
    """K steps of size 1/L on D_H's squared loss, from a zero head; losses are over that of the zero head."""

    gain: Tensor  # ΔL_act = L(w_0) − L(w_K)
    expected: Tensor  # ΔL_exp = Kη‖g_0‖², what the gradient at the start promises
    update: Tensor  # ‖u_K‖² L/2: the loss, at curvature L, over the length of the next update
    contraction: Tensor  # ĉ = ‖u_(K+1)‖/‖u_K‖
    curvature: Tensor  # (K + 1,) uᵀHu/‖u‖² over L along u_0, …, u_K


def unrolled(problem: ImmunizationProblem, theta: Tensor, steps: int) -> Attack:
    """Simulate the attacker; the step follows θ, as an attacker tunes it, so that no scale of θ helps.

    H is never formed: K steps cost O(KD²), and so do their derivatives.
    """
    loss = problem.harmful.squared
    moment = theta.mT @ loss.moment
    if not bool(moment.any()):
        raise InvalidInputError("XᵀY of the harmful task is zero, so no attacker learns; check its targets.")

    def H(u: Tensor) -> Tensor:
        return theta.mT @ (loss.covariance @ (theta @ u))

    with torch.no_grad():
        v = largest_vector(theta, H)
    top = v @ H(v)  # σ₁, with its derivative
    updates = [moment / top]
    for _ in range(steps + 1):
        updates.append(updates[-1] - H(updates[-1]) / top)
    head = torch.stack(updates[:steps]).sum(dim=0)
    sizes = torch.stack([u.square().sum() for u in updates])
    inner = torch.stack([(u * after).sum() for u, after in pairwise(updates)])
    left = sizes.detach() > _LEARNED**2 * sizes.detach()[0]
    return Attack(
        gain=(head * (2 * moment - H(head))).sum() / loss.energy,
        expected=2 * steps * top * sizes[0] / loss.energy,
        update=top * sizes[-2] / loss.energy,
        contraction=(sizes[-1] / sizes[-2]).sqrt() if left[-1] else sizes.new_zeros(()),
        curvature=1 - torch.where(left[:-1], inner / torch.where(left[:-1], sizes[:-1], 1), 0),
    )


def trap_excess(step: NetStep) -> Tensor:
    """Return `softplus(ΔL_act − ΔL_exp)` on a net, whose attacker moves θ and a head from the class means."""
    path, K, rate = step.attack, step.settings.inner_steps, step.settings.inner_rate
    expected = K * rate * path.gradients[0].square().sum()
    return softplus(path.losses[0] - path.losses[-1] - expected)


def gain_estimate(step: NetStep, factor: float, curvature: float) -> Tensor:
    """Return Contract's part on a net: the attacker's gain over all steps less the loss at its start.

    Updates are `u_k = −ηg_(k−1)`, so that differences of gradients along them need no further pass:
    `ĉ = ‖g_K‖/‖g_(K−1)‖`, `L̃ = ‖g_K − g_(K−1)‖/‖u_K‖`.
    """
    (losses, g), rate = step.attack, step.settings.inner_rate
    sizes = torch.stack([slope.norm() for slope in g])
    contraction, last = sizes[-1] / sizes[-2], rate * sizes[-2]  # ĉ, ‖u_K‖
    B = last / (1 - contraction).clamp(min=(1 - factor) / 10)  # of a path that does not contract: finite
    smoothness = (g[-1] - g[-2]).norm() / last
    bends = torch.stack([1 - before @ after / before.square().sum() for before, after in pairwise(g)])
    pressed = softplus(contraction - factor) + softplus(curvature - bends).mean()  # curvature in units of 1/η
    later = sizes[-1] * B + smoothness / 2 * B.square()
    return later + pressed - losses[-1]  # ΔL_K less the loss at the start is less the loss after K steps


class Trap(Ours):
    """Algorithm 1 with a trap: an attacker should gain less in K steps than its first gradient promises."""

    name, label = "trap", "Trap"
    summary = (
        "Algorithm 1 and softplus(ΔL<sub>act</sub> − ΔL<sub>exp</sub>) of a simulated attacker; steps × O(D³)"
    )
    parts = (*Ours.parts, "trap")
    needs = ("harmful",)
    defaults = DescentSettings(inner_steps=10)
    net_parts: ClassVar = {**Ours.net_parts, "trap": NetPart("harmful", trap_excess)}
    net_defaults: ClassVar = _NET_ATTACK
    net_attacks = True

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the parts of Algorithm 1 and that of the trap."""
        theta = parameters["theta"].detach().requires_grad_()
        attack = unrolled(problem, theta, settings.inner_steps)
        (slope,) = torch.autograd.grad(softplus(attack.gain - attack.expected), theta)
        known = super().gradients(problem, parameters, settings)
        return Gradients(known.parts | {"trap": slope}, known.others)


class Contract(Ours):
    """CLAMP's outer loss: an attacker's gain over all steps, estimated by the contraction along K of them."""

    name, label = "contract", "Contraction"
    summary = "the benign loss and an estimate of an attacker's gain over all steps (CLAMP); steps × O(KD²)"
    parts = ("supervised", "contract")
    needs = ("harmful",)
    defaults = DescentSettings(inner_steps=10)
    factor = 0.9  # ĉ is pressed below: then what follows K steps is at most ten times as long as the last
    curvature = 0.1  # of σ₁ (on a net of 1/η), above which curvature along the steps is pressed
    net_parts: ClassVar = {
        "contract": NetPart("harmful", partial(gain_estimate, factor=factor, curvature=curvature))
    }
    net_defaults: ClassVar = {**_NET_ATTACK, "ratio": 1.0}
    net_attacks, net_ranked = True, False

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the gradient of `ΔL_K + ‖g_K‖B + L̃B²/2`, `B = ‖u_K‖/(1 − ĉ)`, and of the benign loss."""
        theta = parameters["theta"].detach().requires_grad_()
        attack = unrolled(problem, theta, settings.inner_steps)
        far = 1 / (1 - attack.contraction.clamp(max=1 - 1e-12))  # B/‖u_K‖
        later = attack.update * (2 * far + far.square())  # ‖g_K‖B + L̃B²/2
        pressed = (
            softplus(attack.contraction - self.factor) + softplus(self.curvature - attack.curvature).mean()
        )
        (slope,) = torch.autograd.grad(attack.gain + later + pressed, theta)
        benign = benign_gradients(problem, parameters)
        return Gradients(benign.parts | {"contract": slope}, benign.others)
