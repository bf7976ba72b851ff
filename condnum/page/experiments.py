"""The experiments of `condnum reproduce`: declared in `experiments.toml`, with what their runs left."""

import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from condnum.errors import DataFormatError, DataNotFoundError, check_known
from condnum.files import RECORD, asset, data_folders, read_record, read_table
from condnum.machine import revision_text, source_revision
from condnum.page.run import REPORT, is_whole

SCALES = ("quick", "full")


@dataclass(frozen=True)
class Experiment:
    """One run, what it needs, and how it is shown."""

    name: str  # of its folder and page: "house-prices"
    title: str
    summary: str  # one sentence
    run: str  # the word after `condnum run`
    options: Mapping[str, Any] = field(default_factory=dict)  # "{cars}": a folder of images
    scales: Sequence[str] = ()
    on_request: Sequence[str] = ()  # scales at which it runs only where its name is given
    committed: str = ""  # folder under reports/ whose result stands in until a reproduction has run

    @property
    def typed(self) -> str:
        """The command as it can be typed."""
        words = (f" --{name.replace('_', '-')} {value}" for name, value in self.options.items())
        return re.sub(r"[{}]", "", f"condnum run {self.run}{''.join(words)}")

    @property
    def image_folders(self) -> dict[str, Path | None]:
        """Its folders of images by name; None for one that is not here."""
        found = dict[str, Path | None]()
        for name in re.findall(r"{(\w+)}", str(list(self.options.values()))):
            found[name] = next((place / name for place in data_folders() if (place / name).is_dir()), None)
        return found

    @property
    def values(self) -> dict[str, Any]:
        """The options, folders of images filled in."""
        return {
            name: value.format_map(self.image_folders) if isinstance(value, str) else value
            for name, value in self.options.items()
        }


@cache
def _declared() -> tuple[Experiment, ...]:
    found = tomllib.loads(asset("page/experiments.toml"))
    return tuple(Experiment(**declared) for declared in found["experiment"])


def experiments(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments of a scale, in the order in which they run."""
    check_known("scale", scale, SCALES)
    found = [experiment for experiment in _declared() if scale in experiment.scales]
    for name in only:
        check_known("experiment", name, [experiment.name for experiment in found])
    return tuple(experiment for experiment in found if not only or experiment.name in only)


def requested(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments that a reproduction runs: those that are named, or all but those on request."""
    return tuple(one for one in experiments(scale, only) if only or scale not in one.on_request)


# What became of them.

#: What became of an experiment. `not run`: it was not asked for, or its data are missing. `committed`: it
#: comes with the source.
Status = Literal["finished", "failed", "not run", "committed"]

#: What a reproduction adds to the record of a run: the declared command.
REPRODUCTION = "reproduction"

#: Tables and pictures above this many bytes stay in the run's folder.
_LARGEST = 1_000_000


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment with what became of it, and the folder of its last whole run if there is one."""

    experiment: Experiment
    folder: Path | None = None
    status: Status = "not run"
    error: str = "was not requested"  # "" unless failed or not run

    @property
    def name(self) -> str:
        """Of its page and its folder."""
        return self.experiment.name

    @property
    def page(self) -> str | None:
        """File name of its page; None without a result."""
        return None if self.folder is None else f"{self.name}.html"

    @property
    def older(self) -> bool:
        """Whether the folder is of an earlier run than the one that was asked for."""
        return self.folder is not None and self.status in ("failed", "not run")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the run recorded; empty if it recorded nothing."""
        return {} if self.folder is None else read_record(self.folder)

    @property
    def seconds(self) -> float:
        """How long the run took; 0 if there is none."""
        return float(self.provenance.get("duration_seconds", 0))

    def table(self, name: str) -> pd.DataFrame | None:
        """Read a table of the run."""
        return None if self.folder is None else read_table(self.folder, name)

    def publish(self, target: Path) -> list[str]:
        """Copy notebook, record, tables and pictures into the site; return their names."""
        if self.folder is None:
            return []
        target.mkdir(parents=True, exist_ok=True)
        tables = [path for kind in ("*.csv", "*.csv.gz", "*.png") for path in sorted(self.folder.glob(kind))]
        small = [path for path in tables if path.stat().st_size <= _LARGEST]
        files = [path for path in [self.folder / REPORT, self.folder / RECORD, *small] if path.is_file()]
        for source in files:
            shutil.copyfile(source, target / source.name)
        return [path.name for path in files]


def find_run(experiment: Experiment, root: Path) -> ExperimentResult:
    """Return an experiment with its folder under `root`, if that holds a whole run of the same command."""
    found = ExperimentResult(experiment, root / experiment.name, "finished", "")
    try:
        marks = found.provenance.get(REPRODUCTION, {}) if is_whole(root / experiment.name) else {}
    except DataFormatError:
        marks = {}
    return found if marks.get("command") == experiment.typed else ExperimentResult(experiment)


def find_runs(root: Path) -> list[ExperimentResult]:
    """Return the experiments of a reproduction, those of the scale of which `root` has more."""
    scales = [[find_run(experiment, root) for experiment in experiments(scale)] for scale in SCALES]
    runs = max(scales, key=lambda runs: sum(run.folder is not None for run in runs))
    if not any(run.folder for run in runs):
        raise DataNotFoundError(f"{root} has no finished experiment; run condnum reproduce first.")
    return [marked_if_older(run, source_revision()) for run in runs]


def marked_if_older(run: ExperimentResult, source: Mapping[str, Any] | None) -> ExperimentResult:
    """Return a result, marked as an older one where its run began at another revision than this."""
    known = run.provenance.get("source") or source
    if known is None or source is None or known["revision"] == source["revision"]:
        return run
    text = f"It was computed at revision {revision_text(known)}; the code here is of {revision_text(source)}."
    return replace(run, status="not run", error=text)
