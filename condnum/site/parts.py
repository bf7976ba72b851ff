"""What the site needs that takes long: executed lessons and recorded explorers, each made by a command."""

import hashlib
from collections.abc import Sequence
from functools import cache as cached
from pathlib import Path

from condnum.errors import check_known
from condnum.files import shipped
from condnum.report.notebook import ParameterNotebook
from condnum.report.pool import Task
from condnum.report.run import REPORT, run_notebook

#: Where the site is built, and keeps what needs no new run.
CACHE = Path("runs") / "site"

#: Notebooks that are executed for the site, without widgets.
LESSONS = tuple(sorted(path.stem for path in shipped("notebooks").glob("[1-9]_*.ipynb")))

#: Explorers that one process records: seconds each, of which half would go into loading torch and plotly.
TOGETHER = 4


@cached
def recorded_explorers() -> tuple[str, ...]:
    """Return the explorers that are recorded: those of the lessons, and labs on real data."""
    from condnum.lessons.alignment_lab import LABS
    from condnum.lessons.explorers import EXPLORERS

    return (*LABS, *EXPLORERS)


def lesson(name: str, cache: Path) -> Path:
    """Return the executed notebook of a lesson, whose folder is named by its text and the code it imports."""
    book = ParameterNotebook.find(name)
    state = hashlib.sha256(f"{book.code_hash}{book.path.read_text('utf-8')}".encode())
    return cache / "lessons" / f"{name}-{state.hexdigest()[:12]}" / REPORT


def recording(name: str, cache: Path) -> Path:
    """Return the file of an explorer's recording."""
    return cache / "recorded" / f"{name}.js"


def missing_parts(
    cache: Path = CACHE, lessons: Sequence[str] = LESSONS, explorers: Sequence[str] | None = None
) -> list[Task]:
    """Return the commands of the parts that this code has not made yet."""
    from condnum.lessons.explorers import is_current

    wanted = recorded_explorers() if explorers is None else explorers
    new = [name for name in wanted if not is_current(recording(name, cache))]
    count = -(-len(new) // TOGETHER)
    groups = [new[first::count] for first in range(count)]  # the labs, which take longest, in different ones
    recordings = [Task(", ".join(names), ("part", str(cache), *names), 15.0 * len(names)) for names in groups]
    return recordings + [
        Task(name, ("part", str(cache), name)) for name in lessons if not lesson(name, cache).exists()
    ]


def make_part(name: str, cache: Path) -> None:
    """Run a lesson, or record an explorer, into the cache."""
    if name in LESSONS:  # in a kernel: nothing that computes is loaded here
        run_notebook(ParameterNotebook.find(name), {}, lesson(name, cache).parent)
        return
    from condnum.lessons.explorers import record_file

    check_known("part of the site", name, (*LESSONS, *recorded_explorers()))
    record_file(name, recording(name, cache))
