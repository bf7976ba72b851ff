"""All explorers of the lessons by name, and the files of their recordings for pages without a kernel."""

from collections.abc import Sequence
from pathlib import Path

from joblib import Parallel, delayed

from condnum.errors import check_known
from condnum.files import output_folder, write_text
from condnum.lessons.aligned_tasks import AlignedTasksExplorer
from condnum.lessons.alignment import AlignmentExplorer
from condnum.lessons.alignment_lab import LABS, recorded_lab
from condnum.lessons.ceiling import CeilingExplorer
from condnum.lessons.condition_number import GradientDescentExplorer, SpectrumDescentExplorer
from condnum.lessons.frame.explorer import Explorer
from condnum.lessons.frame.recording import record
from condnum.lessons.own_data import OwnDataExplorer
from condnum.lessons.regularizer_paths import RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer
from condnum.lessons.slowing import SlowingExplorer
from condnum.progress import OnProgress
from condnum.stale import code_hash

#: The explorers of the lessons; those of real data are made by `recorded_lab`, named in `LABS`.
EXPLORERS: dict[str, type[Explorer]] = {
    explorer.__name__: explorer
    for explorer in (
        *(AlignedTasksExplorer, AlignmentExplorer, CeilingExplorer, GradientDescentExplorer),
        *(OwnDataExplorer, RegularizerExplorer, RegularizerPathExplorer, SlowingExplorer),
        SpectrumDescentExplorer,
    )
}


def first_line(name: str) -> str:
    """Return the first line of a recording: the hash of the code that makes it."""
    explorer = EXPLORERS.get(name)
    module = explorer.__module__ if explorer else "condnum.lessons.alignment_lab"
    return f"// {code_hash(module, 'condnum.lessons.frame.recording')}\n"


def is_current(path: Path) -> bool:
    """Tell whether this code has written a recording."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as stream:
        return stream.readline() == first_line(path.stem)


def _record_file(name: str, path: Path) -> str:
    """Write one recording; return its name."""
    explorer = EXPLORERS[name] if name in EXPLORERS else recorded_lab(name)
    write_text(path, first_line(name) + record(explorer))
    return name


def record_all(
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    jobs: int = 2,
    progress: OnProgress | None = None,
) -> list[Path]:
    """Write the recordings of explorers that this code has not written yet as `NAME.js`; return the files."""
    for name in names:
        check_known("explorer", name, [*EXPLORERS, *LABS])
    target = output_folder(folder)
    files = {name: target / f"{name}.js" for name in names or EXPLORERS}
    missing = {name: path for name, path in files.items() if not is_current(path)}
    work = (delayed(_record_file)(name, path) for name, path in missing.items())
    written = Parallel(n_jobs=jobs, return_as="generator_unordered")(work)
    for done, name in enumerate(written, len(files) - len(missing) + 1):
        if progress is not None:
            progress({"stage": name, "done": done, "total": len(files)})
    return list(files.values())
