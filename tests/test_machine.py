"""What is known of this machine: the record of a run, the revision, the end of processes and of memory."""

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from condnum import machine as module
from condnum.errors import InvalidInputError
from condnum.machine import (
    command_line,
    describe_device,
    end_group,
    is_out_of_memory,
    provenance,
    source_revision,
    versions,
    without_home,
)


def test_record_is_json_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/condnum", "run", str(Path.home() / "x y")])
    started = datetime.now(UTC) - timedelta(seconds=3)
    record = provenance({"data": str(Path.home() / "data"), "seeds": 2}, started, None)
    assert json.loads(json.dumps(record)) == record
    assert record["parameters"] == {"data": "~/data", "seeds": 2}
    assert record["command"] == "condnum run '~/x y'"
    assert 3 <= record["duration_seconds"] < 60
    assert record["started_utc"].endswith("+00:00")
    assert set(record["platform"]) == {"system", "release", "machine"}
    assert str(Path.home()) not in json.dumps(record["command"])


def test_parts_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", (*module.PACKAGES, "condnum-absent"))
    found = versions()
    assert found["numpy"] == np.__version__
    assert {"python", "condnum", "torch", "scikit-learn", "plotly", "papermill"} <= set(found)
    assert "condnum-absent" not in found
    device = describe_device("cpu")
    assert device["threads"] == torch.get_num_threads()
    assert device["name"] == device["cpu"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    assert describe_device("cuda:0")["name"] == "GPU cuda:0"
    assert command_line([]) == ""
    monkeypatch.setattr(module.Path, "home", lambda: Path("/"))
    assert without_home("/a/b") == "/a/b"


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


CLEAN = {"revision": "a" * 40, "dirty": False}


@pytest.mark.parametrize(
    ("start", "end", "dirty"),
    [
        (CLEAN, CLEAN, False),
        (CLEAN, {**CLEAN, "revision": "b" * 40}, True),
        (CLEAN, {**CLEAN, "dirty": True}, True),
        ({**CLEAN, "dirty": True}, CLEAN, True),
    ],
)
def test_the_record_names_the_revision_of_the_start(start: dict, end: dict, dirty: bool) -> None:
    span = module.source_span(start, end)
    assert span == {"revision": "a" * 40, "revision_at_end": end["revision"], "dirty": dirty}
    said = module.changed_text(start, span)
    assert ("began at revision aaaaaaaaaaaa" in said) == (start != end and not start["dirty"])
    assert module.source_span(None, None) is None


def test_a_group_of_processes_ends_also_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module.os, "killpg")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end_group(process.pid)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


# Out of memory, in the words of each library that can say so.

KNOWN = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError("Unable to allocate 8.00 EiB for an array"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 80000000000 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: out of memory"),
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    InvalidInputError("the column 'not enough memory' is missing."),
    KeyboardInterrupt(),
]


def test_known_words_and_those_of_this_machine():
    assert [error for error in KNOWN if not is_out_of_memory(error)] == []
    assert [error for error in OTHERS if is_out_of_memory(error)] == []
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(2**58, dtype=torch.float64)  # 2 EiB
    assert is_out_of_memory(caught.value)
