"""`condnum run …`: a notebook, its page and its provenance, in one folder, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import typer

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
    """Run a notebook and write report.ipynb, report.html and provenance.json with its own results.

    Args:
        notebook: A name for `run_notebook`.
        parameters: Its parameters; `out` and `quiet` are added, None means the notebook's default.
        out: The folder of the results.
        title: The page's title.
        checksums: Called after the run for the SHA-256 of the data, which it may have downloaded.
        quiet: Show no progress.

    Raises:
        Exit: Ctrl-C, with status 130.
        CondnumError: Anything that goes wrong on purpose.
    """
    from condnum.cli.staging import staging
    from condnum.files import write_json
    from condnum.report.html import export_html
    from condnum.report.notebook import run_notebook
    from condnum.report.provenance import provenance

    started = datetime.now(UTC)
    given = {name: value for name, value in parameters.items() if value is not None}
    with staging(out) as stage:
        try:
            values = {**given, "out": str(stage.path), "quiet": quiet}
            report = run_notebook(notebook, values, stage.path, quiet=quiet)
            export_html(report, stage.path / "report.html", title=title)
            record = provenance(
                parameters=given,
                seeds=range(int(given.get("seeds", 0))),
                checksums=checksums(),
                device=str(given.get("device", "cpu")),
                started=started,
            )
            write_json(stage.path / "provenance.json", record)
            stage.promote()
        except KeyboardInterrupt:
            _say_what_remains(stage.abandon(), stage)
            raise typer.Exit(130) from None
        except Exception:
            stage.abandon()
            raise
    typer.echo(f"Results: {stage.folder}")
    typer.echo(str(stage.folder / "report.html"))


def _say_what_remains(count: int, stage: Any) -> None:
    """Tell what a stopped run leaves behind and how to go on."""
    from condnum.cli.main import say

    pieces = f"{count} finished piece{'s' if count != 1 else ''}"
    if count:
        say(f"stopped by Ctrl-C; {pieces} kept in {stage.path}/cells: the same command resumes from there.")
    else:
        say("stopped by Ctrl-C before the first piece was finished; nothing was kept.")
