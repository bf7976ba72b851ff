"""The frame of every experiment: cells in a pool, one file per cell, a table and a record of the run.

An experiment is a module, or any object, with six functions (`Experiment`). Its cells are dictionaries that
hold all that they are computed from; `run` computes those that an earlier run into the same folder has left,
in processes of joblib, or on a cluster inside `joblib.parallel_config("dask")`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from joblib import Parallel, cpu_count, delayed
from joblib.parallel import LokyBackend, get_active_backend

from condnum.errors import CondnumError, InvalidInputError, check_integer
from condnum.experiments.keys import CODE, modules_of, own_code, own_methods
from condnum.experiments.outcome import Arrays as Arrays
from condnum.experiments.outcome import Cell as Cell
from condnum.experiments.outcome import Outcome as Outcome
from condnum.experiments.outcome import Row as Row
from condnum.experiments.outcome import Run as Run
from condnum.files import atomic_write, output_folder, write_text
from condnum.machine import describe_device, end_with, limited_threads, provenance, source_revision
from condnum.methods import METHODS
from condnum.progress import PROGRESS_VARIABLE, progress_bar

#: In a folder of results: the finished cells.
CELLS = "cells"
#: How names of arrays begin in the file of a cell.
_ARRAY = "array."
#: What is no column of the rows.
_GIVEN = ("after", "beside")


class Experiment(Protocol):
    """What the frame asks of an experiment; parameters are those of its notebook."""

    #: `cells(**parameters)`: check the parameters and list what is computed, in the order of the table.
    cells: Callable[..., Iterable[Cell]]
    #: `checksum(**parameters)`: what tells the data from others.
    checksum: Callable[..., str]
    #: `compute(**cell)`: a row of scalars, or a row and arrays.
    compute: Callable[..., Row | Outcome]
    #: `table(rows)` or `table(rows, arrays)`: numbers for people, from what the finished cells found.
    table: Callable[..., pd.DataFrame]
    #: `figure(run)`: the figure that answers the question.
    figure: Callable[[Run], Any]
    #: `sentence(table)`: the answer.
    sentence: Callable[[pd.DataFrame], str]


class ExperimentError(CondnumError, RuntimeError):
    """Every cell failed, or a worker died; the message has the first error."""


def name_of(experiment: Any) -> str:
    """Return the name of an experiment: its own, or its module's."""
    known = getattr(experiment, "name", None) or getattr(experiment, "__name__", type(experiment).__name__)
    return str(known).rpartition(".")[2].replace("_", "-")


