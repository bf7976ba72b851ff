"""`condnum reproduce`: experiments side by side, a kernel each; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from condnum.data.catalog import data_status
from condnum.data.resolver import data_folders
from condnum.errors import CondnumError, require
from condnum.files import RECORD, output_folder, read_record, write_json
from condnum.machine import versions
from condnum.progress import POLL_SECONDS, OnProgress, duration, terminal_progress
from condnum.report.experiments import Experiment, experiments
from condnum.report.notebook import ParameterNotebook, stop_kernels
from condnum.report.results import REPRODUCTION, ExperimentResult, find_run
from condnum.report.run import EXPERIMENTS, run_command
from condnum.studies.executors import core_count

#: Seconds that an interrupted experiment has to keep what it finished, and between two interrupts.
GRACE_SECONDS, AGAIN_SECONDS = 60.0, 2.0

#: Parts of the package that arrange and show results but cannot change one.
_SHOWING = tuple(f"report/{name}.py" for name in ("experiments", "reproduce", "results", "scoreboard"))


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    jobs: int,
    threads: int,
    stopped: Callable[[], bool],
    progress: OnProgress,
) -> list[str]:
    """Run an experiment into its folder, without a word; return a line per cell that failed."""
    command = EXPERIMENTS[experiment.run]
    notebook = ParameterNotebook.find(command.notebook)
    values = {**command.values(notebook), **(experiment.values or {})}
    if experiment.jobs:
        values["jobs"] = jobs
    return run_command(
        command, notebook, values, folder, quiet=True, threads=threads, stopped=stopped, progress=progress
    )


def run_fingerprint(experiment: Experiment, checksums: Mapping[str, str]) -> str:
    """Return a SHA-256 of what a result depends on, now; "" while data are not known."""
    words = [experiment.run, experiment.values]
    parts = [words, sorted(checksums.items()), code_checksum(Path(__file__).resolve().parents[2])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if all(checksums.values()) else ""


@cache
def code_checksum(tree: Path) -> str:
    """Return one SHA-256 over the package, the experiments' notebooks and the versions of the libraries."""
    package = tree / "condnum"
    showing = {package / name for name in _SHOWING} | set((package / "site").rglob("*.py"))
    sources = {*package.rglob("*.py"), *package.rglob("*.toml")} - showing
    digest = hashlib.sha256()
    for place in (tree, package):  # of a clone, of a wheel
        sources |= set(place.glob("notebooks/experiments/*.ipynb"))
    for path in sorted(sources):
        digest.update(path.relative_to(tree).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr(sorted(versions().items())).encode())
    return digest.hexdigest()


