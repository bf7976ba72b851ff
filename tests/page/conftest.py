"""Small notebooks with a parameters cell."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


@pytest.fixture
def write_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer: a parameters cell, then the given cells (`# …` is Markdown)."""

    def write(*cells: str, parameters: str = "seeds: int = 2", name: str = "small") -> Path:
        node = new_notebook()
        node.cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
        node.cells += [
            new_markdown_cell(cell) if cell.startswith("# ") else new_code_cell(cell) for cell in cells
        ]
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(node, path)
        return path

    return write