def run(
    experiment: Experiment | Any,
    *,
    out: str | Path = "",
    jobs: int = 0,
    threads: int | None = 1,
    quiet: bool = False,
    **parameters: Any,
) -> Run:
    """Compute the cells that an earlier run into `out` has left, and make the table.

    Args:
        experiment: A module or an object, see `Experiment`.
        out: Folder of the results, whose `cells/` keeps every finished cell; empty for none.
        jobs: Processes; 0 for one per core (one on a GPU), or those of the active `joblib.parallel_config`.
        threads: Of torch and BLAS in each cell: a long descent amplifies what other sums round. None: all, of
            one cell after the other.
        quiet: Show no progress.
        **parameters: Those of the experiment.

    Returns:
        The run, which shows itself in a notebook.

    Raises:
        InvalidInputError: What the experiment refuses, or a value that no file can keep.
        ExperimentError: No cell succeeded, or a worker process died; finished cells are kept.
        OutputError: The folder cannot be written.
    """
    jobs, started, began = check_integer("jobs", jobs, 0), datetime.now(UTC), time.perf_counter()
    _forget(experiment, [])  # data may have changed since the last run
    cells, own, made_of = _asked(experiment, parameters)
    _last[:] = made_of
    out = Path(out).expanduser() if out else ""
    kept = contextlib.nullcontext(out) if out else tempfile.TemporaryDirectory(prefix="condnum-")
    with kept as place:
        folder = output_folder(Path(place) / CELLS)
        found = {
            index: outcome for index, cell in enumerate(cells) if (outcome := _kept(folder, cell, made_of))
        }
        before, errors = len(found), dict[int, str]()
        with progress_bar(name_of(experiment), total=len(cells), done=before, quiet=quiet) as bar:
            to = {PROGRESS_VARIABLE: os.environ[PROGRESS_VARIABLE]}
            for wave in range(1 + max(map(_depth, cells), default=0)):
                waiting = [
                    index for index, cell in enumerate(cells) if index not in found and _depth(cell) == wave
                ]
                most = jobs or (1 if threads is None or _on_gpu(cells) else 0)
                work = [
                    delayed(_outcome)(index, experiment, folder, cells[index], made_of, own, threads, to)
                    for index in waiting
                ]
                for index, outcome, error in _parallel(most, made_of[2], work):
                    found |= {index: outcome} if error == "" else {}
                    errors |= {index: error} if error else {}
                    bar.set_description_str(name_of(experiment) + f", {len(errors)} failed" * bool(errors))
                    bar.update()
    if errors and not found:
        index, error = min(errors.items())
        raise ExperimentError(
            f"no cell of {name_of(experiment)} succeeded: {len(errors)} failed, the first one "
            f"({_words(cells[index])}) with {error}; fix this and run again."
        )
    record = provenance(parameters, started, source_revision()) | {
        "made_of": made_of,
        "device": describe_device(str(cells[0].get("device", "cpu")) if cells else "cpu", threads),
        "seconds": round(time.perf_counter() - began, 1),
        "cells": {"computed": len(found) - before, "kept": before, "failed": len(errors)},
    }
    done = sorted(found)
    result = Run(
        experiment,
        name_of(experiment),
        pd.DataFrame([cells[index] | found[index][0] for index in done]).drop(
            columns=[*_GIVEN], errors="ignore"
        ),
        [found[index][1] for index in done],
        pd.DataFrame([(_words(cells[i]), errors[i]) for i in sorted(errors)], columns=["cell", "error"]),
        record,
    )
    if out:
        result.save(out)
    return result


def kept(
    experiment: Experiment | Any, folder: str | Path, **parameters: Any
) -> Iterator[tuple[Cell, Outcome]]:
    """Yield the cells of a run that a folder has finished with this code and data, and what they found."""
    cells, _, made_of = _asked(experiment, parameters)
    for cell in cells:
        if outcome := _kept(Path(folder).expanduser() / CELLS, cell, made_of):
            yield cell, outcome


def _asked(experiment: Any, parameters: Mapping[str, Any]) -> tuple[list[Cell], Mapping[str, Any], list[str]]:
    """Return the cells of a run, methods of one's own, and what keys are made of: name, code and data."""
    cells = [json.loads(json.dumps(cell)) for cell in experiment.cells(**parameters)]
    own = own_methods()  # cells may have read some
    code = own_code(experiment, *own.values())
    return cells, own, [name_of(experiment), CODE, code, experiment.checksum(**parameters)]


def _depth(cell: Cell) -> int:
    """Return how many cells have to be finished before, one after the other."""
    return 1 + _depth(cell["after"]) if "after" in cell else 0


def _words(cell: Cell) -> str:
    """Name a cell in a message."""
    return ", ".join(f"{name}={of}" for name, of in cell.items() if not isinstance(of, dict) and of != "")


