"""What decides whether a finished result may stand for a run: parameters, data, code."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from condnum.data.catalog import available
from condnum.report.provenance import versions
from condnum.reproduce.record import Fingerprint

#: Parts of the package that arrange and show results but cannot change one.
_SHOWING = ("reproduce", "site")


def fingerprint(words: Sequence[str], data: Sequence[str], *, tree: Path | None = None) -> Fingerprint:
    """Return what a command's result depends on, now."""
    sums = {status.name: status.checksum for status in available() if status.name in data} if data else {}
    return Fingerprint(tuple(words), sums, code_checksum(tree or Path(__file__).resolve().parents[2]))


@cache
def code_checksum(tree: Path) -> str:
    """Return one SHA-256 over the package, the experiments' notebooks and the versions of the libraries."""
    package = tree / "condnum"
    shown = [package / name for name in _SHOWING]
    sources = [p for p in package.rglob("*.py") if not any(p.is_relative_to(folder) for folder in shown)]
    digest = hashlib.sha256()
    for path in sorted([*sources, *(tree / "notebooks" / "experiments").glob("*.ipynb")]):
        digest.update(path.relative_to(tree).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr(sorted(versions().items())).encode())
    return digest.hexdigest()
