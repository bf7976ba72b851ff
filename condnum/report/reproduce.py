"""`condnum reproduce`: the experiments of a scale, one process each, and a record that grows with them.

A finished result is reused as long as its parameters, data and code are what they were.
"""

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TextIO

from condnum.data.catalog import check
from condnum.data.resolver import data_folders
from condnum.errors import InvalidInputError, UnknownNameError, check_known
from condnum.files import output_folder, write_json
from condnum.machine import describe_device, end_group, source_revision, versions
from condnum.progress import PROGRESS_VARIABLE, OnProgress, duration, following, terminal_progress
from condnum.report.notebook import is_whole

#: `reused`: an earlier run had the same parameters, data and code. `waiting`: asked for, and its turn has not
#: come or not ended. `not run`: never asked for here, or its data are missing.
Status = Literal["finished", "reused", "failed", "waiting", "not run"]


@dataclass(frozen=True)
class Experiment:
    """One command, what it needs, how it is shown, and what became of it."""

    name: str  # of its folder and page: "house-prices"
    title: str
    summary: str  # one sentence
    command: str  # without --out and --jobs; "{cars}" is a folder of images under a data folder
    data: tuple[str, ...] = ()  # names of `condnum.data.catalog` whose checksums decide about reuse
    parallel: bool = True  # whether it takes --jobs
    status: Status = "not run"
    folder: str | None = None  # of a finished result, relative to the record; also of an older one
    error: str = "was not asked for"  # "" unless failed or not run
    seconds: float = 0.0  # of the run that made the folder
    fingerprint: str = ""  # of what the folder depends on

    @property
    def ok(self) -> bool:
        """Whether the folder holds what was asked for."""
        return self.status in ("finished", "reused")

    @property
    def typed(self) -> str:
        """The command as it can be typed."""
        return re.sub(r"[{}]", "", self.command)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The command after `condnum`, folders of images filled in; None if one is not here."""
        here = {
            name: folder / name
            for folder in reversed(data_folders())
            for name in self.images
            if (folder / name).is_dir()
        }
        if set(self.images) - set(here):
            return None
        return tuple(word.format_map(here) for word in self.command.split()[1:])

    @property
    def images(self) -> list[str]:
        """The names of its folders of images."""
        return re.findall(r"{(\w+)}", self.command)


_HOUSE_PRICES = Experiment(
    "house-prices",
    "House prices (Table 1, Figure 1)",
    "The Ames house prices: every method of the paper, two controls and the closed forms, five seeds.",
    "condnum run house-prices --seeds 5",
    ("house-prices",),
)
_LIMITS = Experiment(
    "limits",
    "House prices: how much is possible",
    "RIR ceilings against ε, the front of (i) and (ii), and each method's share of the ceiling.",
    "condnum run limits",
    ("house-prices",),
)
_ATTACKERS = Experiment(
    "attackers",
    "House prices: the attack panel",
    "Thirteen training algorithms, each at its best, against raw, initial and immunized features.",
    "condnum run attackers",
    ("house-prices",),
    parallel=False,
)
_RELEASE = Experiment(
    "reproduction-audit",
    "House prices: why numbers differ",
    "The choices of the authors' release, turned into the corrected ones one at a time.",
    "condnum run reproduction-audit",
    ("house-prices",),
)
_CORRECTIONS = Experiment(
    "corrections",
    "Where the paper is wrong",
    "Each theoretical correction with its counter-example, computed on the spot.",
    "condnum run corrections",
    parallel=False,
)

#: The paper's data and every kind of experiment, at what two cores do in minutes.
_QUICK = (
    _HOUSE_PRICES,
    Experiment(
        "mnist",
        "MNIST, 20 of 90 digit pairs (Table 2, Figure 2)",
        "Each digit as D_P against the next one and the third after it, one seed, the published 30 epochs.",
        "condnum run mnist --seeds 1 --epochs 30 --methods ours,opt_kappa,imma,r_ill_only --pairs "
        + ",".join(f"{digit}-{(digit + step) % 10}" for digit in range(10) for step in (1, 3)),
        ("mnist",),
    ),
    Experiment(
        "deep",
        "Small nets on 8×8 digits (in place of Table 3, Figure 3)",
        "A small ResNet and a small ViT, trained on digits 0–4, immunized against digits 5–9.",
        "condnum run deep --seeds 1",
        ("digits-8x8",),
    ),
    Experiment(
        "deep-attackers",
        "Small net on 8×8 digits: what an attacker meets",
        "Head, frozen trunk, last stage and all weights of θ₀, θ_I and the net from scratch; A against A.",
        "condnum run deep-attackers --backbone test_resnet --seeds 1 --shots 0 --steps 32 --trials 3 "
        "--repeats 4 --curvature-rows 32 "
        "--attackers head-sgd,whitened,ridge,logistic,trunk,stage-adamw,all-adamw",
        ("digits-8x8",),
    ),
    replace(_LIMITS, command="condnum run limits --seeds 1"),
    _ATTACKERS,
    replace(
        _RELEASE,
        summary=f"{_RELEASE.summary} From ten epochs of the release, one seed.",
        command="condnum run reproduction-audit --seeds 1 --epochs 10 --ends 0",
    ),
    _CORRECTIONS,
)

#: Rows of Table 3: backbone in words and timm's name of it, data set in words, and both in a preset's name.
_NETS = (
    ("ResNet18", "resnet18", "Stanford Cars", "resnet18-cars"),
    ("ResNet18", "resnet18", "Country211", "resnet18-country211"),
    ("ViT", "vit_base_patch16_clip_224", "Stanford Cars", "vit-cars"),
    ("ViT", "vit_base_patch16_clip_224", "Country211", "vit-country211"),
)

_FULL = (
    _HOUSE_PRICES,
    _CORRECTIONS,
    _RELEASE,
    _LIMITS,
    _ATTACKERS,
    Experiment(
        "limits-mnist",
        "MNIST: how much is possible",
        "The same limits for five pairs of digits.",
        "condnum run limits --data mnist",
        ("mnist",),
    ),
    Experiment(
        "attackers-mnist",
        "MNIST 4 against 9: the attack panel",
        "Thirteen training algorithms against raw, initial and immunized pixels.",
        "condnum run attackers --data mnist:4-9",
        ("mnist",),
        parallel=False,
    ),
    Experiment(
        "deep-mnist",
        "Deep nets on MNIST 0–4 against 5–9 (as Table 3, Figure 3)",
        "ResNet18 and a ViT, trained on digits 0–4, immunized against digits 5–9, three seeds.",
        "condnum run deep --data mnist",
        ("mnist", "mnist-test"),
    ),
    Experiment(
        "deep-attackers-mnist",
        "Deep attacks on MNIST nets",
        "What the nets of the line above are worth against head, trunk, LoRA, last stage and all weights.",
        "condnum run deep-attackers --data mnist",
        ("mnist", "mnist-test"),
    ),
    Experiment(
        "mnist",
        "MNIST, 90 digit pairs (Table 2, Figure 2)",
        "Ninety ordered pairs of digits, four methods of the paper and the closed form, three seeds.",
        "condnum run mnist",
        ("mnist",),
    ),
    *(
        Experiment(
            f"deep-{preset}",
            f"{net}, ImageNet against {images} (Table 3, Figure 3)",
            "The published deep-net experiment, on images that you have.",
            f"condnum run deep --backbone {backbone} --pretrain {{imagenet}} "
            f"--harmful {{{preset.partition('-')[2]}}} --preset {preset}",
        )
        for net, backbone, images, preset in _NETS
    ),
)

_SCALES = {"quick": _QUICK, "full": _FULL}


def experiments(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments of a scale, in the order in which they run.

    Examples:
        >>> [experiment.name for experiment in experiments("quick", ["limits", "mnist"])]
        ['mnist', 'limits']
    """
    if scale not in _SCALES:
        raise UnknownNameError("scale", scale, list(_SCALES))
    names = [experiment.name for experiment in _SCALES[scale]]
    for name in only:
        check_known("experiment", name, names)
    return tuple(experiment for experiment in _SCALES[scale] if not only or experiment.name in only)


