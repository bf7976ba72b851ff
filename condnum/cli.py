"""The command line. `condnum run NAME` is a notebook: its parameters cell is options and help."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from condnum import __version__
from condnum.errors import CondnumError, UnknownNameError, require

if TYPE_CHECKING:
    from condnum.report.notebook import ParameterNotebook

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130

#: Lines of the table of failures in the terminal.
SHOWN_FAILURES = 20


@dataclass(frozen=True)
class NotebookCommand:
    """A notebook as a command."""

    notebook: str  # a name of condnum's own, or a path
    config: str = ""  # module:class of its study, built and loaded before a kernel starts
    fixed: Mapping[str, Any] = field(default_factory=dict)  # parameters that are no options of this command
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they are not the notebook's


_DIGITS = "condnum.studies.digit_pairs:DigitPairs"
_EVERY_PAIR = {"seeds": 3, "pairs": "", "device": "auto"}

#: Experiments by the names of their commands; any other notebook is one by its own name or path.
EXPERIMENTS = {
    "house-prices": NotebookCommand("house_prices", "condnum.studies.house_prices:HousePrices"),
    "mnist": NotebookCommand("mnist_pairs", _DIGITS, {"dataset": "mnist"}, _EVERY_PAIR),
    "digits": NotebookCommand(
        "mnist_pairs", _DIGITS, {"dataset": "digits"}, {**_EVERY_PAIR, "data": "embedded"}
    ),
    "limits": NotebookCommand("limits", "condnum.studies.limits:Limits"),
    "attackers": NotebookCommand("attackers", "condnum.studies.attackers:Attackers"),
    "deep": NotebookCommand("deep_nets", "condnum.studies.deep_nets:DeepNets"),
    "stability": NotebookCommand("stability", "condnum.studies.stability:StabilityStudy"),
    "deep-attackers": NotebookCommand("deep_attackers", "condnum.studies.deep_attackers:DeepAttackers"),
    "reproduction-audit": NotebookCommand("reproduction_audit", "condnum.studies.release:ReproductionAudit"),
    "corrections": NotebookCommand("corrections"),
}
#: Commands that are notebooks, by the group that they belong to.
NOTEBOOKS = {
    "condnum": {"audit": NotebookCommand("audit", "condnum.audit.study:AuditCommand")},
    "run": EXPERIMENTS,
}

OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the results.", show_default="runs/…")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
SiteOption = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of index.html and of site/ with the pages.")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Examples:
        >>> main(["--version"])
        condnum ...
        0
    """
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


