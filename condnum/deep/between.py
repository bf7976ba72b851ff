"""Weights between θ₀ and θ_I: L2 distance and linear mode connectivity (arXiv 2505.22310)."""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch

from condnum.deep.backbone import Backbone

#: Shares of θ_I at which the error between both nets is measured.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def weight_distance(theta_0: Backbone, theta_i: Backbone) -> float:
    """Return `‖θ_I − θ₀‖₂` over all weights of the extractor, the head left out."""
    before, after = (dict(net.model.named_parameters()) for net in (theta_0, theta_i))
    own = [name for name in before if not name.startswith(f"{theta_0.head_name}.")]
    return math.sqrt(sum(float((after[key] - before[key]).detach().double().square().sum()) for key in own))


def interpolated(theta_0: Backbone, theta_i: Backbone, share: float) -> Backbone:
    """Return the net whose weights, head and statistics are `θ₀ + share·(θ_I − θ₀)`."""
    net = copy.deepcopy(theta_0)
    ends = theta_0.state_dict(), theta_i.state_dict()
    net.load_state_dict(
        {
            key: torch.lerp(a, ends[1][key], share) if a.is_floating_point() else a
            for key, a in ends[0].items()
        }
    )
    return net.eval()


def error_barrier(theta_0: Backbone, theta_i: Backbone, accuracy: Callable[[Backbone], float]) -> float:
    """Return how far the error between both nets rises above the line: `max_s e(s) − (1−s)e(0) − s·e(1)`.

    0 where the two are linearly connected (Frankle et al., ICML 2020). `accuracy` is that of a net with its
    head, on D_P's images.

    Examples:
        >>> theta = Backbone("test_resnet", num_classes=2)
        >>> error_barrier(theta, theta, lambda net: 0.9)
        0.0
    """
    errors = 1 - np.array([accuracy(interpolated(theta_0, theta_i, share)) for share in SHARES])
    line = errors[0] + (errors[-1] - errors[0]) * np.array(SHARES)
    return float((errors - line).max())