#: Seconds that an interrupted experiment has to keep what it finished.
GRACE_SECONDS = 60.0


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


def run_command(words: Sequence[str], *, progress: OnProgress) -> Ended:
    """Run `condnum …` in a process of its own.

    It lies in a process group of its own, so that a stop reaches it once, through this function.
    """
    with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
        events, errors = Path(scratch) / "progress.jsonl", Path(scratch) / "stderr"
        with following(events, progress), errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "condnum", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env={**os.environ, PROGRESS_VARIABLE: str(events)},
                start_new_session=True,
            )
            try:
                status = process.wait()
            except BaseException:
                process.terminate()  # heard as Ctrl-C, also where a background job ignores SIGINT
                try:
                    process.wait(GRACE_SECONDS)
                except BaseException:
                    end_group(process.pid)
                    process.wait()
                raise
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
_SHOWING = tuple(f"report/{name}.py" for name in ("reproduce", "results", "scoreboard"))


def fingerprint(words: Sequence[str], data: Sequence[str]) -> str:
    """Return a SHA-256 of what a command's result depends on, now; "" while data are not known."""
    sums = {name: check(name).checksum for name in data}
    parts = [list(words), sorted(sums.items()), code_checksum(Path(__file__).resolve().parents[2])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if all(sums.values()) else ""


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


def reproduce(
    scale: str,
    root: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 0,
    stream: TextIO | None = None,
    on_end: Callable[[int, int, Experiment], None] = lambda index, total, record: None,
    runner: Callable[..., Ended] = run_command,
) -> ReproductionRecord:
    """Run the experiments of a scale; reuse those whose parameters, data and code are unchanged.

    One that fails does not stop the others. The record is written after each experiment, so that a
    reproduction that is stopped goes on where it was: finished experiments are reused, and the one that
    was running resumes from its own store.
    """
    chosen = experiments(scale, only)
    folder, shown = output_folder(root), stream or io.StringIO()
    left = _left_by_an_earlier_run(scale, folder)
    asked = {experiment.name for experiment in chosen}
    record = ReproductionRecord(
        scale=scale,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        source=source_revision(),
        versions=versions(),
        device=describe_device("cpu"),
        experiments=tuple(
            replace(entry, status="waiting", error="") if name in asked else entry
            for name, entry in left.items()
        ),
    )
    began = time.monotonic()
    for index, experiment in enumerate(chosen, start=1):
        place, before, words = f"[{index}/{len(chosen)}]", left[experiment.name], experiment.words
        if words is None:
            names = " and ".join(f"{name}/" for name in experiment.images)
            missing = (
                f"needs the images of {names}, which nobody may hand on and nothing here downloads; put them "
                f"into a data folder ({', '.join(str(place) for place in data_folders())}), or run it on "
                f"folders of your own: {experiment.typed}"
            )
            after = replace(before, status="not run", error=missing)
        elif before.ok and before.fingerprint and before.fingerprint == fingerprint(words, experiment.data):
            after = replace(before, status="reused", error="")
        else:
            print(f"  {place} {experiment.name}: {experiment.title}", file=shown, flush=True)
            with terminal_progress(experiment.name, stream=shown) as progress:
                progress({"stage": "starting"})
                target, start = folder / experiment.name, time.monotonic()
                options = ["--jobs", str(jobs)] if experiment.parallel else []
                ended = runner([*words, *options, "--out", str(target), "--quiet"], progress=progress)
            if ended.status == 0 and is_whole(target):
                after = replace(
                    before,
                    status="finished",
                    folder=experiment.name,
                    error="",
                    seconds=round(time.monotonic() - start, 3),
                    fingerprint=fingerprint(words, experiment.data),  # again: it may have fetched its data
                )
            else:  # an older result stays
                error = ended.error or f"left no whole result in {target}"
                after = replace(before, status="failed", error=error)
        entries = tuple(after if old.name == after.name else old for old in record.experiments)
        record = replace(record, experiments=entries, seconds=time.monotonic() - began)
        record.save(folder)
        print(f"{_SIGNS[after.status]} {place} {ending(after)}", file=shown, flush=True)
        on_end(index, len(chosen), after)
    return record


def _left_by_an_earlier_run(scale: str, folder: Path) -> dict[str, Experiment]:
    """Return every experiment of a scale as an earlier run left it; none stands whose folder is not whole."""
    old = read_record(folder)
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
