"""Two processes on the CPU (gloo) give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from . import processes_script

pytest.importorskip("lightning_fabric")


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    unset = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, str(processes_script.__file__), str(tmp_path)]
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for method, two in torch.load(tmp_path / "results.pt", weights_only=True).items():
        one = processes_script.result(method, device="cpu")
        assert two["weights"] == pytest.approx(one["weights"], rel=1e-6)
        for name, values in one["history"].items():
            assert np.allclose(values, two["history"][name], rtol=1e-6, equal_nan=True), name
        for name, value in one["net"].items():
            assert torch.allclose(value, two["net"][name], rtol=1e-6, atol=1e-8), name
        assert one["history"]["supervised"][-1] != one["history"]["supervised"][0]
