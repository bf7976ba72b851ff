"""What a CUDA card brings (`make gpu`): a step, Table 2, agreement with the CPU.

Without a card the CPU plays it, at small sizes. `test_deep.py` has the ResNet18.
"""

import dataclasses
import time

import pytest
import torch

from condnum.experiments import frame, mnist
from condnum.experiments.linear import chosen_settings
from condnum.machine import limited_threads
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.task import Task

from .test_linear import prepared_step

CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CARD else "cpu")
METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
DATA, SEEDS, STEPS, PAIRS = ("mnist", 3, 0, "") if CARD else ("digits", 1, 4, "4-7,9-0")


pytestmark = pytest.mark.slow


def image_like(D, seed):
    """Rows whose spectrum falls as an image's does, with rank 3D/4."""
    generator = torch.Generator().manual_seed(seed)
    rank = 3 * D // 4
    Q, _ = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))
    return Task.of(torch.arange(1, rank + 1, dtype=torch.float64)[:, None] ** -1.0 * Q[:, :rank].mT)


def finished(call):
    """Call, and wait until the device has done it."""
    call()
    if CARD:
        torch.cuda.synchronize()


@pytest.mark.parametrize("D", (64, 128, 256, 512, 784) if CARD else (8, 16))
def test_a_step_beside_one_core(seconds, D):
    tasks = image_like(D, 1), image_like(D, 2)
    with limited_threads(1):
        one_core = seconds(prepared_step(ImmunizationProblem(*tasks)))
    step = prepared_step(ImmunizationProblem(*(task.to(DEVICE) for task in tasks)))
    there = seconds(lambda: finished(step))
    print(f"\nD = {D}: {1e3 * there:.3g} ms on {DEVICE}, {one_core / there:.3g} times as fast as one core")


def test_table_2():
    """The whole run: tasks, descents, measuring, storing."""
    started = time.perf_counter()
    run = frame.run(
        mnist,
        quiet=True,
        data=DATA,
        methods=",".join(METHODS),
        seeds=SEEDS,
        steps=STEPS,
        pairs=PAIRS,
        labels="one_vs_rest",
        device=str(DEVICE),
        full=True,
    )
    seconds = time.perf_counter() - started
    print(f"\n{DATA}, {DEVICE}: {len(run.rows)} cells in {seconds:.1f} s")
    print(run.table.to_string(index=False, float_format="{:.4g}".format))
    assert not len(run.failures)


@pytest.mark.parametrize("method", METHODS)
def test_theta_agrees_with_the_cpu(method):
    """Two pairs of tasks after a few steps, and what is left of the agreement at the end."""
    pairs = mnist.read_pairs(PAIRS)
    both = [
        [mnist.tasks(DATA, *pair, "one_vs_rest", where) for pair in (pairs[0], pairs[-1])]
        for where in ("cpu", str(DEVICE))
    ]
    settings, gaps = chosen_settings(DATA, method, STEPS), {}

    def differ(steps):
        short = dataclasses.replace(settings, steps=steps, record_every=0)
        here, there = ([immunize(one, method, settings=short) for one in problems] for problems in both)
        pairs = zip(there, here, strict=True)
        gaps[steps] = max(float((a.theta.cpu() - b.theta).norm() / b.theta.norm()) for a, b in pairs)

    for steps in (1, 5, settings.steps):
        differ(steps)
    print(f"\n{method}: relative differences of θ by steps: {gaps}")
    assert max(gaps[1], gaps[5]) < 1e-6
