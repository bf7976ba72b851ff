"""The wheel alone: built without a network, installed into a bare folder, and run far from the clone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from condnum.site.results import committed_runs

ROOT = Path(__file__).resolve().parents[1]
RUN = """
import sys
from pathlib import Path

import condnum
from condnum.cli import main
from condnum.report.notebook import copy_notebooks
from condnum.site.results import committed_runs

print(condnum.__file__)
print(copy_notebooks(Path("mine")), len(committed_runs()))
sys.exit(main(["run", "corrections", "--quiet", "--out", "results"]))
"""


def uv(*words):
    done = subprocess.run([sys.executable, "-m", "uv", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an installed wheel that was built from the archive of sources."""
    for module in ("hatchling", "uv"):
        pytest.importorskip(module, reason=f"{module} builds the wheel: install the extra dev")
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("wheel")
    here = ("--offline", "--no-cache", f"--python={sys.executable}")
    said = uv("build", *here, "--no-build-isolation", f"--out-dir={dist}", str(ROOT))
    assert "warning" not in said.lower()
    (wheel,) = dist.glob("*.whl")
    uv("pip", "install", *here, "--no-deps", f"--target={target}", str(wheel))
    return target


def files(folder):
    """Return a folder's files by their names in it, without what Python and Jupyter add."""
    found = (path for path in folder.rglob("*") if path.is_file())
    kept = (path for path in found if not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


@pytest.mark.long
def test_a_wheel_is_the_whole_program(installed, tmp_path):
    package = files(installed / "condnum")
    assert package.items() >= files(ROOT / "condnum").items()
    environment = {**os.environ, "PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    environment.pop("CONDNUM_DATA", None)
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    home, shown, *_ = done.stdout.splitlines()
    assert Path(home) == installed / "condnum" / "__init__.py"
    assert (
        shown == f"[] {len(committed_runs())}"
    )  # all notebooks were copied, all committed results are there
    assert files(tmp_path / "mine") == files(ROOT / "notebooks")
    assert (tmp_path / "results" / "corrections.csv").is_file()
