"""A notebook as a command: its parameters cell is options and help, its results are named in the terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from condnum.errors import CondnumError, require
from condnum.report import notebook as notebooks
from condnum.report.notebook import PAGE, ParameterNotebook, StoppedError

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


OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the results.", show_default="runs/…")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

#: Set when a signal has stopped this program.
STOPPED = threading.Event()


def say(message: str) -> None:
    """Print one wrapped paragraph on the standard error, after the program's name."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraph = textwrap.fill(
        f"condnum: {' '.join(message.split())}", width, break_long_words=False, break_on_hyphens=False
    )
    print(paragraph, file=sys.stderr, flush=True)


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
    from condnum.report.verdicts import verdict_rows

    values = {**command.fixed, **given}
    out, quiet = values.pop("out", None), values.pop("quiet")
    if command.config and "device" in values:
        from condnum.arrays import resolve_device

        values["device"] = str(resolve_device(values["device"]))
    label, checksums = loaded(command.config, values) if command.config else ("", {})
    folder = Path(out) if out else default_folder(name, values)
    try:
        failures = notebooks.run_report(
            notebook,
            values,
            out=folder,
            title=f"{notebook.heading} ({label})" if label else notebook.heading,
            checksums=checksums,
            quiet=quiet,
            stopped=STOPPED.is_set,
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
    chosen = kind.from_parameters(**given)
    data = chosen.load()
    cells = list(chosen.cells(data))  # makes what the cells start from, such as a backbone
    if values.get("scheduler") and "jobs" in values:
        chosen.executor(data, cells, 1, values["scheduler"])  # is it an address?
    origin = getattr(data, "provenance", None)
    if origin is not None and not origin.known_checksum:
        say(
            f"warning: SHA-256 {data.checksum} of {data.name} in {origin.location} is not one that this "
            "project knows; the results are those of these files. Look with: condnum data."
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
        >>> default_folder("mnist", {"data": "mnist"}).as_posix()
        'runs/mnist'
    """
    places = ("pretrain", "harmful") if values.get("pretrain") else ("pretrain_images", "harmful_images")
    named = [values.get(place) for place in places]
    if not any(named):
        named = [values.get("data")]
    words = dict.fromkeys([name, *(Path(str(word)).stem for word in named if word)])
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


def number_reader(kind: type[int] | type[float], least: float = -math.inf) -> Callable[[str | int], float]:
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
        "int": ("N", number_reader(int, 0 if ours else -math.inf)),
        "float": ("X", number_reader(float)),
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
