"""`condnum reproduce`: experiments one after the other; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from condnum.errors import CondnumError
from condnum.files import RECORD, data_folders, output_folder, write_json
from condnum.progress import duration
from condnum.page.experiments import (
    REPRODUCTION,
    Experiment,
    ExperimentResult,
    experiments,
    find_run,
    requested,
)
from condnum.page.notebook import ParameterNotebook
from condnum.page.run import run_into_folder


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


def reproduce(
    scale: str, root: Path, *, only: Sequence[str] = (), jobs: int = 0, quiet: bool = True
) -> list[ExperimentResult]:
    """Run the experiments of a scale; return all of them as they are then.

    What is unchanged is reused; what fails does not stop the others; what was stopped resumes from its store.
    """
    root, wanted = output_folder(root), requested(scale, only)
    runs = {experiment.name: find_run(experiment, root) for experiment in experiments(scale)}
    for number, experiment in enumerate(wanted, 1):
        name, began = experiment.name, time.monotonic()
        if error := missing_images(experiment):
            runs[name] = replace(runs[name], status="not run", error=error)
        elif error := run_experiment(experiment, root / name, jobs, quiet=quiet):
            runs[name] = replace(runs[name], status="failed", error=error)  # an older result stays
        else:
            runs[name] = find_run(experiment, root)
        if not quiet:
            said = error or duration(time.monotonic() - began)
            print(f"{'✗' if error else '✓'} [{number}/{len(wanted)}] {name}: {said}", file=sys.stderr)
    return list(runs.values())


def run_experiment(experiment: Experiment, folder: Path, jobs: int = 0, *, quiet: bool = True) -> str:
    """Run an experiment into its folder; return what failed, or ""."""
    book = ParameterNotebook.find(experiment.run)
    values = experiment.values | ({"jobs": jobs} if jobs and "jobs" in book.parameters else {})
    try:
        record = run_into_folder(book, values, folder, quiet=quiet)
    except CondnumError as error:
        return str(error)
    if failures := record.pop("failures"):
        return f"{len(failures)} cells failed, the first one: {failures[0]}"
    write_json(folder / RECORD, record | {REPRODUCTION: {"command": experiment.typed}})
    return ""
