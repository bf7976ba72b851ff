"""All explorers of the lessons by name, and the files of their recordings for pages without a kernel."""

from pathlib import Path

from condnum.experiments.keys import CODE
from condnum.files import output_folder, write_text
from condnum.lessons.alignment import AlignmentExplorer
from condnum.lessons.alignment_lab import recorded_lab
from condnum.lessons.condition_number import GradientDescentExplorer, SpectrumDescentExplorer
from condnum.lessons.frame.explorer import Explorer
from condnum.lessons.frame.recording import record
from condnum.lessons.limit import LimitExplorer
from condnum.lessons.own_data import OwnDataExplorer
from condnum.lessons.regularizer_paths import RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer
from condnum.lessons.slowing import SlowingExplorer

#: The explorers of the lessons; those of real data are made by `recorded_lab`, named in `LABS`.
EXPLORERS: dict[str, type[Explorer]] = {
    explorer.__name__: explorer
    for explorer in (
        *(AlignmentExplorer, LimitExplorer, GradientDescentExplorer),
        *(OwnDataExplorer, RegularizerExplorer, RegularizerPathExplorer),
        *(SlowingExplorer, SpectrumDescentExplorer),
    )
}


def first_line() -> str:
    """Return the first line of a recording: the hash of the code that makes it."""
    return f"// {CODE}\n"


def is_current(path: Path) -> bool:
    """Tell whether this code has written a recording."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as stream:
        return stream.readline() == first_line()


def record_file(name: str, path: Path) -> None:
    """Write the recording of an explorer."""
    explorer = EXPLORERS[name] if name in EXPLORERS else recorded_lab(name)
    output_folder(path.parent)
    write_text(path, first_line() + record(explorer))
