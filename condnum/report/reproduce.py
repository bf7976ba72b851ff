"""`condnum reproduce`: experiments one by one, a kernel each; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from condnum.data.catalog import data_checksum, data_folders
from condnum.errors import CondnumError, require
from condnum.files import RECORD, output_folder, read_record, sha256_folder, write_json
from condnum.machine import core_count
from condnum.progress import OnProgress, duration, terminal_progress
from condnum.report.experiments import REPRODUCTION, Experiment, ExperimentResult, experiments, find_run
from condnum.report.notebook import ParameterNotebook
from condnum.report.run import run_into_folder


def run_experiment(experiment: Experiment, folder: Path, *, jobs: int, progress: OnProgress) -> list[str]:
    """Run an experiment into its folder, without a word; return a line per cell that failed."""
    book = ParameterNotebook.find(experiment.run)
    values = {"jobs": jobs} if "jobs" in book.parameters else {}
    record = run_into_folder(
        book, values | experiment.values, folder, quiet=True, threads=jobs, progress=progress
    )
    return list(record["failures"])


def run_key(experiment: Experiment) -> str:
    """Return the SHA-256 of what a result depends on: parameters, code of the notebook, data."""
    book = ParameterNotebook.find(experiment.run)
    images = {name: sha256_folder(place) for name, place in experiment.image_folders.items() if place}
    data = {name: data_checksum(name) for name in experiment.data}
    parts = [experiment.run, dict(experiment.options), book.code_hash, data, images]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def missing_images(experiment: Experiment) -> str:
    """Return what an experiment needs that is not here; "" if nothing."""
    if all(experiment.image_folders.values()):
        return ""
    names = " and ".join(f"{name}/" for name in experiment.image_folders)
    return (
        f"needs the images of {names}, which may not be redistributed; put them into a data folder "
        f"({', '.join(str(place) for place in data_folders())}), or run it on your own folders: "
        f"{experiment.typed}"
    )


def failure(run: Callable[[], list[str]]) -> str:
    """Run an experiment; return why it failed, or "": a mistake in one must not stop the others."""
    try:
        failed = run()
    except CondnumError as problem:
        return str(problem)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return f"{len(failed)} cells failed, the first one: {failed[0]}" if failed else ""


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    runner: Callable[..., list[str]] = run_experiment,
) -> list[ExperimentResult]:
    """Run the experiments of a scale one by one, each on all cores; return all of them as they are then.

    What is unchanged is reused; what fails does not stop the others; what was stopped resumes from its store.
    """
    chosen, root, stream = experiments(scale, only), output_folder(root), stream or io.StringIO()
    runs = {experiment.name: find_run(experiment, root) for experiment in experiments(scale)}
    say = partial(require("tqdm", "notebooks").tqdm.write, file=stream)
    due = list[str]()
    for experiment in chosen:
        run = runs[experiment.name]
        if error := missing_images(experiment):
            runs[run.name] = replace(run, status="not run", error=error)
        elif run.key and run.key == run_key(experiment):
            runs[run.name] = replace(run, status="reused")
        else:
            due.append(run.name)
    if due:
        say(plan([runs[name] for name in due], jobs or core_count()))
    for place, experiment in enumerate(chosen, 1):
        run, target, start = runs[experiment.name], root / experiment.name, time.monotonic()
        seconds = run.seconds
        if run.name in due:
            with terminal_progress(run.name, stream=stream) as progress:
                progress({"stage": "running"})
                error = failure(partial(runner, experiment, target, jobs=jobs, progress=progress))
            if error:
                run = replace(run, status="failed", error=error)  # an older result stays
            else:
                marks = {"command": experiment.typed, "key": run_key(experiment)}
                write_json(target / RECORD, {**read_record(target), REPRODUCTION: marks})
                run = find_run(experiment, root)
            runs[run.name], seconds = run, time.monotonic() - start
        say(f"{_SIGNS[run.status]} [{place}/{len(chosen)}] {ending(run, seconds)}")
    return list(runs.values())


def plan(runs: Sequence[ExperimentResult], cores: int) -> str:
    """Return what will run, in its order, and how long that takes: as last time, or as declared."""
    estimates = [run.seconds or run.experiment.core_seconds / max(1, cores) for run in runs]
    lines = [
        f"Plan: about {duration(sum(estimates))} on {cores} cores, "
        "then the lessons, explorers and pages of the site."
    ]
    for run, seconds in zip(runs, estimates, strict=True):
        about = f"about {duration(seconds)}" if seconds else "time not known"
        lines.append(f"  {run.name:<20}{about:<19}{run.experiment.title}")
    return "\n".join(lines)


_SIGNS = {"finished": "✓", "reused": "=", "failed": "✗", "not run": "–"}


def ending(run: ExperimentResult, seconds: float) -> str:
    """Return what became of an experiment, in one line."""
    if run.status == "finished":
        return f"{run.name} finished in {duration(seconds)}"
    if run.status == "reused":
        return f"{run.name} reused: same parameters, data and code (it took {duration(seconds)})"
    message = run.error.strip().rpartition("\n")[2]
    return f"{run.name} {run.status}: {message[:200]}{'…' if len(message) > 200 else ''}"
