"""One experiment of a reproduction as the site sees it: its record, its tables, the files to publish."""

import gzip
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from condnum.errors import InvalidInputError
from condnum.files import RECORD, atomic_write, read_record, read_table
from condnum.report.notebook import REPORT
from condnum.report.reproduce import Experiment

#: Names become file names and addresses.
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")

#: Tables above this many bytes are published compressed.
COMPRESSED = 300_000

#: Files above this many bytes, compressed, stay in the run's folder.
LARGEST = 1_000_000


@dataclass(frozen=True)
class Result:
    """An experiment, with its folder if there is one."""

    record: Experiment
    folder: Path | None  # of a finished run, perhaps an older one

    @property
    def name(self) -> str:
        """Of its page and its folder."""
        return self.record.name

    @property
    def page(self) -> str | None:
        """File name of its page; None without a result."""
        return None if self.folder is None else f"{self.name}.html"

    @property
    def study(self) -> str:
        """The word after `condnum run`: `house-prices`, `digits`, …; empty if the command has none."""
        words = self.record.command.split()
        return words[2] if words[1:2] == ["run"] and len(words) > 2 else ""

    @property
    def older(self) -> bool:
        """Whether the folder is of an earlier run than the one that was asked for."""
        return self.folder is not None and not self.record.ok

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the run recorded; empty if it recorded nothing."""
        return {} if self.folder is None else read_record(self.folder)

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked of the run."""
        return dict(self.provenance.get("parameters", {}))

    def table(self, name: str) -> pd.DataFrame | None:
        """Read a table of the run."""
        return None if self.folder is None else read_table(self.folder, name)

    def publish(self, target: Path) -> dict[str, str]:
        """Copy notebook, provenance, tables and pictures into the site; return the size of each, for people.

        Large tables are compressed; what is larger than `LARGEST` even so is left in the run's folder. Of a
        CSV file that is compressed already, and of others, the bytes stay as they are.
        """
        if self.folder is None:
            return {}
        target.mkdir(parents=True, exist_ok=True)
        tables = [path for kind in ("*.csv", "*.csv.gz", "*.png") for path in sorted(self.folder.glob(kind))]
        sizes = {}
        for source in [self.folder / REPORT, self.folder / RECORD, *tables]:
            if not source.is_file() or source.is_symlink():
                continue
            content, name = source.read_bytes(), source.name
            if len(content) > COMPRESSED and source.suffix == ".csv":
                content, name = gzip.compress(content, mtime=0), f"{name}.gz"
            if len(content) > LARGEST and name != REPORT:
                continue
            with atomic_write(target / name) as temporary:
                temporary.write_bytes(content)
            count = len(content)
            sizes[name] = f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"
        return sizes


def read_result(record: Experiment, root: Path) -> Result:
    """Return an experiment with its folder."""
    if not _NAME.fullmatch(record.name):
        raise InvalidInputError(
            f"the experiment's name {record.name!r} must be small letters, digits, - and _: it names a page."
        )
    if record.folder is None:
        return Result(record, None)
    folder = (root / record.folder).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise InvalidInputError(
            f"the folder {record.folder!r} of {record.name} must lie inside {root}: its files are published."
        )
    return Result(record, folder if (folder / REPORT).is_file() else None)
