"""The optimizer against torch's own."""

import pytest
import torch

from condnum.methods.descent import LARGE, make_optimizer


@pytest.mark.parametrize("rows", [3, LARGE + 1])
@pytest.mark.parametrize(("name", "peer"), [("adam", torch.optim.Adam), ("gd", torch.optim.SGD)])
def test_steps_are_those_of_torch(name, peer, rows):
    generator = torch.Generator().manual_seed(0)
    theta, omega = (torch.randn(rows, n, generator=generator, dtype=torch.float64) for n in (4, 1))
    ours = {"theta": theta.clone(), "omega": omega.clone()}
    theirs = [theta.clone(), omega.clone()]
    optimizer, other = make_optimizer(name, ours), peer(theirs, lr=0.1)
    for step in range(5):
        other.param_groups[0]["lr"] = rate = 0.1 / (step + 1)
        gradients = {key: 2 * value + step for key, value in ours.items()}
        for tensor, gradient in zip(theirs, gradients.values(), strict=True):
            tensor.grad = gradient.clone()
        optimizer.step(gradients, rate)
        other.step()
    torch.testing.assert_close(list(ours.values()), theirs, rtol=1e-12, atol=1e-12)


def test_a_process_that_descends_does_not_load_the_compiler(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from condnum import ImmunizationProblem, immunize; import numpy as np;"
        "X = np.eye(3); y = np.ones(3);"
        "immunize(ImmunizationProblem.from_data(X, y, X, y), 'ours', steps=2);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