def say(message: str) -> None:
    """Print one wrapped paragraph on the standard error, after the program's name."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraph = textwrap.fill(
        f"condnum: {' '.join(message.split())}", width, break_long_words=False, break_on_hyphens=False
    )
    print(paragraph, file=sys.stderr, flush=True)


_stopped = threading.Event()


@contextlib.contextmanager
def _termination_as_interrupt() -> Generator[None, None, None]:
    """Clean up after a termination signal as after Ctrl-C, and remember that it came."""

    def interrupt(*_: Any) -> NoReturn:
        _stopped.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    _stopped.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is signal.default_int_handler:  # not where it is ignored
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Running a notebook.


def as_typed(text: str, names: Iterable[str]) -> str:
    """Return a message that names parameters as the options that are typed.

    Examples:
        >>> as_typed("Leave it out: drop=label.", ["drop"])
        'Leave it out: --drop label.'
        >>> as_typed("theta_0 was given without theta_i.", ["theta_0", "theta_i"])
        '--theta-0 was given without --theta-i.'
    """
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        text = re.sub(rf"(?<![\w-]){name}=", f"{flag} ", text)
        text = re.sub(rf"(^|without |\()({name})(?=[ ):,;.]|$)", rf"\g<1>{flag}", text)
    return text


def run_notebook_command(
    name: str, command: NotebookCommand, notebook: ParameterNotebook, given: Mapping[str, Any]
) -> None:
    """Check the options and the data, run the notebook, and say where its results are and what failed."""
    from condnum.data.feature_pair import MISSING
    from condnum.files import FAILURES
    from condnum.report.notebook import PAGE, StoppedError, run_report
    from condnum.report.verdicts import verdict_rows

    values = {**command.fixed, **given}
    out, quiet = values.pop("out", None), values.pop("quiet")
    if command.config and "device" in values:
        from condnum.arrays import resolve_device

        values["device"] = str(resolve_device(values["device"]))
    label, checksums = loaded(command.config, values) if command.config else ("", {})
    folder = Path(out) if out else default_folder(name, values)
    try:
        failures = run_report(
            notebook,
            values,
            out=folder,
            title=f"{notebook.heading} ({label})" if label else notebook.heading,
            checksums=checksums,
            quiet=quiet,
            stopped=_stopped.is_set,
        )
    except StoppedError as stop:
        say(f"stopped by Ctrl-C{stop}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if rows := verdict_rows(folder):
        typer.echo("Verdict by Definition 3.1 ((i) must exceed 1, (ii) must not; means, θ at unit scale):")
        typer.echo(textwrap.indent(in_columns(rows), "  "))
    typer.echo(f"Results: {folder}")
    typer.echo(str(folder / PAGE))
    if (folder / "audit.json").exists():
        for note in json.loads((folder / "audit.json").read_text(encoding="utf-8"))["warnings"]:
            if "drop=" in note or MISSING in note:  # columns that seem to be no features, rows left out
                say(f"warning: {as_typed(note, given)}")
    if failures:
        rows = [("cell", "error"), *((row["cell"], row["error"]) for row in failures[:SHOWN_FAILURES])]
        typer.echo(f"{len(failures)} cell{'s' if len(failures) > 1 else ''} failed:", err=True)
        typer.echo(textwrap.indent(in_columns(rows), "  "), err=True)
        if len(failures) > SHOWN_FAILURES:
            typer.echo(f"  … and {len(failures) - SHOWN_FAILURES} more", err=True)
        typer.echo(
            f"All of them are in {folder / FAILURES}; "
            "the same command tries them again and keeps the others.",
            err=True,
        )
        raise typer.Exit(1)


def loaded(config: str, values: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """Build a study's configuration and load its data: what cannot run fails before a kernel starts."""
    home, _, name = config.partition(":")
    kind = getattr(importlib.import_module(home), name)
    given = {field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values}
    if values.get("scheduler") and "jobs" in values:
        from condnum.studies.study import choose_executor

        choose_executor(1, values["scheduler"])  # is it an address?
    chosen = kind.from_parameters(**given)
    data = chosen.load()
    chosen.cells(data)  # makes what the cells start from, such as a backbone
    origin = getattr(data, "provenance", None)
    if origin is not None and not origin.known_checksum:
        say(
            f"warning: SHA-256 {data.checksum} of {data.name} in {origin.location} is not one that this "
            "project knows; the results are those of these files. Look with: condnum data check."
        )
    for warning in getattr(data, "warnings", ()):
        say(f"warning: {warning}")
    if hasattr(data, "label"):
        return data.label, {data.label: data.checksum}
    return ", ".join(getattr(chosen, "chosen_backbones", ())), data.checksums


def default_folder(name: str, values: Mapping[str, Any]) -> Path:
    """Return the folder of a run that names none: by the command and its data.

    Examples:
        >>> default_folder("house-prices", {"data": "/data/My Houses.csv"}).as_posix()
        'runs/house-prices-my-houses'
        >>> default_folder("limits", {"data": "mnist", "source": "auto"}).as_posix()
        'runs/limits-mnist'
    """
    places = ("pretrain", "harmful") if values.get("pretrain") else ("pretrain_images", "harmful_images")
    named = [values.get(place) for place in places]
    if not any(named):
        named = [values.get("data"), None if values.get("source") == "auto" else values.get("source")]
    words = [name, *(Path(str(word)).stem for word in named if word)]
    slug = "".join(letter if letter.isalnum() else " " for letter in " ".join(words).lower())
    return Path("runs") / "-".join(slug.split())


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of text in columns.

    Examples:
        >>> print(in_columns([("a", "b"), ("long", "1")]))
        a     b
        long  1
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


# From a parameters cell to a command.


def _reader(kind: type[int] | type[float], least: float = -math.inf) -> Callable[[str | int], float]:
    """Return a parser whose message names the value, which typer's own does not."""

    def read(text: str | int) -> float:
        with contextlib.suppress(ValueError, OverflowError):
            if not (value := kind(text)) < least:
                return value
        bound = f" of at least {least:g}" if math.isfinite(least) else ""
        raise typer.BadParameter(f"'{text}' is not {'an integer' if kind is int else 'a number'}{bound}.")

    return read


