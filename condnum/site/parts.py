"""What the site needs that takes long: executed lessons and recorded explorers, made anew for new code."""

import hashlib
from collections.abc import Sequence
from functools import cache as cached
from pathlib import Path
from typing import Any

from condnum.errors import check_known
from condnum.files import shipped
from condnum.machine import core_count
from condnum.progress import OnProgress
from condnum.page.notebook import ParameterNotebook, find_notebook
from condnum.page.run import REPORT, run_notebook
from condnum.stale import code_hash
from condnum.studies.frame.cells import Cell
from condnum.studies.frame.executors import ProcessExecutor

#: Where the site is built, and keeps what needs no new run.
CACHE = Path("runs") / "site"

#: Notebooks that are executed for the site, without widgets.
LESSONS = tuple(sorted(path.stem for path in shipped("notebooks").glob("[1-9]_*.ipynb")))


@cached
def recorded_explorers() -> tuple[str, ...]:
    """Return the explorers that are recorded: those of the lessons, and labs on real data."""
    from condnum.lessons.alignment_lab import LABS
    from condnum.lessons.explorers import EXPLORERS

    return (*LABS, *EXPLORERS)


def lesson(name: str, cache: Path) -> Path:
    """Return the executed notebook of a lesson, whose folder is named by its text and the package's code."""
    state = hashlib.sha256(f"{code_hash()}{find_notebook(name).read_text('utf-8')}".encode())
    return cache / "lessons" / f"{name}-{state.hexdigest()[:12]}" / REPORT


def recording(name: str, cache: Path) -> Path:
    """Return the file of an explorer's recording."""
    return cache / "recorded" / f"{name}.js"


def missing_parts(
    cache: Path = CACHE, lessons: Sequence[str] = LESSONS, explorers: Sequence[str] | None = None
) -> list[str]:
    """Return the parts that this code has not made yet: explorers (labs take longest), then lessons."""
    from condnum.lessons.explorers import is_current

    wanted = recorded_explorers() if explorers is None else explorers
    recordings = [name for name in wanted if not is_current(recording(name, cache))]
    return recordings + [name for name in lessons if not lesson(name, cache).exists()]


def make_parts(names: Sequence[str], cache: Path, progress: OnProgress | None = None) -> dict[str, str]:
    """Make parts, one to a core; return the errors of those that failed, by name."""
    cells = [Cell({"stage": name, "cache": str(cache.absolute())}) for name in names]
    failed = dict[str, str]()
    for done, outcome in enumerate(ProcessExecutor(core_count(), 1).run(make_part, cells), 1):
        name = outcome.cell["stage"]
        if outcome.error:
            failed[name] = outcome.error
        if progress is not None:
            progress({"stage": name, "done": done, "total": len(cells)})
    return failed


def make_part(cell: Cell) -> dict[str, Any]:
    """Run a lesson, or record an explorer, into the cache."""
    name, cache = cell["stage"], Path(cell["cache"])
    if name in LESSONS:
        run_notebook(ParameterNotebook.find(name), {}, lesson(name, cache).parent, quiet=True)
        return {}
    from condnum.lessons.explorers import record_file

    check_known("part of the site", name, (*LESSONS, *recorded_explorers()))
    record_file(name, recording(name, cache))
    return {}
