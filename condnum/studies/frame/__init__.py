"""The frame of all studies: fields, cells and their store, executors, the run."""

from condnum.studies.frame.cells import Cell, CellResult, ResultStore
from condnum.studies.frame.fields import Count, Names, at_least, several, some_of
from condnum.studies.frame.study import FinishedCell, Study, StudyRun, SweepError

__all__ = [
    "Cell",
    "CellResult",
    "Count",
    "FinishedCell",
    "Names",
    "ResultStore",
    "Study",
    "StudyRun",
    "SweepError",
    "at_least",
    "several",
    "some_of",
]
