"""`condnum reproduce`: experiments one by one, a kernel each; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TextIO

from condnum.data.catalog import data_folders, data_status
from condnum.errors import CondnumError, require
from condnum.files import RECORD, output_folder, read_record, sha256_folder, write_json
from condnum.machine import code_checksum
from condnum.progress import OnProgress, duration, terminal_progress
from condnum.report.experiments import REPRODUCTION, Experiment, ExperimentResult, experiments, find_run
from condnum.report.notebook import ParameterNotebook
from condnum.report.run import EXPERIMENTS, run_command
from condnum.studies.frame.executors import core_count

_TREE = Path(__file__).resolve().parents[2]
#: Parts of the package that arrange and show results but cannot change one.
_SHOWING = (*(f"report/{name}.py" for name in ("experiments", "reproduce", "scoreboard")), "site/")


def run_experiment(experiment: Experiment, folder: Path, *, jobs: int, progress: OnProgress) -> list[str]:
    """Run an experiment into its folder, without a word; return a line per cell that failed."""
    command = EXPERIMENTS[experiment.run]
    notebook = ParameterNotebook.find(command.notebook)
    values = {**command.values(notebook), **(experiment.values or {})}
    if experiment.jobs:
        values["jobs"] = jobs
    return run_command(command, notebook, values, folder, quiet=True, threads=jobs, progress=progress)


def run_fingerprint(experiment: Experiment, checksums: Mapping[str, str]) -> str:
    """Return a SHA-256 of what a result depends on, now; "" while data are not known."""
    images = [sha256_folder(folder) for folder in experiment.image_folders]
    parts = [experiment.run, experiment.values, sorted(checksums.items()), images, run_checksum()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if all(checksums.values()) else ""


@cache
def run_checksum(tree: Path = _TREE) -> str:
    """Return one SHA-256 over what results, lessons and recordings depend on: code, notebooks, versions."""
    digest = hashlib.sha256(code_checksum(_SHOWING, tree / "condnum").encode())
    for place in (tree, tree / "condnum"):  # of a clone, of a wheel
        for path in sorted(place.glob("notebooks/experiments/*.ipynb")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def plan(runs: Sequence[ExperimentResult], cores: int) -> str:
    """Return what will run, in its order, and how long that takes."""
    estimates = [run.estimate(cores) for run in runs]
    lines = [
        f"Plan: about {duration(sum(estimates))} on {cores} cores, "
        "then the lessons, explorers and pages of the site."
    ]
    for run, seconds in zip(runs, estimates, strict=True):
        about = f"about {duration(seconds)}" if seconds else "time not known"
        lines.append(f"  {run.name:<20}{about:<19}{run.experiment.title}")
    return "\n".join(lines)


def missing_images(experiment: Experiment) -> str:
    """Return what an experiment needs that is not here; "" if nothing."""
    if experiment.values is not None:
        return ""
    names = " and ".join(f"{name}/" for name in experiment.images)
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
    checksums, say = dict[str, str](), partial(require("tqdm", "notebooks").tqdm.write, file=stream)

    def fingerprint(experiment: Experiment) -> str:
        """Return what a result depends on now; each data set is loaded for it once."""
        for name in experiment.data:
            checksums[name] = checksums.get(name) or data_status(name).checksum
        return run_fingerprint(experiment, {name: checksums[name] for name in experiment.data})

    due = dict[str, ExperimentResult]()
    for experiment in chosen:
        run = runs[experiment.name]
        if error := missing_images(experiment):
            runs[run.name] = replace(run, status="not run", error=error)
        elif run.fingerprint and run.fingerprint == fingerprint(experiment):
            runs[run.name] = replace(run, status="reused")
        else:
            due[run.name] = run
    if due:
        say(plan(list(due.values()), jobs or core_count()))
    for place, experiment in enumerate(chosen, 1):
        run, target, start = runs[experiment.name], root / experiment.name, time.monotonic()
        seconds = run.seconds
        if run.name in due:
            with terminal_progress(run.name, stream=stream) as progress:
                progress({"stage": "running"})
                error = failure(partial(runner, experiment, target, jobs=jobs, progress=progress))
            if error:
                run = replace(run, status="failed", error=error)  # an older result stays
            else:  # now: the run may have fetched its data
                marks = {"command": experiment.typed, "fingerprint": fingerprint(experiment)}
                write_json(target / RECORD, {**read_record(target), REPRODUCTION: marks})
                run = find_run(experiment, root)
            runs[run.name], seconds = run, time.monotonic() - start
        say(f"{_SIGNS[run.status]} [{place}/{len(chosen)}] {ending(run, seconds)}")
    return list(runs.values())


_SIGNS = {"finished": "✓", "reused": "=", "failed": "✗", "not run": "–"}


def ending(run: ExperimentResult, seconds: float) -> str:
    """Return what became of an experiment, in one line."""
    if run.status == "finished":
        return f"{run.name} finished in {duration(seconds)}"
    if run.status == "reused":
        return f"{run.name} reused: same parameters, data and code (it took {duration(seconds)})"
    message = run.error.strip().rpartition("\n")[2]
    return f"{run.name} {run.status}: {message[:200]}{'…' if len(message) > 200 else ''}"
