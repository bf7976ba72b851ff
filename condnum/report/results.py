"""An experiment of a reproduction: the folder of its run is all that is known of it."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from condnum.errors import DataFormatError, DataNotFoundError
from condnum.files import RECORD, read_record, read_table
from condnum.report.experiments import SCALES, Experiment, experiments
from condnum.report.notebook import REPORT
from condnum.report.run import is_whole

#: What became of an experiment. `reused`: its run had the same parameters, data and code. `waiting`: it was
#: asked for and has not ended. `not run`: it was not asked for, or its data are missing.
Status = Literal["finished", "reused", "failed", "waiting", "not run"]

#: What a reproduction adds to the record of a run: the declared command, and what the result depends on.
REPRODUCTION = "reproduction"

#: Tables and pictures above this many bytes stay in the run's folder.
_LARGEST = 1_000_000


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment with what became of it, and the folder of its last whole run if there is one."""

    experiment: Experiment
    folder: Path | None = None
    status: Status = "not run"
    error: str = "was not asked for"  # "" unless failed or not run

    @property
    def name(self) -> str:
        """Of its page and its folder."""
        return self.experiment.name

    @property
    def page(self) -> str | None:
        """File name of its page; None without a result."""
        return None if self.folder is None else f"{self.name}.html"

    @property
    def study(self) -> str:
        """The word after `condnum run`, such as `house-prices`."""
        return self.experiment.run

    @property
    def older(self) -> bool:
        """Whether the folder is of an earlier run than the one that was asked for."""
        return self.folder is not None and self.status not in ("finished", "reused")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the run recorded; empty if it recorded nothing."""
        return {} if self.folder is None else read_record(self.folder)

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked of the run."""
        return dict(self.provenance.get("parameters", {}))

    @property
    def fingerprint(self) -> str:
        """What the result depended on, "" if that is not known."""
        return str(self.provenance.get(REPRODUCTION, {}).get("fingerprint", ""))

    @property
    def seconds(self) -> float:
        """How long the run took; 0 if there is none."""
        return float(self.provenance.get("duration_seconds", 0))

    def estimate(self, cores: int) -> float:
        """Return how many seconds it takes, by its last run or a typical one; 0 if not known."""
        return self.seconds or self.experiment.core_seconds / (max(1, cores) if self.experiment.jobs else 1)

    def table(self, name: str) -> pd.DataFrame | None:
        """Read a table of the run."""
        return None if self.folder is None else read_table(self.folder, name)

    def publish(self, target: Path) -> dict[str, str]:
        """Copy notebook, record, tables and pictures into the site; return the size of each, for people."""
        if self.folder is None:
            return {}
        target.mkdir(parents=True, exist_ok=True)
        tables = [path for kind in ("*.csv", "*.csv.gz", "*.png") for path in sorted(self.folder.glob(kind))]
        small = [path for path in tables if path.stat().st_size <= _LARGEST]
        sizes = {}
        for source in [self.folder / REPORT, self.folder / RECORD, *small]:
            if source.is_file() and not source.is_symlink():
                shutil.copyfile(source, target / source.name)
                count = source.stat().st_size
                sizes[source.name] = f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"
        return sizes


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
        raise DataNotFoundError(f"{root} holds no finished experiment; make one first: condnum reproduce.")
    return runs
