"""What a command that must be refused says, and a notebook of somebody's own."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest


@pytest.fixture
def refused(condnum, tmp_path) -> Callable[..., str]:
    """`refused("run limits --ridge 0")`: what a command says that must end with 2 and leave nothing."""

    def call(words: str) -> str:
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        done = condnum(*words.split(), cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        left = {path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
        assert left == before
        return " ".join(done.stderr.split())

    return call


PARAMETERS = """
# What the notebook shows.
#
# And more of it.
count: int = 2  # how often
word: str = "a"  # a|b: what is written
share: float = 0.5
layers: list = [1]  # sizes
maybe: str | None = None
twice = 2 * count
shout: bool = False  # in capitals
static: bool = False
out: str = ""
mode: str = "whole"
""".strip()
BODY = """
import pathlib, subprocess, time
folder = pathlib.Path(out)
print((word.upper() if shout else word) * count, layers, maybe, share, static)
if mode == "broken":
    1 / 0
if mode == "fail":
    from condnum.errors import DataFormatError
    raise DataFormatError("column 'SalePrice' is missing.")
(folder / "results.csv").write_text("rir\\n1\\n")
(folder / "cells").mkdir(exist_ok=True)
(folder / "cells" / "ours-0.npz").write_text("")
if mode == "wait":
    subprocess.Popen("trap '' INT; sleep 600", shell=True)  # a stubborn worker
    (folder / "waiting").write_text("")
    try:
        time.sleep(600)
    finally:
        pathlib.Path("cleaned up").write_text("")
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A notebook of somebody's own, with a parameter of each type."""
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_markdown_cell("# My own"),
        nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(BODY),
    ]
    nbformat.write(book, tmp_path / "own.ipynb")
    return tmp_path / "own.ipynb"
