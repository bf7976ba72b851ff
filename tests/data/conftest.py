"""Small files in the real formats, written by the tests, and the way to the real files."""

import struct

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """Hide this machine's data folders."""
    monkeypatch.delenv("CONDNUM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


@pytest.fixture
def write_mnist():
    """Write 30 plain 28×28 images as IDX: image i is filled with gray value i and labeled i mod 10."""

    def write(folder, stem="train"):
        folder.mkdir(parents=True, exist_ok=True)
        labels = np.arange(30, dtype=np.uint8)
        images = np.repeat(labels, 784).reshape(30, 28, 28)
        for name, array in ((f"{stem}-images-idx3", images), (f"{stem}-labels-idx1", labels % 10)):
            head = b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
            (folder / f"{name}-ubyte").write_bytes(head + array.tobytes())
        return folder

    return write
