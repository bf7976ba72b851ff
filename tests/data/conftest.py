"""Small files in the real formats, written by the tests, and the way to the real files."""

import struct

import numpy as np
import pytest

from condnum.data.house_prices import CATEGORICAL, HOUSE_COLUMNS


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """Hide this machine's data folders."""
    monkeypatch.delenv("CONDNUM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


@pytest.fixture
def write_houses():
    """Write a table with the 81 real columns: 3 rows zoned RL, 2 others, all else 7 or "x"."""

    def write(path, drop=(), **cells):
        values = {name: ["x"] * 5 if name in CATEGORICAL else ["7"] * 5 for name in HOUSE_COLUMNS}
        values["MSZoning"] = ["RL", "RM", "RL", "FV", "RL"]
        values["Id"] = ["1", "2", "3", "4", "5"]
        values["LotArea"] = ["1", "10", "2", "30", "3"]
        values["SalePrice"] = ["100", "5", "200", "6", "300"]
        values.update(cells)
        names = [name for name in HOUSE_COLUMNS if name not in drop]
        lines = [",".join(names)] + [",".join(values[n][i] for n in names) for i in range(5)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def idx_bytes(array):
    """Encode unsigned bytes as IDX."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\x00\x00\x08" + bytes([array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def write_mnist():
    """Write 30 plain 28×28 images: image i is filled with gray value i and labeled i mod 10."""

    def write(folder, stem="train", images=None, labels=None):
        folder.mkdir(parents=True, exist_ok=True)
        if images is None:
            images = np.repeat(np.arange(30, dtype=np.uint8), 784).reshape(30, 28, 28)
        if labels is None:
            labels = np.arange(30, dtype=np.uint8) % 10
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
        return folder

    return write
