"""`condnum reproduce`: the spine of the paper, one experiment after the other, each on all cores.

What has run with the same notebook, parameters, code and data is kept.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from condnum.errors import CondnumError, check_known
from condnum.page.notebook import ParameterNotebook, read_notebook
from condnum.page.run import BESIDE, REPORT, experiment_of, run_into_folder

#: Experiments in the order in which they run, with what differs from the published run: fewer pairs and
#: seeds, never fewer steps.
SPINE: Mapping[str, Mapping[str, Any]] = {
    "corrections": {},
    "house-prices": {},
    "mnist": {
        "seeds": 1,
        "methods": "ours,opt_kappa,imma,r_ill_only,pareto",
        "pairs": "0-1,1-2,2-3,3-4,4-5,5-6,6-7,7-8,8-9,9-0",  # each digit once on either side
    },
    "deep": {"data": "embedded", "backbone": "test_resnet", "methods": "ours,imma", "seeds": 1},
    "erasure": {"data": "digits-8x8"},
}


def run_key(book: ParameterNotebook, given: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a result depends on: notebook, parameters, code and data."""
    from condnum.experiments.keys import CODE

    values = {name: of for name, of in {**book.defaults, **given}.items() if name not in BESIDE}
    cells = [cell.source for cell in book.node.cells]
    parts = [cells, values, CODE, experiment_of(book).checksum(**values)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def reproduce(
    root: Path, *, only: Sequence[str] = (), jobs: int = 0, quiet: bool = False
) -> Iterator[tuple[str, str]]:
    """Run the spine, or some of it; yield each name with what failed, "" if nothing did."""
    for name in only:
        check_known("experiment", name, SPINE)
    wanted = [name for name in SPINE if name in only or not only]
    for number, name in enumerate(wanted, 1):
        book, folder = ParameterNotebook.find(name), root / name
        try:
            key = run_key(book, SPINE[name])
            if kept_key(folder) != key:
                book.node.metadata["condnum"] = {"key": key}
                place = f"[{number}/{len(wanted)}] "
                run_into_folder(book, {**SPINE[name], "jobs": jobs}, folder, quiet=quiet, title=place)
            yield name, ""
        except CondnumError as error:
            yield name, str(error)


def kept_key(folder: Path) -> str:
    """Return the key of the run in a folder; "" if there is none, or cells of it failed."""
    from condnum.page.html import answer_of

    with suppress(CondnumError, OSError):
        report = folder / REPORT
        if report.exists() and not answer_of(report)[1].get("cells", {}).get("failed"):
            return str(read_notebook(report).metadata.get("condnum", {}).get("key", ""))
    return ""
