"""The wheel alone: built without a network, installed into a bare folder, and run there without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from condnum.files import shipped
from condnum.page.results import executed

ROOT = Path(__file__).resolve().parents[1]
RUN = """
import sys
from pathlib import Path

import condnum
from condnum.cli import main
from condnum.files import shipped
from condnum.page.notebook import copy_notebooks
from condnum.page.results import executed

print(condnum.__file__)
print(copy_notebooks(Path("mine")), len(executed(shipped("reports"))))
words = "run house-prices --methods identity,max_rir --seeds 1 --jobs 1 --out results --quiet"
sys.exit(main(words.split()))
"""
#: Runs first in the command and in its kernel: connections to other machines fail, and are written down.
CUT_OFF = """
import pathlib, socket, sys
here = {None, "", "127.0.0.1", "::1", "localhost", b"127.0.0.1", socket.gethostname()}

def watch(event, arguments):
    host = None
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    if event == "socket.getaddrinfo":
        host = arguments[0]
    if host not in here:
        pathlib.Path(__file__).with_name("tried").write_text(str(host))
        raise OSError("this test has no network")

sys.addaudithook(watch)
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
def test_a_wheel_is_the_whole_program_and_fetches_nothing_unasked(installed, tmp_path):
    package = files(installed / "condnum")
    assert package.items() >= files(ROOT / "condnum").items()
    (tmp_path / "sitecustomize.py").write_text(CUT_OFF)
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME"), str(tmp_path / "none"))
    environment = {**os.environ, **nowhere, "PYTHONPATH": f"{tmp_path}{os.pathsep}{installed}"}
    environment.pop("CONDNUM_DATA", None)
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", RUN], **options)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "tried").exists()
    away = "import socket; socket.create_connection(('example.org', 80))"
    assert subprocess.run([sys.executable, "-c", away], **options).returncode == 1
    assert (tmp_path / "tried").read_text() == "example.org"  # it would have been seen
    assert "bundled data" in (tmp_path / "results" / "report.html").read_text("utf-8")
    home, shown, *_ = done.stdout.splitlines()
    assert Path(home) == installed / "condnum" / "__init__.py"
    assert shown == f"[] {len(executed(shipped('reports')))}"  # all notebooks, all committed results
    assert files(tmp_path / "mine") == files(ROOT / "notebooks")
