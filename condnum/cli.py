"""The command line. `condnum run NAME` is a notebook: its parameters cell is options and help."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from condnum import __version__
from condnum.errors import CondnumError, UnknownNameError, require
from condnum.report.command import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    QuietOption,
    in_columns,
    notebook_command,
    number_reader,
)
from condnum.report.run import EXPERIMENTS, STOPPED, NotebookCommand, say

#: Commands that are notebooks, by the group that they belong to.
NOTEBOOKS = {
    "condnum": {"audit": NotebookCommand("audit", "condnum.audit.study:AuditCommand")},
    "run": EXPERIMENTS,
}

SiteOption = Annotated[
    Path, typer.Option(metavar="DIR", help="Write index.html and the pages in site/ to this folder.")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a word may hold bytes that are no text in any encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        with _termination_as_interrupt():
            known = [word for word in words if word != "--debug"]
            status = app(args=known, prog_name="condnum", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        say("stopped by Ctrl-C.")
        return EXIT_INTERRUPTED
    except CondnumError as error:
        if "--debug" in words:
            traceback.print_exception(error)
        else:
            say(str(error))
        return EXIT_ERROR
    except Exception as error:
        # Wrong use: click's class, or that of the copy of click inside newer typers.
        if not (hasattr(error, "show") and hasattr(error, "exit_code")):
            raise
        error.show()
        return int(error.exit_code)
    return status if isinstance(status, int) else 0


@contextlib.contextmanager
def _termination_as_interrupt() -> Generator[None, None, None]:
    """Clean up after a termination signal as after Ctrl-C, and remember that it came."""

    def interrupt(*_: Any) -> NoReturn:
        STOPPED.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    STOPPED.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is signal.default_int_handler:  # not where it is ignored
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class NotebookGroup(TyperGroup):
    """Commands that are notebooks, beside those that are functions."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the notebooks first."""
        return [*NOTEBOOKS[str(self.name)], *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build the command of an experiment, or, after `run`, of any notebook by its name or path."""
        from condnum.report.notebook import find_notebook

        named, name = NOTEBOOKS[str(self.name)], cmd_name.replace("_", "-")
        if name in named:
            return notebook_command(name, named[name])
        if cmd_name in self.commands or self.name != "run":
            return super().get_command(ctx, cmd_name)
        try:
            path = find_notebook(cmd_name)
        except UnknownNameError as error:
            raise UnknownNameError("experiment", cmd_name, [*EXPERIMENTS, "PATH.ipynb"]) from error
        return notebook_command(path.stem, NotebookCommand(str(path)))


# The commands.


app = typer.Typer(
    name="condnum",
    cls=NotebookGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
data_app = typer.Typer(help="Load the data sets and list what was found.", rich_markup_mode=None)
run_app = typer.Typer(
    cls=NotebookGroup,
    help="Run an experiment, or any notebook with a parameters cell, and write its report.",
    epilog="condnum run my_notebook.ipynb --help shows the parameters of my_notebook.ipynb as options.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.add_typer(run_app, name="run")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"condnum {__version__}")
        raise typer.Exit


@app.callback()
def condnum(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. It may follow any command.")
    ] = False,
) -> None:
    """Model immunization from a condition-number perspective: explore, reproduce, teach, audit."""


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """Load each data set in full and list what was found; exit status 1 if one is broken or unknown."""
    if context.invoked_subcommand is not None:
        return
    from condnum.data.catalog import available

    rows, statuses = [("data set", "status", "source", "rows", "SHA-256", "location")], available()
    for found in statuses:
        count = "" if found.rows is None else str(found.rows)
        rows.append((found.name, found.status, found.source, count, found.checksum[:8], found.location))
    typer.echo("\n\n".join([in_columns(rows), *(found.advice for found in statuses if found.advice)]))
    if any(found.status not in ("ok", "missing") for found in statuses):
        raise typer.Exit(1)


@data_app.command("download")
def download() -> None:
    """Download all 70,000 images of MNIST into the user cache, where every run finds them."""
    from condnum.data.digits import download_mnist

    typer.echo(f"MNIST: {download_mnist()}")


@app.command("lab")
def lab(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Copy the notebooks to this folder.")
    ] = "notebooks",
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- OPTION", help="Options for JupyterLab, such as --port=9999."),
    ] = None,
    ip: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address on which JupyterLab listens (a token is required)."),
    ] = "127.0.0.1",
) -> None:
    """Copy the notebooks to a folder without overwriting existing files, and open them in JupyterLab."""
    from condnum.report.notebook import copy_notebooks

    server, place = require("jupyterlab.labapp", "notebooks").LabApp, Path(folder).expanduser()
    if differ := copy_notebooks(place):
        names = ", ".join(path.name for path in differ)
        say(f"{folder} keeps its own {names}; move such a file away to get the version of this release.")
    words = [
        f"--ServerApp.ip={ip}",
        f"--notebook-dir={place}",
        "--LabApp.default_url=/lab/tree/0_start.ipynb",
    ]
    words += ["--allow-root"] * (getattr(os, "geteuid", lambda: 1)() == 0)  # a container's user
    server.launch_instance([*words, *(options or [])])


@app.command(
    "reproduce",
    epilog="If an experiment fails, the others still run, the site shows the error, and the exit status "
    "is 1. After Ctrl-C the same command continues where it stopped. `condnum site` shows the finished "
    "experiments at any time.",
)
def reproduce_command(
    scale: Annotated[
        str,
        typer.Option(
            metavar="quick|full",
            help="quick: the paper's data, minutes on two cores; full: all experiments, hours.",
        ),
    ] = "quick",
    only: Annotated[
        str, typer.Option(metavar="A,B,…", help="Experiments to run, comma-separated; default: all.")
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", metavar="N", parser=number_reader(int, 0), help="Number of cores; 0: all."
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the runs to this folder.",
            show_default="the newest under runs/reproduce",
        ),
    ] = None,
    site: SiteOption = Path("reports"),
    quiet: QuietOption = False,
) -> None:
    """Run all experiments, reuse unchanged results, and build a site that links each number to its run."""
    from condnum.files import folder_lock, output_folder
    from condnum.report.experiments import experiments
    from condnum.report.reproduce import reproduce
    from condnum.site.build import prepared

    require("sphinx", "site")  # now, not when all has run
    names = [word.strip() for word in only.split(",") if word.strip()]
    chosen = [experiment.name for experiment in experiments(scale, names)]
    root = output_folder(out or Path("runs") / "reproduce" / scale)
    output_folder(site)
    with folder_lock(root):
        try:
            with prepared():
                runs = reproduce(scale, root, only=names, jobs=jobs, stream=None if quiet else sys.stderr)
        except KeyboardInterrupt:
            say(f"stopped by Ctrl-C; finished experiments are in {root}; the same command continues there.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        index = _whole_site(runs, site, quiet=quiet)
    bad = ("failed", "not run") if names else ("failed",)  # what was asked for by name has to be there
    failed = [run for run in runs if run.name in chosen and run.status in bad]
    for run in failed:
        say(f"{run.name} {run.status}: {run.error}")
    typer.echo(str(index))
    if failed:
        raise typer.Exit(1)


@app.command("site")
def site(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Read a reproduction from this folder.",
            show_default="the newest under runs/reproduce",
        ),
    ] = None,
    site: SiteOption = Path("reports"),
) -> None:
    """Build the site: lessons, results, guide and API; without a reproduction, from committed results."""
    from condnum.report.experiments import find_runs

    records = (Path("runs") / "reproduce").glob("*/*/provenance.json")
    newest = max(records, key=lambda record: record.stat().st_mtime, default=None)
    root = out or (newest and newest.parents[1])
    typer.echo(str(_whole_site(None if root is None else find_runs(root), site)))


def _whole_site(runs: Any, site: Path, *, quiet: bool = False) -> Path:
    """Build the site with its lessons and explorers, which takes minutes where these are not there yet."""
    from condnum.progress import duration, terminal_progress
    from condnum.site.build import build_site

    if quiet:
        return build_site(runs, site)
    start = time.monotonic()
    with terminal_progress("lessons and explorers") as progress:
        page = build_site(runs, site, say=say, progress=progress)
    typer.echo(f"✓ site built in {duration(time.monotonic() - start)}", err=True)
    return page
