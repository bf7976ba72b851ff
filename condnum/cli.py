"""The command line. `condnum run NAME` is a notebook: its parameters cell is options and help."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from condnum import __version__
from condnum.errors import CondnumError, UnknownNameError, require
from condnum.page.command import EXIT_ERROR, EXIT_INTERRUPTED, notebook_command, quiet_option
from condnum.page.notebook import ParameterNotebook, experiment_names
from condnum.page.run import STOPPED, say

FOLDER = click.Path(path_type=Path, file_okay=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a word may hold bytes that are no text in any encoding
            stream.reconfigure(errors="backslashreplace")
    STOPPED.clear()
    before = {}
    if threading.current_thread() is threading.main_thread():  # else no handler can be set
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.signal(signal.SIGTERM, _interrupt)  # clean up as after Ctrl-C
        if before[signal.SIGINT] is signal.default_int_handler:  # not where it is ignored
            signal.signal(signal.SIGINT, _interrupt)
    try:
        app.main([word for word in words if word != "--debug"], "condnum", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        say("stopped by Ctrl-C.")
        return EXIT_INTERRUPTED
    except CondnumError as error:
        if "--debug" in words:
            traceback.print_exception(error)
        else:
            say(str(error))
        return EXIT_ERROR
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit as end:
        return int(end.code or 0)
    finally:  # a caller's process goes on with its own
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _interrupt(*_: Any) -> NoReturn:
    """End as after Ctrl-C, and remember that it came."""
    STOPPED.set()
    raise KeyboardInterrupt


#: Commands that are notebooks, with their first line of help.
JUDGES = {
    "audit": "Who gets through your features? Bundled digits without files.",
    "referee": "Does a net resist after a defense? Two files of weights, two folders of images.",
}


class Commands(click.Group):
    """The commands, of which the first are notebooks."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return those that judge first."""
        return [*JUDGES, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command | None:
        """Build the command of a notebook."""
        if cmd_name in JUDGES:
            return notebook_command(ParameterNotebook.find(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without reading a notebook, which takes as long as all the rest."""
        others = ((name, self.commands[name].get_short_help_str(72)) for name in sorted(self.commands))
        with formatter.section("Commands"):
            formatter.write_dl([*JUDGES.items(), *others])


@click.group(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"max_content_width": 110},
    epilog="condnum --debug COMMAND shows the traceback of an error.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Model immunization from a condition-number perspective: explore, reproduce, teach, audit."""


#: Experiments that are another one's notebook on other data.
ON_OTHER_DATA = {"digits": ("mnist", "digits")}


class NotebookGroup(click.Group):
    """Commands that are notebooks: the experiments by their names, any other one by its path."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the experiments."""
        return sorted([*experiment_names(), *ON_OTHER_DATA])

    def get_command(self, ctx: Any, cmd_name: str) -> click.Command:
        """Build the command of a notebook."""
        if cmd_name in ON_OTHER_DATA:
            notebook, data = ON_OTHER_DATA[cmd_name]
            return notebook_command(ParameterNotebook.find(notebook), cmd_name, {"data": data})
        try:
            book = ParameterNotebook.find(cmd_name)
        except UnknownNameError as error:
            raise UnknownNameError(
                "experiment", cmd_name, [*self.list_commands(ctx), "PATH.ipynb"]
            ) from error
        return notebook_command(book, book.path.stem.replace("_", "-"))


@app.group(
    "run",
    cls=NotebookGroup,
    no_args_is_help=True,
    epilog="condnum run my_notebook.ipynb --help shows the parameters of my_notebook.ipynb as options.",
)
def run_notebooks() -> None:
    """Run an experiment, or any notebook with a parameters cell, and write its report."""


@app.group("data", invoke_without_command=True)
@click.pass_context
def data_sets(context: click.Context) -> None:
    """Load each data set in full and list what was found; exit status 1 if one is broken or unknown."""
    if context.invoked_subcommand is not None:
        return
    from condnum.data.catalog import data_status

    table = data_status()
    shown = table.drop(columns="advice").to_string(index=False)
    click.echo("\n\n".join([shown, *filter(None, table["advice"])]))
    if not table["status"].isin(["ok", "missing"]).all():
        raise SystemExit(1)


@data_sets.command("download")
def download() -> None:
    """Download all 70,000 images of MNIST into the user cache, where every run finds them."""
    from condnum.data.digits import download_mnist

    click.echo(f"MNIST: {download_mnist()}")


@app.command("lab")
@click.argument("folder", default="notebooks")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--ip", default="127.0.0.1", metavar="ADDRESS", show_default=True,
    help="Address on which JupyterLab listens (a token is required).",
)  # fmt: skip
def lab(folder: str, options: tuple[str, ...], ip: str) -> None:
    """Copy the notebooks to FOLDER without overwriting existing files, and open them in JupyterLab.

    OPTIONS after -- are JupyterLab's, such as --port=9999.
    """
    from condnum.page.notebook import copy_notebooks

    if folder.startswith("-"):
        folder, options = "notebooks", (folder, *options)
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
    server.launch_instance([*words, *options])


@app.command(
    "reproduce",
    epilog="If an experiment fails, the others still run, the page says so, and the exit status is 1. After "
    "Ctrl-C the same command continues where it stopped. `condnum run NAME` makes a whole published run.",
)
@click.option("--only", default="", metavar="A,B,…", help="Experiments to run; default: all.")
@click.option("--jobs", "-j", type=click.IntRange(0), default=0, metavar="N", help="Number of cores; 0: all.")
@click.option(
    "--out",
    type=FOLDER,
    default="runs/reproduce",
    metavar="DIR",
    show_default=True,
    help="Write the runs here.",
)
@click.option(
    "--page", type=FOLDER, default="reports", metavar="DIR", show_default=True, help="Write index.html here."
)
def reproduce_paper(only: str, jobs: int, out: Path, page: Path, quiet: bool) -> None:
    """Run the paper's experiments, keep unchanged results, and write a page of obtained and published."""
    from condnum.files import output_folder
    from condnum.page.reproduce import reproduce
    from condnum.page.results import write_results

    errors = dict[str, str]()
    names = [word.strip() for word in only.split(",") if word.strip()]
    root, target = output_folder(out), output_folder(page)
    try:
        for name, error in reproduce(root, only=names, jobs=jobs, quiet=quiet):
            errors |= {name: error} if error else {}
            if not quiet:
                click.echo(f"{'✗' if error else '✓'} {name}", err=True)
    except KeyboardInterrupt:
        say(f"stopped by Ctrl-C; finished cells are in {root}; the same command continues there.")
        raise SystemExit(EXIT_INTERRUPTED) from None
    index = write_results(root, target, errors)
    for name, error in errors.items():
        say(f"{name} failed: {error}")
    click.echo(str(index))
    if errors:
        raise SystemExit(1)


reproduce_paper.params.append(quiet_option)


@app.command("site")
@click.option(
    "--runs",
    type=FOLDER,
    default="runs/reproduce",
    metavar="DIR",
    show_default=True,
    help="Show the runs in this folder.",
)
@click.option(
    "--out",
    type=FOLDER,
    default="reports",
    metavar="DIR",
    show_default=True,
    help="Write site/ into this folder.",
)
def site_pages(runs: Path, out: Path) -> None:
    """Build lessons, results, guide and API as pages that need no server: minutes the first time."""
    from condnum.page.site import build_site

    click.echo(str(build_site(runs, out, say=say)))
