"""What the site needs that takes long: executed lessons and recorded explorers, each made by a command."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from condnum.errors import check_known
from condnum.files import shipped
from condnum.lessons.alignment_lab import LABS
from condnum.lessons.explorers import EXPLORERS, is_current, record_file
from condnum.report.notebook import ParameterNotebook
from condnum.report.pool import Task
from condnum.report.run import REPORT, run_notebook

#: Where the site is built, and keeps what needs no new run.
CACHE = Path("runs") / "site"

#: Notebooks that are executed for the site, without widgets.
LESSONS = tuple(sorted(path.stem for path in shipped("notebooks").glob("[1-9]_*.ipynb")))

#: Explorers that are recorded: those of the lessons, and labs on real data.
RECORDED = (*EXPLORERS, *LABS)


def lesson(name: str, cache: Path) -> Path:
    """Return the executed notebook of a lesson, whose folder is named by its text and the code it imports."""
    book = ParameterNotebook.find(name)
    state = hashlib.sha256(f"{book.code_hash}{book.path.read_text('utf-8')}".encode())
    return cache / "lessons" / f"{name}-{state.hexdigest()[:12]}" / REPORT


def recording(name: str, cache: Path) -> Path:
    """Return the file of an explorer's recording."""
    return cache / "recorded" / f"{name}.js"


def missing_parts(
    cache: Path = CACHE, lessons: Sequence[str] = LESSONS, explorers: Sequence[str] = RECORDED
) -> list[Task]:
    """Return the commands of the parts that this code has not made yet."""
    recorded = [name for name in explorers if not is_current(recording(name, cache))]
    names = recorded + [name for name in lessons if not lesson(name, cache).exists()]
    return [Task(name, ("part", name, str(cache))) for name in names]


def make_part(name: str, cache: Path) -> None:
    """Run a lesson, or record an explorer, into the cache."""
    check_known("part of the site", name, (*LESSONS, *RECORDED))
    if name in LESSONS:
        run_notebook(ParameterNotebook.find(name), {}, lesson(name, cache).parent)
    else:
        record_file(name, recording(name, cache))