def _read_yaml(text: str) -> Any:
    """Read a value of any other type than int, float, bool and str: null, [1, 2], text."""
    yaml = require("yaml", "notebooks")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise typer.BadParameter(f"'{text}' is no YAML ({problem}); quote text.") from error


def _option(parameter: Any, default: Any, ours: bool) -> tuple[Any, Any]:
    """Return the option of a notebook's parameter and its default; of `ours` no number is negative.

    The comment beside the parameter is the option's help, after `METAVAR: ` if it starts so.
    """
    kind = parameter.inferred_type_name
    kind = type(default).__name__ if kind == "None" else kind
    metavar, colon, text = parameter.help.partition(": ")
    if not colon or " " in metavar:
        metavar, text = "", parameter.help
    text = (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:]  # not Ε for ε
    about: dict[str, Any] = {"help": f"{text}." if text and text[-1] not in ".…" else text}
    flag = f"--{parameter.name.replace('_', '-')}"
    names = [flag, "-j"] if parameter.name == "jobs" else [flag]
    if kind == "bool":
        hidden = parameter.name == "static"  # a page has no kernel for a widget
        names = [f"{flag}/--no-{flag[2:]}"] if default or hidden or not ours else names
        return Annotated[bool, typer.Option(*names, hidden=hidden, **about)], default or hidden
    readers = {
        "int": ("N", _reader(int, 0 if ours else -math.inf)),
        "float": ("X", _reader(float)),
        "str": ("TEXT", os.path.expanduser),  # where the shell did not
    }
    example, about["parser"] = readers.get(kind, ("YAML", _read_yaml))
    about["metavar"] = metavar or example
    if kind not in readers:  # the notebook has its default
        default, about["show_default"] = None, repr(default)
    elif default == "":
        about["show_default"] = False
    return Annotated[str, typer.Option(*names, **about)], default


