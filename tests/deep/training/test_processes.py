"""Two processes on the CPU (gloo) give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from condnum.deep import immunize_backbone
from condnum.errors import InvalidInputError

pytest.importorskip("lightning_fabric")

SCRIPT = Path(__file__).with_name("processes_script.py")


def run(out: Path, processes: int, method: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), str(processes), method],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = torch.load(out, weights_only=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ours", "imma"])
def test_two_processes_equal_one(tmp_path: Path, method: str) -> None:
    """Odd batch sizes, so that the two processes hold different numbers of samples."""
    one = run(tmp_path / "one.pt", 1, method)
    two = run(tmp_path / "two.pt", 2, method)
    assert (one["rank"], two["rank"]) == (0, 1)
    assert two["weights"] == pytest.approx(one["weights"], rel=1e-6)
    for name, values in one["history"].items():
        assert np.allclose(values, two["history"][name], rtol=1e-6, equal_nan=True), name
    for name, value in one["net"].items():
        assert torch.allclose(value, two["net"][name], rtol=1e-6, atol=1e-8), name
    assert one["history"]["supervised"][-1] != one["history"]["supervised"][0]


def test_a_fabric_must_be_one(backbone, D_P, D_H, transform) -> None:
    with pytest.raises(InvalidInputError, match="lightning_fabric"):
        immunize_backbone(backbone, D_P, D_H, transform_P=transform, transform_H=transform, fabric=3)
