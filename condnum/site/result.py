"""One experiment of a reproduction as the site sees it: its record, and the files of its folder."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from condnum.errors import DataFormatError, InvalidInputError
from condnum.extras import require
from condnum.report.run_folder import RECORD, REPORT
from condnum.reproduce.record import ExperimentRecord

#: Names become file names and addresses.
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")


@dataclass(frozen=True)
class Result:
    """An experiment, with its folder if there is one."""

    record: ExperimentRecord
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
        words = shlex.split(self.record.command)
        return words[2] if words[1:2] == ["run"] and len(words) > 2 else ""

    @property
    def older(self) -> bool:
        """Whether the folder is of an earlier run than the one that was asked for."""
        return self.folder is not None and not self.record.ok

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the run recorded; empty if it recorded nothing."""
        path = None if self.folder is None else self.folder / RECORD
        if path is None or not path.exists():
            return {}
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataFormatError(f"{path} is damaged ({error}); run the experiment again.") from error
        return dict(value)

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked of the run."""
        return dict(self.provenance.get("parameters", {}))

    def table(self, name: str) -> pd.DataFrame | None:
        """Read a table of the run."""
        if self.folder is None:
            return None
        for suffix in (".csv", ".csv.gz", ".parquet"):
            path = self.folder / f"{name}{suffix}"
            if path.exists():
                try:
                    if suffix == ".parquet":
                        require("pyarrow", "notebooks")
                        return pd.read_parquet(path)
                    return pd.read_csv(path)
                except (OSError, ValueError) as error:
                    raise DataFormatError(
                        f"{path} is damaged ({error}); run the experiment again."
                    ) from error
        return None


def read_result(record: ExperimentRecord, root: Path) -> Result:
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
