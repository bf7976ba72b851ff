"""The names of what a finished run leaves in its folder, and whether it is all there."""

from __future__ import annotations

from pathlib import Path

#: The executed notebook, and what is kept of one that failed.
REPORT = "report.ipynb"
FAILED = "report.failed.ipynb"

#: The page.
PAGE = "report.html"

#: What somebody else needs to reproduce the run, and the SHA-256 of each file that it left.
RECORD = "provenance.json"

#: Written by a notebook of which cells failed.
FAILURES = "failures.csv"

#: Beside the results while they are being replaced; what a stop in between leaves for the reader.
INCOMPLETE = "INCOMPLETE.txt"


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a finished run, and not one that was stopped while it replaced another.

    Examples:
        >>> is_whole(Path("/nowhere"))
        False
    """
    return (
        all((folder / name).is_file() for name in (REPORT, PAGE, RECORD))
        and not (folder / INCOMPLETE).exists()
    )
