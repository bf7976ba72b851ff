"""Settings of an immunization of a deep net; `immunize_backbone` checks their values."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from condnum.deep.methods import NetMethod, get_net_method
from condnum.errors import check_known
from condnum.methods.descent import overridden


@dataclass(frozen=True)
class DeepSettings:
    """How a backbone is immunized.

    The defaults look for their own weights: every `record_every` steps λ_H goes up where (ii) is below 0.7,
    else down, and the loss weight likewise by the accuracy floor, on held-out images. After `patience`
    evaluations without progress the run ends. The paper's own settings are presets, by name in place of
    settings.
    """

    optimizer: Literal["sgd", "adam"] = "adam"  # sgd: with Nesterov momentum 0.9
    learning_rate: float = 2e-4  # η at step 0, of θ and of the head
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: η falls to 0 at the last step
    epochs: int = 3  # passes over the smaller task, as Table 4 counts them
    steps: int | None = 1600  # at most; None: `epochs`
    batch_size: int = 100  # images of each task in a step
    weights: Literal["adaptive", "balanced", "fixed"] = "adaptive"  # where λ_P and λ_H come from
    ratio: float = 1.0  # balanced: λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0; adaptive: to begin with
    lambda_benign: float = 5e-5  # fixed: λ_P (Table 4, ResNet18 and Cars)
    lambda_harmful: float = 2e6  # fixed: λ_H (likewise)
    loss_weight: float = 1.0  # of the supervised loss on D_P; adaptive: over ‖g‖, to begin with
    precondition: bool = False  # the dummy layer of Sec. 4.4 on the features, for R_well and R_ill
    inner_steps: int = 1  # where an attacker is simulated: K, steps of gradient descent
    inner_rate: float = 1e-2  # likewise: their size
    record_every: int | None = 25  # steps between evaluations and checkpoints; None or 0: a tenth of all
    groups: int = 10  # groups of samples for RIR_θ0 at an evaluation
    group_size: int = 100  # samples of a group, as in Eq. 17's estimate
    patience: int | None = 10  # evaluations without a better θ or larger RIR_θ0 before stopping; None: none
    max_accuracy_drop: float = 0.05  # D_P accuracy may fall by this much below θ₀'s
    keep: Literal["best", "last"] = "best"  # which θ is the result
    transformed: bool = False  # erase: D_H's images are read under random changes too, best with keep="last"

    def with_overrides(self, **values: Any) -> "DeepSettings":
        """Return a copy with some settings changed."""
        return overridden(self, **values)

    def rate(self, step: int, steps: int) -> float:
        """Return η of a step (from 0): constant, or multiplied by `(1 + cos(π·step/steps))/2`."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))


def default_settings(method: str | NetMethod) -> DeepSettings:
    """Return the settings of a method for which none are given."""
    return DeepSettings(**get_net_method(method).defaults)


_TABLE_4: dict[str, dict[str, Any]] = {
    "resnet18-cars": {"lambda_benign": 5e-5, "lambda_harmful": 2e6, "epochs": 3},
    "resnet18-country211": {"lambda_benign": 1e-4, "lambda_harmful": 2e6, "epochs": 3},
    "vit-cars": {"lambda_benign": 3e-6, "lambda_harmful": 3e8, "epochs": 2},
    "vit-country211": {"lambda_benign": 1e-6, "lambda_harmful": 1e8, "epochs": 2},
}


def deep_preset(name: str) -> DeepSettings:
    """Return published settings (Table 4): their λ are those of its methods, backbones and batch size."""
    check_known("preset", name, _TABLE_4)
    # of all, by Table 4 and the text: SGD, Nesterov 0.9, no decay on θ, 2e-5 on ω (C.2), fixed λ
    paper = DeepSettings(
        optimizer="sgd", learning_rate=1e-5, steps=None, batch_size=128, weights="fixed", precondition=True,
        record_every=None, patience=None,
    )  # fmt: skip
    return paper.with_overrides(**_TABLE_4[name])
