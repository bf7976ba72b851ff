"""`condnum reproduce`: experiments side by side, a process each; their folders are the state.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import hashlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TextIO

from condnum.data.catalog import data_status
from condnum.data.resolver import data_folders
from condnum.errors import require
from condnum.files import RECORD, output_folder, read_record, write_json
from condnum.machine import end_group, threads_environment, versions
from condnum.progress import (
    POLL_SECONDS,
    PROGRESS_VARIABLE,
    OnProgress,
    duration,
    following,
    terminal_progress,
)
from condnum.report.experiments import Experiment, experiments
from condnum.report.notebook import is_whole
from condnum.report.results import REPRODUCTION, ExperimentResult, find_run
from condnum.studies.executors import core_count

#: Seconds that an interrupted experiment has to keep what it finished.
GRACE_SECONDS = 60.0


@dataclass
class Stop:
    """How urgently processes are to end: 0, not at all; 1, when they have kept their work; 2, now."""

    urgency: Literal[0, 1, 2] = 0


@dataclass(frozen=True)
class Ended:
    """How an experiment's process ended."""

    status: int  # exit status; negative: the signal that killed it
    message: str  # what it said on the standard error, "" if nothing

    @property
    def error(self) -> str:
        """Why it failed, in words; "" if it did not."""
        if self.status >= 0:
            silent = f"ended with status {self.status} and without a message"
            return "" if self.status == 0 else self.message or silent
        killed = f"killed by {signal.Signals(-self.status).name}"
        killed += " (most often for lack of memory)" if self.status == -signal.SIGKILL else ""
        return f"{killed}: {self.message}" if self.message else killed


def run_program(
    words: Sequence[str], *, progress: OnProgress | None = None, threads: int = 0, stop: Stop | None = None
) -> Ended:
    """Run `condnum …` in a process of its own, on so many cores (0: all), until it is done or stopped.

    It lies in a process group of its own, so that Ctrl-C reaches it once, through `stop`.
    """
    with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
        events, errors = Path(scratch) / "progress.jsonl", Path(scratch) / "stderr"
        environment = dict(os.environ)
        if threads:  # and as many cores, where it counts them
            environment |= threads_environment(threads) | {"LOKY_MAX_CPU_COUNT": str(threads)}
        if progress is not None:
            environment[PROGRESS_VARIABLE] = str(events)
        followed = following(events, progress) if progress else nullcontext()
        with followed, errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "condnum", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
            overdue = math.inf
            while (status := process.poll()) is None:
                if stop and stop.urgency and overdue == math.inf:
                    process.terminate()  # heard as Ctrl-C, also where a background job ignores SIGINT
                    overdue = time.monotonic() + GRACE_SECONDS
                if (stop and stop.urgency > 1) or time.monotonic() > overdue:
                    end_group(process.pid)
                time.sleep(POLL_SECONDS)
        text = errors.read_text(encoding="utf-8", errors="replace")
    if "Traceback (most recent call last)" not in text:
        text = " ".join(text.split()).removeprefix("condnum: ")
    return Ended(status, text.strip()[-2000:])


#: Parts of the package that arrange and show results but cannot change one.
_SHOWING = tuple(f"report/{name}.py" for name in ("experiments", "reproduce", "results", "scoreboard"))