def notebook_command(name: str, command: NotebookCommand) -> Any:
    """Build the command of a notebook; its help is the comment with which its parameters cell begins."""
    from condnum.report.notebook import ParameterNotebook

    notebook = ParameterNotebook.find(command.notebook)
    options = {
        key: _option(parameter, command.defaults.get(key, notebook.defaults[key]), bool(command.config))
        for key, parameter in notebook.parameters.items()
        if key not in (*command.fixed, "out", "quiet", "help")
    }
    options |= {"out": (OutOption, None), "quiet": (QuietOption, False)}

    def call(**given: Any) -> None:
        known = {key: value for key, value in given.items() if value is not None}
        try:
            run_notebook_command(name, command, notebook, known)
        except CondnumError as error:  # what is wrong with a parameter is said of its option
            error.args = (as_typed(str(error), known),)
            raise

    comments = takewhile(lambda line: line[:1] == "#", notebook.cell.source.splitlines())
    call.__doc__ = "\n".join(line[1:].removeprefix(" ") for line in comments) or notebook.heading
    call.__annotations__ = {key: annotation for key, (annotation, _) in options.items()}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in options.items()
        ]
    )
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name)(call)
    return typer.main.get_command(single)


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
data_app = typer.Typer(help="List the data sets and check them.", rich_markup_mode=None)
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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, after any command.")] = False,
) -> None:
    """Model immunization from a condition-number perspective: explore, reproduce, teach, audit."""


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List the data sets: what is found where, and what to do about the others."""
    if context.invoked_subcommand is not None:
        return
    from condnum.data.catalog import available

    rows, statuses = [("data set", "source", "rows", "SHA-256", "location")], available()
    for found in statuses:
        checksum = found.checksum[:8] + " (unknown)" * (found.status == "unknown checksum")
        count = "" if found.rows is None else str(found.rows)
        rows.append((found.name, found.source or found.status, count, checksum, found.location))
    typer.echo("\n\n".join([in_columns(rows), *(found.advice for found in statuses if found.advice)]))


@data_app.command("check")
def check_data(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One data set; default: all.")] = None,
) -> None:
    """Load data sets in full and compare their checksums; the exit status is 1 unless all are well."""
    from condnum.data.catalog import available, check

    results = available() if name is None else [check(name)]
    for found in results:
        typer.echo(f"{found.name}: {found.status}")
        if found.shapes:
            typer.echo(f"  loads, all values finite, SHA-256 {found.checksum}, from {found.location}")
        for array, shape in found.shapes:
            typer.echo(f"  {array} {' x '.join(map(str, shape))}")
        if found.advice:
            typer.echo(f"  {found.advice}")
    if any(found.status != "ok" for found in results):
        raise typer.Exit(1)


@data_app.command("download")
def download() -> None:
    """Fetch all 70 000 images of MNIST from OpenML into the user cache, where every run looks."""
    from condnum.data.mnist import download_mnist

    typer.echo(f"MNIST: {download_mnist()}")


@app.command("lab")
def lab(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of your copies.")] = "notebooks",
    options: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTION", help="For JupyterLab, such as --port=9999.")
    ] = None,
    ip: Annotated[str, typer.Option(metavar="ADDRESS", help="Where it listens, with a token.")] = "127.0.0.1",
) -> None:
    """Copy the notebooks to a folder, but none over a file that is there, and open them in JupyterLab."""
    from condnum.report.notebook import copy_notebooks

    server, place = require("jupyterlab.labapp", "notebooks").LabApp, Path(folder).expanduser()
    if differ := copy_notebooks(place):
        names = ", ".join(path.name for path in differ)
        say(f"{folder} keeps its own {names}; move a file away to get the one of this version.")
    words = [
        f"--ServerApp.ip={ip}",
        f"--notebook-dir={place}",
        "--LabApp.default_url=/lab/tree/0_start.ipynb",
    ]
    words += ["--allow-root"] * (getattr(os, "geteuid", lambda: 1)() == 0)  # a container's user
    server.launch_instance([*words, *(options or [])])


@app.command(
    "reproduce",
    epilog="An experiment that fails does not stop the others: the site says what is wrong, and the exit "
    "status is 1. After Ctrl-C the same command goes on where it was.",
)
def reproduce_command(
    scale: Annotated[
        str,
        typer.Option(
            metavar="quick|full",
            help="quick: the paper's data, what two cores do in minutes; full: everything, hours.",
        ),
    ] = "quick",
    only: Annotated[str, typer.Option(metavar="A,B,…", help="Experiments, with commas; default: all.")] = "",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", parser=_reader(int, 0), help="Workers; 0: one a core.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the runs.", show_default="runs/reproduce/SCALE"),
    ] = None,
    site: SiteOption = Path("reports"),
    quiet: QuietOption = False,
) -> None:
    """Run all experiments, reuse what is unchanged; a site that grows sets each number beside its run."""
    from condnum.files import folder_lock, output_folder
    from condnum.report.experiments import experiments
    from condnum.report.reproduce import reproduce
    from condnum.site.build import build_site, missing_parts

    require("sphinx", "site")  # now, not when all has run
    names = [word.strip() for word in only.split(",") if word.strip()]
    chosen = [experiment.name for experiment in experiments(scale, names)]
    root = output_folder(out or Path("runs") / "reproduce" / scale)
    output_folder(site)
    built = False

    def on_end(name: str, runs: Any) -> None:
        """Build the site once there is a result; between experiments that take hours, after each."""
        nonlocal built
        if name not in chosen or (built and scale == "quick"):
            return
        with contextlib.suppress(CondnumError, OSError):  # the last build says what is wrong
            page = build_site(runs, site, execute=False)
            built = True
            if not quiet:
                line = f"  site: {page} (open it now; the other results, lessons and explorers follow)"
                require("tqdm", "notebooks").tqdm.write(line, file=sys.stderr)

    with folder_lock(root):
        try:
            runs = reproduce(
                scale,
                root,
                only=names,
                jobs=jobs,
                stream=None if quiet else sys.stderr,
                beside=missing_parts() if scale == "quick" else (),
                on_end=on_end,
            )
        except KeyboardInterrupt:
            say(f"stopped by Ctrl-C; what is finished lies in {root}: the same command goes on from there.")
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
        typer.Option(metavar="DIR", help="Folder of a reproduction.", show_default="runs/reproduce/SCALE"),
    ] = None,
    site: SiteOption = Path("reports"),
    part: Annotated[str, typer.Option(hidden=True, help="Make this part, for later builds, alone.")] = "",
) -> None:
    """Build the site: lessons, results, how-to, API; without a reproduction, of committed results."""
    from condnum.report.results import find_runs
    from condnum.site.build import make_part

    if part:
        make_part(part, say=say)
        return
    roots = [Path("runs") / "reproduce" / scale for scale in ("full", "quick")]
    root = out or next((root for root in roots if any(root.glob("*/provenance.json"))), None)
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
