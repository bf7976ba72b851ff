"""`condnum reproduce`: experiments side by side, a process each, and a record that grows with them.

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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TextIO

from condnum.data.catalog import data_status
from condnum.data.resolver import data_folders
from condnum.errors import InvalidInputError, require
from condnum.files import output_folder, write_json
from condnum.machine import describe_device, end_group, source_revision, threads_environment, versions
from condnum.progress import (
    POLL_SECONDS,
    PROGRESS_VARIABLE,
    OnProgress,
    duration,
    following,
    terminal_progress,
)
from condnum.report.experiments import Experiment, Status, experiments
from condnum.report.notebook import is_whole
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


def run_command(
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


#: What ran, what became of it, and what it depended on.
RECORD = "reproduction.json"

#: Of the file: a reader refuses others.
FORMAT = 2


@dataclass(frozen=True)
class ReproductionRecord:
    """A reproduction: when, with what, and every experiment of its scale."""

    scale: str
    started_utc: str
    seconds: float
    source: Mapping[str, Any] | None  # git revision, dirty
    versions: Mapping[str, str]
    device: Mapping[str, Any]
    experiments: tuple[Experiment, ...]
    format: int = FORMAT

    def __getitem__(self, name: str) -> Experiment:
        """Return an experiment by name."""
        return next(experiment for experiment in self.experiments if experiment.name == name)

    def save(self, folder: Path) -> Path:
        """Write `reproduction.json` atomically."""
        return write_json(folder / RECORD, asdict(self))


def read_record(folder: Path) -> ReproductionRecord | None:
    """Read the record of a reproduction."""
    path = folder / RECORD
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        (FORMAT,).index(value["format"])  # refuses others
        rows = (Experiment(**row | {"data": tuple(row["data"])}) for row in value["experiments"])
        return ReproductionRecord(**value | {"experiments": tuple(rows)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidInputError(
            f"{path} is no record of this version of condnum ({type(error).__name__}: {error}); "
            "remove it to start anew; the finished folders beside it stay."
        ) from error


#: Parts of the package that arrange and show results but cannot change one.
_SHOWING = tuple(f"report/{name}.py" for name in ("experiments", "reproduce", "results", "scoreboard"))


def fingerprint(words: Sequence[str], checksums: Mapping[str, str]) -> str:
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


def plan(first: Sequence[Experiment], rest: Sequence[Experiment], cores: int, workers: int) -> str:
    """Return what will run, in its order, and how long that takes.

    Examples:
        >>> print(plan(experiments("quick", ["house-prices"]), experiments("quick", ["corrections"]), 2, 1))
        Plan: about 1 min 17 s on 2 cores, then the pages of the site.
          house-prices        about 1 min 5 s    House prices (Table 1, Figure 1)
          corrections         about 12 s         Where the paper is wrong
    """
    alone, shared = (
        [before.estimate(count) for before in group]
        for group, count in ((first, cores), (rest, cores // workers))
    )
    total = sum(alone) + max([sum(shared) / workers, *shared])
    lines = [f"Plan: about {duration(total)} on {cores} cores, then the pages of the site."]
    for before, seconds in zip([*first, *rest], [*alone, *shared], strict=True):
        about = f"about {duration(seconds)}" if seconds else "time not known"
        lines.append(f"  {before.name:<20}{about:<19}{before.title}")
    return "\n".join(lines)


class _Reproduction:
    """A reproduction that runs: its record, which the threads of the experiments keep up to date."""

    def __init__(
        self, record: ReproductionRecord, folder: Path, stream: TextIO, runner: Callable[..., Ended]
    ) -> None:
        self.record, self.folder, self.stream, self.runner = record, folder, stream, runner
        self.stop, self.began, self.total, self._ended = Stop(), time.monotonic(), 0, 0
        self._lock, self._checksums = threading.Lock(), dict[str, str]()

    def fingerprint(self, experiment: Experiment) -> str:
        """Return an experiment's fingerprint; each data set is loaded for it once."""
        for name in experiment.data:
            self._checksums[name] = self._checksums.get(name) or data_status(name).checksum
        return fingerprint(experiment.words or (), {name: self._checksums[name] for name in experiment.data})

    def settled(self, before: Experiment) -> Experiment | None:
        """Return what becomes of an experiment that need not or cannot run; None for the others."""
        if before.words is None:
            names = " and ".join(f"{name}/" for name in before.images)
            missing = (
                f"needs the images of {names}, which nobody may hand on and nothing here downloads; put them "
                f"into a data folder ({', '.join(str(place) for place in data_folders())}), or run it on "
                f"folders of your own: {before.typed}"
            )
            return replace(before, status="not run", error=missing)
        if before.ok and before.fingerprint and before.fingerprint == self.fingerprint(before):
            return replace(before, status="reused", error="")
        return None

    def run(self, before: Experiment, jobs: int, threads: int) -> Experiment:
        """Run an experiment, or a command that is none; return what became of it."""
        if self.stop.urgency:
            return before
        target, start = self.folder / before.name, time.monotonic()
        recorded = any(entry.name == before.name for entry in self.record.experiments)
        words = [*(before.words or ()), *(["--jobs", str(jobs)] if before.parallel else [])]
        with terminal_progress(before.name, stream=self.stream) as progress:
            progress({"stage": "running"})
            ended = self.runner(
                [*words, "--out", str(target), "--quiet"] if recorded else words,
                progress=progress if recorded else None,
                threads=threads,
                stop=self.stop,
            )
        if ended.status == 0 and (is_whole(target) or not recorded):
            after = replace(
                before,
                status="finished",
                folder=before.name,
                error="",
                seconds=round(time.monotonic() - start, 3),
                fingerprint=self.fingerprint(before),  # now: it may have fetched its data
            )
        elif self.stop.urgency:
            return before
        else:  # an older result stays
            after = replace(before, status="failed", error=ended.error or f"left no whole result in {target}")
        self.settle(after)
        return after

    def settle(self, after: Experiment) -> None:
        """Record and print what became of an experiment."""
        with self._lock:
            self._ended += 1
            entries = tuple(after if old.name == after.name else old for old in self.record.experiments)
            seconds = (
                self.record.seconds
                if after.status in ("reused", "not run")
                else time.monotonic() - self.began
            )
            self.record = replace(self.record, experiments=entries, seconds=seconds)
            self.record.save(self.folder)
            self.say(f"{_SIGNS[after.status]} [{self._ended}/{self.total}] {ending(after)}")

    def say(self, line: str) -> None:
        """Print a line, above the bars of what runs."""
        require("tqdm", "notebooks").tqdm.write(line, file=self.stream)


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    beside: Sequence[Experiment] = (),
    on_end: Callable[[Experiment], None] = lambda after: None,
    runner: Callable[..., Ended] = run_command,
) -> ReproductionRecord:
    """Run the experiments of a scale; reuse those whose parameters, data and code are unchanged.

    Those of the quick scale run side by side, a core each, the longest first; but the first one has all
    cores before that, for its result to be there soon. Those of the full scale have all cores one by one.

    One that fails does not stop the others. The record is written after each experiment, so that a
    reproduction that is stopped goes on where it was: finished experiments are reused, and those that
    were running resume from their own stores.

    Args:
        scale: `quick` or `full`.
        root: Folder of the record and of the results.
        only: Names of experiments; empty for all.
        jobs: Cores to use; 0 for all.
        stream: Where plan, progress and results are written.
        beside: Commands that are no experiments and run beside them.
        on_end: Called, in this thread, with each experiment that ran.
        runner: Runs a command.
    """
    chosen, folder = experiments(scale, only), output_folder(root)
    old = read_record(folder)
    left = _left_by_an_earlier_run(scale, folder, old)
    record = ReproductionRecord(
        scale=scale,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        source=source_revision(),
        versions=versions(),
        device=describe_device("cpu"),
        experiments=tuple(left.values()),
    )
    own = _Reproduction(record, folder, stream or io.StringIO(), runner)
    asked = [left[experiment.name] for experiment in chosen]
    settled = {before.name: own.settled(before) for before in asked}
    to_run = [before for before in asked if settled[before.name] is None]
    waiting = {before.name: replace(before, status="waiting", error="") for before in to_run}
    entries = tuple(waiting.get(entry.name, entry) for entry in left.values())
    own.record, own.total = replace(record, experiments=entries), len(asked) + len(beside)
    if old and not (to_run or beside):  # that one is still the reproduction, and the site the same
        own.record = replace(old, experiments=entries)
    for after in filter(None, settled.values()):
        own.settle(after)
    cores, threads = jobs or core_count(), 0
    alone = scale == "quick" and to_run[:1] == asked[:1] and asked[0].parallel
    first = to_run[:1] if alone else []
    rest = [*to_run[len(first) :], *beside]
    workers, each = 1, jobs
    if scale == "quick":
        workers = min(cores, len(rest)) or 1
        each = threads = max(1, cores // workers)
        rest.sort(key=lambda before: -before.estimate(each))
    if first or rest:
        own.say(plan(first, rest, cores, workers))
    with ThreadPoolExecutor(workers) as pool:
        running = list[Future[Experiment]]()
        try:
            for group, count, limit in ((first, cores, 0), (rest, each, threads)):
                ended = len(running)
                for before in group:
                    running.append(pool.submit(own.run, before, count, limit))
                for future in _as_completed(running[ended:]):
                    on_end(future.result())
        except BaseException:
            try:
                own.stop.urgency = 1
                list(_as_completed(running))
            except KeyboardInterrupt:
                own.stop.urgency = 2
            raise
    return own.record


def _as_completed(futures: Sequence[Future[Experiment]]) -> Generator[Future[Experiment]]:
    """Yield futures as they end; Ctrl-C just before a wait without a limit is not heard until its end."""
    pending = list(futures)
    while pending:
        done, _ = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        yield from (future for future in pending if future in done)
        pending = [future for future in pending if future not in done]


def _left_by_an_earlier_run(
    scale: str, folder: Path, old: ReproductionRecord | None
) -> dict[str, Experiment]:
    """Return every experiment of a scale as an earlier run left it; none stands whose folder is not whole."""
    if old is not None and old.scale != scale:
        raise InvalidInputError(
            f"{folder} holds a reproduction of scale '{old.scale}', not '{scale}'; choose another folder "
            "with --out."
        )
    entries = {experiment.name: experiment for experiment in experiments(scale)}
    for before in old.experiments if old else ():
        if before.name in entries and before.folder and is_whole(folder / before.folder):
            status: Status = "reused" if before.ok or before.status == "waiting" else before.status
            kept = {name: getattr(before, name) for name in ("folder", "error", "seconds", "fingerprint")}
            entries[before.name] = replace(entries[before.name], status=status, **kept)
    return entries


_SIGNS = {"finished": "✓", "reused": "=", "failed": "✗", "waiting": "…", "not run": "–"}


def ending(record: Experiment) -> str:
    """Return what became of an experiment, in one line."""
    if record.status == "finished":
        return f"{record.name} finished in {duration(record.seconds)}"
    if record.status == "reused":
        return f"{record.name} reused: same parameters, data and code (it took {duration(record.seconds)})"
    message = record.error.strip().rpartition("\n")[2]
    return f"{record.name} {record.status}: {message[:200]}{'…' if len(message) > 200 else ''}"
