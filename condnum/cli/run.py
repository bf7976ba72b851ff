"""`condnum run …`: a notebook, its page and its provenance, in one folder, whole or not at all."""

from __future__ import annotations

import csv
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from condnum.cli.data import columns
from condnum.report.notebook import FAILED, FAILURES, PAGE, RECORD

#: Lines of the table of failures in the terminal.
SHOWN_FAILURES = 20

run_app = typer.Typer(
    help="Run an experiment and write its report.", no_args_is_help=True, rich_markup_mode=None
)


def run_report(
    notebook: str,
    parameters: Mapping[str, Any],
    *,
    out: str | os.PathLike[str],
    title: str,
    checksums: Callable[[], Mapping[str, str]],
    quiet: bool = False,
) -> None:
    """Run a notebook and write report.ipynb, report.html and provenance.json with its own results."""
    from condnum.cli.main import say, stopped
    from condnum.cli.staging import staging
    from condnum.files import write_json
    from condnum.report.html import export_html
    from condnum.report.notebook import declared_parameters, find_notebook, read_notebook, run_notebook
    from condnum.report.provenance import provenance

    started, clock = datetime.now(UTC), time.monotonic()
    given = {name: value for name, value in parameters.items() if value is not None}
    declared = declared_parameters(read_notebook(find_notebook(notebook)))
    with staging(out) as stage:
        if stage.completed:
            say(f"the run before was stopped while it replaced the results in {stage.folder}: done now.")
        _say_what_is_old(stage)
        try:
            ours = {"out": str(stage.path), "quiet": quiet}
            values = given | {name: value for name, value in ours.items() if name in declared}
            report = run_notebook(notebook, values, stage.path, quiet=quiet)
            export_html(report, stage.path / PAGE, title=title)
            record = provenance(
                parameters=given,
                seeds=_seeds(given.get("seeds")),
                checksums=checksums(),
                device=str(given.get("device", "cpu")),
                started=started,
                seconds=time.monotonic() - clock,
            )
            write_json(stage.path / RECORD, {**record, "files": stage.checksums()})
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) and not stopped():
                stage.abandon()
                raise
            # The tasks of a kernel that was stopped end in errors that nobody waits for.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            (stage.path / FAILED).unlink(missing_ok=True)
            _say_what_remains(stage.abandon(), stage)
            raise typer.Exit(130) from None
        failures = _failures(stage.path)
        try:
            stage.promote()
        except KeyboardInterrupt:
            say(f"stopped by Ctrl-C when all was done: the results in {stage.folder} are complete.")
            raise typer.Exit(130) from None
    typer.echo(f"Results: {stage.folder}")
    typer.echo(str(stage.folder / PAGE))
    if failures:
        typer.echo(failure_table(failures, stage.folder), err=True)
        raise typer.Exit(1)


def failure_table(failures: Sequence[Mapping[str, str]], folder: Path) -> str:
    """Return the cells that failed, for the terminal.

    Examples:
        >>> print(failure_table([{"cell": "ours, seed 0", "error": "RankError: rank 0"}], Path("out")))
        1 cell failed:
          cell          error
          ours, seed 0  RankError: rank 0
        All of them are in out/failures.csv; the same command tries them again and keeps the others.
    """
    shown = [("cell", "error"), *((row["cell"], row["error"]) for row in failures[:SHOWN_FAILURES])]
    more = len(failures) - SHOWN_FAILURES
    lines = [f"{len(failures)} cell{'s' if len(failures) > 1 else ''} failed:"]
    lines += [f"  {line}" for line in columns(shown).splitlines()]
    lines += [f"  … and {more} more"] if more > 0 else []
    place = folder / FAILURES
    return "\n".join(
        [*lines, f"All of them are in {place}; the same command tries them again and keeps the others."]
    )


def _seeds(count: Any) -> range:
    """Return the seeds of a run from its parameter, which a notebook of somebody's own may use otherwise."""
    return range(count) if isinstance(count, int) else range(0)


def _failures(folder: Path) -> list[dict[str, str]]:
    """Read the failures that a notebook wrote, if any cell failed."""
    path = folder / FAILURES
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            {name: " ".join(text.split()) for name, text in row.items()} for row in csv.DictReader(stream)
        ]


def _say_what_is_old(stage: Any) -> None:
    """Tell that pieces of an earlier version are computed again."""
    from condnum.cli.main import say

    old = stage.old_cells()
    if old:
        say(
            f"{len(old)} piece(s) in {stage.cells} were kept by an earlier version ({old[0].name}, …), which "
            "this one does not read: they are computed again."
        )


def _say_what_remains(count: int, stage: Any) -> None:
    """Tell what a stopped run leaves behind and how to go on."""
    from condnum.cli.main import say

    if stage.finished_cells() is None:
        say(f"stopped by Ctrl-C; {stage.cells} is left as it is.")
        return
    pieces = f"{count} finished piece{'s' if count != 1 else ''}"
    if count:
        say(f"stopped by Ctrl-C; {pieces} kept in {stage.cells}: the same command resumes from there.")
    else:
        say("stopped by Ctrl-C before the first piece was finished; nothing was kept.")
