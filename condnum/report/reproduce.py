"""`condnum reproduce`: experiments, lessons and explorers side by side; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from condnum.files import RECORD, data_folders, output_folder, read_record, write_json
from condnum.machine import core_count
from condnum.progress import Event, duration, terminal_progress
from condnum.report.experiments import (
    REPRODUCTION,
    Experiment,
    ExperimentResult,
    experiments,
    find_run,
    requested,
)
from condnum.report.notebook import ParameterNotebook
from condnum.report.pool import Task, run_tasks
from condnum.report.run import run_key


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


def experiment_task(experiment: Experiment, folder: Path, jobs: int) -> Task:
    """Return the command of an experiment, with so many processes of its own."""
    words = ["run", experiment.run, "--quiet", "--out", str(folder)]
    values = {"jobs": jobs} if "jobs" in ParameterNotebook.find(experiment.run).parameters else {}
    for name, value in (values | experiment.values).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return Task(experiment.name, tuple(words), experiment.core_seconds or 600.0)


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    others: Sequence[Task] = (),
    runner: Callable[..., None] = run_tasks,
) -> list[ExperimentResult]:
    """Run the experiments of a scale side by side, one to a core; return all of them as they are then.

    What is unchanged is reused; what fails does not stop the others; what was stopped resumes from its store.
    What is `first`, and what would outlast all others, has all cores. `others` run beside the rest.
    """
    root, cores, out = output_folder(root), jobs or core_count(), stream or io.StringIO()
    runs = {experiment.name: find_run(experiment, root) for experiment in experiments(scale)}
    due = dict[str, Experiment]()
    for experiment in requested(scale, only):
        run = runs[experiment.name]
        if error := missing_images(experiment):
            runs[run.name] = replace(run, status="not run", error=error)
        elif run.key and run.key == run_key(ParameterNotebook.find(experiment.run), experiment.values):
            runs[run.name] = replace(run, status="reused")
            print(f"condnum: = {run.name} reused: same parameters, data and code", file=out)
        else:
            due[run.name] = experiment
    seconds = {name: runs[name].seconds or of.core_seconds for name, of in due.items()}
    alone = [
        name
        for name, of in due.items()
        if cores > 1 and (of.first or seconds[name] > sum(seconds.values()) / cores)
    ]
    make = {name: experiment_task(of, root / name, cores if name in alone else 1) for name, of in due.items()}
    beside = [make[name] for name in due if name not in alone] + [*others]
    log = _Log([*make.values(), *others], cores, out)

    def ended(task: Task, error: str) -> None:
        if experiment := due.get(task.name):
            run, folder = runs[task.name], root / task.name
            if error:
                runs[task.name] = replace(run, status="failed", error=error)  # an older result stays
            else:
                record = read_record(folder) | {REPRODUCTION: {"command": experiment.typed}}
                write_json(folder / RECORD, record)
                runs[task.name] = find_run(experiment, root)
        log.ended(task, error)

    with terminal_progress("all", stream=out) as progress:
        log.report = progress
        for tasks, threads in (([make[name] for name in alone], cores), (beside, 1)):
            if tasks:
                runner(tasks, cores // threads, ended, threads=threads, heard=log.heard)
    return list(runs.values())


class _Log:
    """What a reproduction says: its plan, how far it is, and how each of its tasks ended."""

    def __init__(self, tasks: Sequence[Task], cores: int, stream: TextIO) -> None:
        self.stream, self.begun = stream, dict[Task, float]()
        self.parts = dict.fromkeys(tasks, 0.0)  # of each that is done
        self.words = dict[Task, str]()
        self.report: Callable[[Event], None] = lambda event: None
        total = sum(task.seconds for task in tasks)
        if tasks:
            print(
                f"condnum: {len(tasks)} tasks, about {duration(total / cores)} on {cores} cores",
                file=stream,
                flush=True,
            )

    def heard(self, task: Task, event: Event) -> None:
        """Tell how far a task is."""
        self.begun.setdefault(task, time.monotonic())
        self.words.setdefault(task, task.name)
        if event.get("total"):
            self.parts[task] = min(0.99, event["done"] / event["total"])
            self.words[task] = f"{task.name} {event['done']}/{event['total']}"
        self._show()

    def ended(self, task: Task, error: str) -> None:
        """Say how a task ended."""
        self.parts[task] = 1.0
        self.words.pop(task, None)
        place = f"[{sum(part == 1 for part in self.parts.values())}/{len(self.parts)}]"
        said = error if len(error) <= 200 else f"{error[:200]}…"
        took = duration(time.monotonic() - self.begun[task])
        line = f"✗ {place} {task.name} failed: {said}" if error else f"✓ {place} {task.name}, {took}"
        self.report({"note": line})
        self._show()

    def _show(self) -> None:
        total = sum(task.seconds for task in self.parts)
        done = sum(task.seconds * part for task, part in self.parts.items())
        self.report(
            {"stage": ", ".join(self.words.values()), "done": round(100 * done / total), "total": 100}
        )