def _path(folder: Path, cell: Cell, made_of: list[str]) -> Path:
    """Return the file of a cell: it depends on the cell, the code and the data."""
    key = json.dumps([made_of, cell], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _kept(folder: Path, cell: Cell, made_of: list[str]) -> Outcome | None:
    """Return what is kept of a cell; None if it is not finished, or its file is damaged."""
    with contextlib.suppress(Exception), np.load(_path(folder, cell, made_of), allow_pickle=False) as kept:
        arrays = {name[len(_ARRAY) :]: kept[name] for name in kept.files if name != "row"}
        return json.loads(str(kept["row"])), arrays
    return None


def _on_gpu(cells: list[Cell]) -> bool:
    """Tell whether a GPU computes, which processes would have to share."""
    return any(str(cell.get("device", "")).startswith("cuda") for cell in cells)


def _parallel(jobs: int, own: str, work: Sequence[Any]) -> Iterator[tuple[int, Outcome, str]]:
    """Yield outcomes as they come, and stop what is running when the caller stops.

    Processes are those that were asked for, or configured, or one per core; workers that have imported other
    code of one's own than `own` are not used again.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    backend, config = get_active_backend()
    if client := getattr(backend, "client", None):
        yield from _on_cluster(client, work)
        return
    processes, options = jobs or config or -1, {}
    if isinstance(backend, LokyBackend):
        processes = max(1, min(jobs or config or cpu_count(), len(work)))
    if isinstance(backend, LokyBackend) and processes > 1:
        options = {"initializer": _begin, "initargs": (os.getpid(), own)}
    parallel = Parallel(processes, return_as="generator_unordered", **options)
    with contextlib.closing(parallel(work)) as outcomes:
        try:
            yield from outcomes
        except TerminatedWorkerError as error:
            raise ExperimentError(
                "a worker process died (killed, out of memory, or crashed); finished cells are kept: run the "
                "same again, with fewer jobs if memory was short."
            ) from error


def _on_cluster(client: Any, work: Sequence[Any]) -> Iterator[tuple[int, Outcome, str]]:
    """Yield outcomes of a dask cluster as they come; a cell whose workers die again and again is a failure.

    joblib's own loop over a cluster waits forever where dask reports an error.
    """
    from distributed import as_completed

    futures = {client.submit(function, *given, pure=False): given[0] for function, given, _ in work}
    try:
        for future in as_completed([*futures]):
            try:
                outcome = future.result()
            except Exception as error:  # of many kinds: a killed worker, a lost connection
                outcome = futures[future], ({}, {}), f"{type(error).__name__}: {error}"
            yield outcome
    finally:
        client.cancel([*futures])


def _begin(parent: int, own: str) -> None:
    """Let a worker end once its parent was killed, and keep what it has cached until then."""
    from joblib.externals.loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize  # loky takes cached data for a leak, and ends it
    end_with(parent)


def _outcome(
    index: int,
    experiment: Any,
    folder: Path,
    cell: Cell,
    made_of: list[str],
    own: Mapping[str, Any],
    threads: int | None,
    progress: Mapping[str, str],
) -> tuple[int, Outcome, str]:
    """Compute a cell and keep it; an error becomes a text, so that the other cells go on."""
    METHODS.update(own)
    os.environ.update(progress)
    path = _path(folder, cell, made_of)
    try:
        if made_of[1] != CODE:
            raise InvalidInputError("the worker has another version of condnum; start it again.")
        given = cell | ({"beside": path.with_suffix("")} if "beside" in cell else {})
        if "after" in cell:
            given["after"] = _kept(folder, cell["after"], made_of)
            if given["after"] is None:
                raise CondnumError(f"the cell that it starts from failed ({_words(cell['after'])})")
        _forget(experiment, made_of)
        with limited_threads(threads):
            found = experiment.compute(**given)
        row, arrays = found if isinstance(found, tuple) else (found, {})
        outcome = (
            {name: _scalar(value) for name, value in row.items()},
            {name: np.asarray(a) for name, a in arrays.items()},
        )
        for name, array in outcome[1].items():
            if array.dtype.hasobject:
                raise InvalidInputError(
                    f"array {name!r} of a cell holds Python objects; use numbers or strings."
                )
        with atomic_write(path) as temporary:
            arrays = {f"{_ARRAY}{name}": array for name, array in outcome[1].items()}
            np.savez(temporary, row=np.array(json.dumps(outcome[0])), **arrays)
        path.with_suffix(".failed").unlink(missing_ok=True)
        return index, outcome, ""
    except Exception as error:
        write_text(path.with_suffix(".failed"), traceback.format_exc())
        return index, ({}, {}), f"{type(error).__name__}: {error}"


def _scalar(value: Any) -> Any:
    """Return a value of a row; numbers of NumPy and torch as Python's."""
    if getattr(value, "ndim", 1) == 0:
        return value.item()
    if isinstance(value, str | int | float | None):
        return value
    raise InvalidInputError(f"a row holds scalars, not a {type(value).__name__}; return it as an array.")


def _forget(experiment: Any, made_of: list[str]) -> None:
    """Forget what experiments have cached of other data: a worker, like a notebook, outlives a run."""
    if made_of != _last:
        names = [name for name in sys.modules if name.startswith("condnum.experiments.")]
        for name in {*names, *modules_of(experiment)}:
            for value in list(vars(sys.modules[name]).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
        _last[:] = made_of


#: What this process has computed for.
_last: list[str] = []
