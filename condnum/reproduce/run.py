"""Running the experiments of a scale one after another, keeping a record after each."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from condnum.errors import InvalidInputError
from condnum.files import output_folder
from condnum.report.progress import OnProgress, ProgressEvent
from condnum.report.provenance import describe_device, source_revision, versions
from condnum.report.run_folder import is_whole
from condnum.reproduce.experiments import Experiment, experiments
from condnum.reproduce.fingerprint import fingerprint
from condnum.reproduce.process import Ended, run_command
from condnum.reproduce.record import ExperimentRecord, Fingerprint, ReproductionRecord, read_record

OnExperiment = Callable[[int, int, ExperimentRecord], None]
Runner = Callable[..., Ended]


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    progress: OnProgress = lambda event: None,
    on_start: Callable[[int, int, Experiment], None] = lambda index, total, experiment: None,
    on_end: OnExperiment = lambda index, total, record: None,
    runner: Runner = run_command,
) -> ReproductionRecord:
    """Run the experiments of a scale; reuse those whose parameters, data and code are unchanged.

    One that fails does not stop the others. The record is written after each experiment, so that a
    reproduction that is stopped goes on where it was: finished experiments are reused, and the one that
    was running resumes from its own store.

    Args:
        scale: `quick` or `full`.
        root: Holds a folder for each experiment and `reproduction.json`.
        only: Names of experiments; empty for all.
        jobs: Worker processes of each experiment, 0 for one a core.
        progress: Told of the running experiment's pieces.
        on_start: Told before each experiment that runs.
        on_end: Told after each experiment, also a reused one.
        runner: Runs one command; for tests.

    Returns:
        The record.

    Raises:
        UnknownNameError: No such scale or experiment.
        InvalidInputError: The folder holds a record of another scale, or a damaged one.
        OutputError: The folder is not writable.
        KeyboardInterrupt: Stopped; what was finished is kept.
    """
    chosen = experiments(scale, only)
    folder = output_folder(root)
    opened = record = _opened(scale, folder)
    names = {experiment.name for experiment in chosen}
    waiting = (replace(e, status="waiting", error="") if e.name in names else e for e in opened.experiments)
    record = replace(opened, experiments=tuple(waiting))
    began = time.monotonic()
    for index, experiment in enumerate(chosen, start=1):
        before = opened[experiment.name]
        words = experiment.command()
        if words is None:
            after = replace(before, status="not run", error=experiment.missing)
        else:
            mark = fingerprint(words, experiment.data)
            if _reusable(before, mark, folder):
                after = replace(before, status="reused", error="")
            else:
                on_start(index, len(chosen), experiment)
                after = _run(experiment, words, before, folder, jobs, progress, runner)
        entries = tuple(after if old.name == after.name else old for old in record.experiments)
        record = replace(record, experiments=entries, seconds=time.monotonic() - began)
        record.save(folder)
        on_end(index, len(chosen), after)
    return record


def _opened(scale: str, folder: Path) -> ReproductionRecord:
    """Return the record of this run before anything ran: every experiment as an earlier one left it."""
    old = read_record(folder)
    if old is not None and old.scale != scale:
        raise InvalidInputError(
            f"{folder} holds a reproduction of scale '{old.scale}', not '{scale}'; choose another folder "
            "with --out."
        )
    known = {} if old is None else {entry.name: entry for entry in old.experiments}
    entries = []
    for experiment in experiments(scale):
        fresh = ExperimentRecord(
            name=experiment.name,
            title=experiment.title,
            summary=experiment.summary,
            kind=experiment.kind,
            command=shlex.join(["condnum", *(word.strip("{}") for word in experiment.words)]),
            status="not run",
            folder=None,
            error="was not asked for",
            seconds=0.0,
            fingerprint=None,
        )
        before = known.get(experiment.name)
        if before is not None and before.folder and is_whole(folder / before.folder):
            fresh = replace(
                fresh,
                status="reused" if before.ok or before.status == "waiting" else before.status,
                folder=before.folder,
                error=before.error,
                seconds=before.seconds,
                fingerprint=before.fingerprint,
            )
        entries.append(fresh)
    return ReproductionRecord(
        scale=scale,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        source=source_revision(),
        versions=versions(),
        device=describe_device("cpu"),
        experiments=tuple(entries),
    )


def _reusable(before: ExperimentRecord, mark: Fingerprint, folder: Path) -> bool:
    """Whether an earlier result stands for the run: same fingerprint, all data known, and it is whole."""
    return (
        before.ok
        and before.fingerprint == mark
        and all(mark.data.values())
        and before.folder is not None
        and is_whole(folder / before.folder)
    )


def _run(
    experiment: Experiment,
    words: Sequence[str],
    before: ExperimentRecord,
    root: Path,
    jobs: int,
    progress: OnProgress,
    runner: Runner,
) -> ExperimentRecord:
    """Run one experiment and return its record; an older result stays when it fails."""
    folder = root / experiment.name
    options = ["--jobs", str(jobs)] if experiment.parallel else []
    progress(ProgressEvent("starting"))
    began = time.monotonic()
    ended = runner([*words, *options, "--out", str(folder), "--quiet"], progress=progress)
    if ended.status == 0 and is_whole(folder):
        return replace(
            before,
            status="finished",
            folder=experiment.name,
            error="",
            seconds=round(time.monotonic() - began, 3),
            fingerprint=fingerprint(words, experiment.data),  # again: the run may have fetched its data
        )
    return replace(before, status="failed", error=ended.error or f"left no whole result in {folder}")