def plan(
    first: Sequence[ExperimentResult], rest: Sequence[ExperimentResult], cores: int, workers: int
) -> str:
    """Return what will run, in its order, and how long that takes.

    Examples:
        >>> before = [ExperimentResult(one) for one in experiments("quick", ["house-prices", "corrections"])]
        >>> print(plan(before[:1], before[1:], 2, 1))
        Plan: about 1 min 17 s on 2 cores, then lessons, explorers and pages of the site.
          house-prices        about 1 min 5 s    House prices (Table 1, Figure 1)
          corrections         about 12 s         Where the paper is wrong
    """
    alone, shared = (
        [run.estimate(count) for run in group] for group, count in ((first, cores), (rest, cores // workers))
    )
    total = sum(alone) + max([sum(shared) / workers, *shared])
    lines = [
        f"Plan: about {duration(total)} on {cores} cores, then lessons, explorers and pages of the site."
    ]
    for run, seconds in zip([*first, *rest], [*alone, *shared], strict=True):
        about = f"about {duration(seconds)}" if seconds else "time not known"
        lines.append(f"  {run.name:<20}{about:<19}{run.experiment.title}")
    return "\n".join(lines)


def missing_images(experiment: Experiment) -> str:
    """Return what an experiment needs that is not here; "" if nothing."""
    if experiment.values is not None:
        return ""
    names = " and ".join(f"{name}/" for name in experiment.images)
    return (
        f"needs the images of {names}, which nobody may hand on and nothing here downloads; put them "
        f"into a data folder ({', '.join(str(place) for place in data_folders())}), or run it on "
        f"folders of your own: {experiment.typed}"
    )


class Reproduction:
    """The experiments of a scale while they run; `runs` says at any time what is there of each."""

    def __init__(self, scale: str, root: Path, stream: TextIO, runner: Callable[..., list[str]]) -> None:
        self.root, self.stream, self.runner, self.stop = root, stream, runner, threading.Event()
        self.runs = {experiment.name: find_run(experiment, root) for experiment in experiments(scale)}
        self.total, self._ended = 0, 0
        self._lock, self._checksums = threading.Lock(), dict[str, str]()

    def fingerprint(self, experiment: Experiment) -> str:
        """Return what a result depends on now; each data set is loaded for it once."""
        for name in experiment.data:
            self._checksums[name] = self._checksums.get(name) or data_status(name).checksum
        return run_fingerprint(experiment, {name: self._checksums[name] for name in experiment.data})

    def look(self, experiment: Experiment) -> ExperimentResult:
        """Return what is there of an experiment that is asked for: it is reused, cannot run, or waits."""
        run = self.runs[experiment.name]
        if error := missing_images(experiment):
            return replace(run, status="not run", error=error)
        same = run.fingerprint and run.fingerprint == self.fingerprint(experiment)
        return replace(run, status="reused" if same else "waiting", error="")

    def run(self, before: ExperimentResult, jobs: int, threads: int) -> ExperimentResult:
        """Run an experiment; return what became of it."""
        if self.stop.is_set():
            return before
        experiment, target, start = before.experiment, self.root / before.name, time.monotonic()
        with terminal_progress(before.name, stream=self.stream) as progress:
            progress({"stage": "running"})
            try:
                failed = self.runner(
                    experiment,
                    target,
                    jobs=jobs,
                    threads=threads,
                    stopped=self.stop.is_set,
                    progress=progress,
                )
                error = f"{len(failed)} cells failed, the first one: {failed[0]}" if failed else ""
            except KeyboardInterrupt:  # it kept what it finished
                return before
            except CondnumError as problem:
                error = str(problem)
            except Exception as problem:  # a mistake here must not stop the others
                error = f"{type(problem).__name__}: {problem}"
        if error:
            after = replace(before, status="failed", error=error)  # an older result stays
        else:  # now: the run may have fetched its data
            marks = {"command": experiment.typed, "fingerprint": self.fingerprint(experiment)}
            write_json(target / RECORD, {**read_record(target), REPRODUCTION: marks})
            after = find_run(experiment, self.root)
        self.settle(after, time.monotonic() - start)
        return after

    def settle(self, after: ExperimentResult, seconds: float) -> None:
        """Keep and print what became of an experiment."""
        with self._lock:
            self._ended += 1
            self.runs[after.name] = after
            self.say(f"{_SIGNS[after.status]} [{self._ended}/{self.total}] {ending(after, seconds)}")

    def say(self, line: str) -> None:
        """Print a line, above the bars of what runs."""
        require("tqdm", "notebooks").tqdm.write(line, file=self.stream)

    def run_all(
        self,
        runs: Sequence[ExperimentResult],
        workers: int,
        jobs: int,
        threads: int,
        on_end: Callable[[str, Sequence[ExperimentResult]], None],
    ) -> None:
        """Run experiments side by side; after Ctrl-C each may keep its work, after a second one none."""
        with ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(self.run, run, jobs, threads) for run in runs]
            try:
                for future in _as_completed(running):
                    on_end(future.result().name, list(self.runs.values()))
            except BaseException:
                self.stop.set()
                self._end(running)
                raise

    def _end(self, running: Sequence[Future[Any]]) -> None:
        """Interrupt what runs until it has ended, and kill it where it does not."""
        overdue = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < overdue:
            try:
                stop_kernels()  # again and again: a kernel between two cells does not hear it
                if not wait(running, timeout=AGAIN_SECONDS).not_done:
                    return
            except KeyboardInterrupt:
                break
        while wait(running, timeout=POLL_SECONDS).not_done:
            stop_kernels(now=True)


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    on_end: Callable[[str, Sequence[ExperimentResult]], None] = lambda name, runs: None,
    runner: Callable[..., list[str]] = run_experiment,
) -> list[ExperimentResult]:
    """Run the experiments of a scale; return all of them as they are then.

    What is unchanged is reused; what fails does not stop the others; what was stopped resumes from its store.
    Those of the quick scale run side by side, a core each, the longest first; but the first one has all cores
    before that, for its result to be there soon. Those of the full scale have all cores one by one.
    `on_end` is told, in this thread, of each one that ran, with all experiments as they are then.
    """
    chosen = experiments(scale, only)
    own = Reproduction(scale, output_folder(root), stream or io.StringIO(), runner)
    asked = [own.look(experiment) for experiment in chosen]
    own.runs |= {run.name: run for run in asked}
    own.total = len(asked)
    to_run = [run for run in asked if run.status == "waiting"]
    for run in asked:
        if run.status != "waiting":
            own.settle(run, run.seconds)
    cores = jobs or core_count()
    alone = scale == "quick" and to_run[:1] == asked[:1] and chosen[0].jobs
    first = to_run[:1] if alone else []
    rest = to_run[len(first) :]
    workers, each, threads = 1, jobs, 0
    if scale == "quick":
        workers = min(cores, len(rest)) or 1
        each = threads = max(1, cores // workers)
        rest.sort(key=lambda run: -run.estimate(each))
    if to_run:
        own.say(plan(first, rest, cores, workers))
    own.run_all(first, 1, cores, 0, on_end)
    own.run_all(rest, workers, each, threads, on_end)
    return list(own.runs.values())


def _as_completed(futures: Sequence[Future[ExperimentResult]]) -> Generator[Future[ExperimentResult]]:
    """Yield futures as they end; Ctrl-C just before a wait without a limit is not heard until its end."""
    pending = list(futures)
    while pending:
        done, _ = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        yield from (future for future in pending if future in done)
        pending = [future for future in pending if future not in done]


_SIGNS = {"finished": "✓", "reused": "=", "failed": "✗", "not run": "–"}


def ending(run: ExperimentResult, seconds: float) -> str:
    """Return what became of an experiment, in one line."""
    if run.status == "finished":
        return f"{run.name} finished in {duration(seconds)}"
    if run.status == "reused":
        return f"{run.name} reused: same parameters, data and code (it took {duration(seconds)})"
    message = run.error.strip().rpartition("\n")[2]
    return f"{run.name} {run.status}: {message[:200]}{'…' if len(message) > 200 else ''}"
