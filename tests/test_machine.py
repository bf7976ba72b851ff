"""What is known of this machine: the record of a run, the revision, the end of processes and of memory."""

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from condnum import machine as module
from condnum.errors import DeviceError
from condnum.machine import (
    end_group,
    memory_advice,
    provenance,
    source_revision,
)


def test_record_is_json_and_complete() -> None:
    started = datetime.now(UTC) - timedelta(seconds=3)
    record = provenance({"data": str(Path.home() / "data"), "seeds": 2}, started, None)
    assert json.loads(json.dumps(record)) == record
    assert record["parameters"] == {"data": "~/data", "seeds": 2}
    assert 3 <= record["duration_seconds"] < 60
    assert record["started_utc"].endswith("+00:00")
    assert set(record["platform"]) == {"system", "release", "machine"}


def test_revision_inside_and_outside_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_revision(tmp_path) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    clean = source_revision(tmp_path)
    assert clean is not None
    assert len(clean["revision"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "new").write_text("")
    assert source_revision(tmp_path) == {**clean, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert source_revision(tmp_path) is None


def test_a_group_of_processes_ends_also_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module.os, "killpg")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_group(process.pid)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_out_of_memory_names_the_batch_size_to_try():
    for error in (torch.OutOfMemoryError("CUDA out of memory."), MemoryError()):
        said = "cuda with a batch size of 8; try a batch size of 4"
        with pytest.raises(DeviceError, match=said), memory_advice(8, torch.device("cuda"), "features"):
            raise error