def run_fingerprint(words: Sequence[str], checksums: Mapping[str, str]) -> str:
    """Return a SHA-256 of what a command's result depends on, now; "" while data are not known."""
    parts = [list(words), sorted(checksums.items()), code_checksum(Path(__file__).resolve().parents[2])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if all(checksums.values()) else ""


@cache
def code_checksum(tree: Path) -> str:
    """Return one SHA-256 over the package, the experiments' notebooks and the versions of the libraries."""
    package = tree / "condnum"
    showing = {package / name for name in _SHOWING} | set((package / "site").rglob("*.py"))
    sources = set(package.rglob("*.py")) - showing
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
        Plan: about 1 min 17 s on 2 cores, then the pages of the site.
          house-prices        about 1 min 5 s    House prices (Table 1, Figure 1)
          corrections         about 12 s         Where the paper is wrong
    """
    alone, shared = (
        [run.estimate(count) for run in group] for group, count in ((first, cores), (rest, cores // workers))
    )
    total = sum(alone) + max([sum(shared) / workers, *shared])
    lines = [f"Plan: about {duration(total)} on {cores} cores, then the pages of the site."]
    for run, seconds in zip([*first, *rest], [*alone, *shared], strict=True):
        about = f"about {duration(seconds)}" if seconds else "time not known"
        lines.append(f"  {run.name:<20}{about:<19}{run.experiment.title}")
    return "\n".join(lines)


def missing_images(experiment: Experiment) -> str:
    """Return what an experiment needs that is not here; "" if nothing."""
    if experiment.words is not None:
        return ""
    names = " and ".join(f"{name}/" for name in experiment.images)
    return (
        f"needs the images of {names}, which nobody may hand on and nothing here downloads; put them "
        f"into a data folder ({', '.join(str(place) for place in data_folders())}), or run it on "
        f"folders of your own: {experiment.typed}"
    )


class Reproduction:
    """The experiments of a scale while they run; `runs` says at any time what is there of each."""

    def __init__(self, scale: str, root: Path, stream: TextIO, runner: Callable[..., Ended]) -> None:
        self.root, self.stream, self.runner, self.stop = root, stream, runner, Stop()
        self.runs = {experiment.name: find_run(experiment, root) for experiment in experiments(scale)}
        self.total, self._ended = 0, 0
        self._lock, self._checksums = threading.Lock(), dict[str, str]()

    def fingerprint(self, experiment: Experiment) -> str:
        """Return what a result depends on now; each data set is loaded for it once."""
        for name in experiment.data:
            self._checksums[name] = self._checksums.get(name) or data_status(name).checksum
        known = {name: self._checksums[name] for name in experiment.data}
        return run_fingerprint(experiment.words or (), known)

    def look(self, experiment: Experiment) -> ExperimentResult:
        """Return what is there of an experiment that is asked for: it is reused, cannot run, or waits."""
        run = self.runs[experiment.name]
        if error := missing_images(experiment):
            return replace(run, status="not run", error=error)
        same = run.fingerprint and run.fingerprint == self.fingerprint(experiment)
        return replace(run, status="reused" if same else "waiting", error="")

    def run(self, before: ExperimentResult, jobs: int, threads: int) -> ExperimentResult:
        """Run an experiment, or a command that is none; return what became of it."""
        if self.stop.urgency:
            return before
        experiment, target, start = before.experiment, self.root / before.name, time.monotonic()
        words = [*(experiment.words or ()), *(["--jobs", str(jobs)] if experiment.parallel else [])]
        ours = before.name in self.runs
        with terminal_progress(before.name, stream=self.stream) as progress:
            progress({"stage": "running"})
            ended = self.runner(
                [*words, "--out", str(target), "--quiet"] if ours else words,
                progress=progress if ours else None,
                threads=threads,
                stop=self.stop,
            )
        after = replace(before, status="finished")
        if ours and ended.status == 0 and is_whole(target):
            # Now: the run may have fetched its data.
            marks = {"command": experiment.command, "fingerprint": self.fingerprint(experiment)}
            write_json(target / RECORD, {**read_record(target), REPRODUCTION: marks})
            after = find_run(experiment, self.root)
        elif ours or ended.status:
            if self.stop.urgency:
                return before
            error = ended.error or f"left no whole result in {target}"
            after = replace(before, status="failed", error=error)  # an older result stays
        self.settle(after, time.monotonic() - start)
        return after

    def settle(self, after: ExperimentResult, seconds: float) -> None:
        """Keep and print what became of an experiment."""
        with self._lock:
            self._ended += 1
            if after.name in self.runs:
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
                try:
                    self.stop.urgency = 1
                    list(_as_completed(running))
                except KeyboardInterrupt:
                    self.stop.urgency = 2
                raise


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    beside: Sequence[Experiment] = (),
    on_end: Callable[[str, Sequence[ExperimentResult]], None] = lambda name, runs: None,
    runner: Callable[..., Ended] = run_program,
) -> list[ExperimentResult]:
    """Run the experiments of a scale; reuse those whose parameters, data and code are unchanged.

    Those of the quick scale run side by side, a core each, the longest first; but the first one has all
    cores before that, for its result to be there soon. Those of the full scale have all cores one by one.

    One that fails does not stop the others. A reproduction that is stopped goes on where it was: finished
    experiments are reused, and those that were running resume from their own stores.

    Args:
        scale: `quick` or `full`.
        root: Folder of the runs, each in a folder by its name.
        only: Names of experiments; empty for all.
        jobs: Cores to use; 0 for all.
        stream: Where plan, progress and results are written.
        beside: Commands that are no experiments and run beside them.
        on_end: Called, in this thread, with the name of each one that ran, and all experiments as they are.
        runner: Runs a command.

    Returns:
        Every experiment of the scale as it is now.
    """
    chosen = experiments(scale, only)
    own = Reproduction(scale, output_folder(root), stream or io.StringIO(), runner)
    asked = [own.look(experiment) for experiment in chosen]
    own.runs |= {run.name: run for run in asked}
    own.total = len(asked) + len(beside)
    to_run = [run for run in asked if run.status == "waiting"]
    for run in asked:
        if run.status != "waiting":
            own.settle(run, run.seconds)
    cores = jobs or core_count()
    alone = scale == "quick" and to_run[:1] == asked[:1] and chosen[0].parallel
    first = to_run[:1] if alone else []
    rest = [*to_run[len(first) :], *map(ExperimentResult, beside)]
    workers, each, threads = 1, jobs, 0
    if scale == "quick":
        workers = min(cores, len(rest)) or 1
        each = threads = max(1, cores // workers)
        rest.sort(key=lambda run: -run.estimate(each))
    if first or rest:
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
