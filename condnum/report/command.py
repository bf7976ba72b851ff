"""A notebook as a command: its parameters cell is options and help, its results are named in the terminal."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from condnum.errors import CondnumError, require
from condnum.files import CELLS, FAILURES, read_table
from condnum.report.notebook import ParameterNotebook, is_arithmetic
from condnum.report.run import PAGE, NotebookCommand, StoppedError, run_command, say

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130

#: Lines of the table of failures in the terminal.
SHOWN_FAILURES = 20


OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the results to this folder.", show_default="runs/…"),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]

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


def told_command(
    name: str, command: NotebookCommand, notebook: ParameterNotebook, given: Mapping[str, Any]
) -> None:
    """Run a notebook, and say in the terminal where its results are, the verdicts and what failed."""
    from condnum.data.feature_pair import MISSING

    values = {**given}
    out, quiet = values.pop("out", None), values.pop("quiet")
    folder = Path(out) if out else default_folder(name, {**command.fixed, **values})
    try:
        failures = run_command(command, notebook, values, folder, quiet=quiet)
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
        typer.echo(f"{len(failures)} cell{'s' if len(failures) > 1 else ''} failed:", err=True)
        typer.echo(textwrap.indent("\n".join(failures[:SHOWN_FAILURES]), "  "), err=True)
        others = " and keeps the other cells" * (folder / CELLS).exists()  # an audit has no store
        typer.echo(
            f"All failures are listed in {folder / FAILURES}; the same command retries them{others}.",
            err=True,
        )
        raise typer.Exit(1)


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
    """Align rows of text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


#: Columns of the table of verdicts, and those that follow where targets are known.
VERDICT_COLUMNS = ("method", "convention", "immunized", "(i)", "(ii)", "RIR")
PROBE_COLUMNS = ("benign probe", "harmful probe")


def verdict_rows(folder: Path) -> list[tuple[str, ...]]:
    """Return a row per method and convention, headed by `VERDICT_COLUMNS`; none if nothing is judged.

    (i), (ii) and RIR are means, with θ at unit scale; `immunized` counts the single verdicts. Of the probes
    of the actual targets: their steps over those on raw inputs.
    """
    from condnum.probing.probe_steps import LOST_FACTOR
    from condnum.report.tables import number, times
    from condnum.theory.immunization import Clauses

    def row_of(label: str, row: Mapping[str, Any], verdict: str) -> tuple[str, ...]:
        values = (row["harmful_ratio"], row["pretrain_ratio"], row["rir"])  # in JSON null, and "Infinity"
        said = ("—" if value is None else number(float(value)) for value in values)
        probes = (row.get(f"{name}_slowdown") for name in ("benign", "harmful"))
        return (
            *(label, row["convention"], verdict, *said),
            *("—" if value is None else times(float(value)) for value in probes),
        )

    rows = []
    if (folder / "audit.json").exists():
        found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        for row in (row for row in found["measures"] if row["theta_scale"] == "unit"):
            clauses = Clauses(*(row[f"clause_{letter}"] for letter in "abc"))
            unknown = f"not known: {', '.join(clauses.unknown)}"
            verdict = {True: "yes", False: "no", None: unknown}[clauses.met]
            lost = verdict == "yes" and float(row.get("benign_slowdown") or 0) > LOST_FACTOR
            cells = list(row_of(row["extractor"], row, verdict + ", benign task lost" * lost))
            ranks = f"{row['rank_pretrain']} and {row['rank_harmful']} of {found['pretrain']['dimension']}"
            cells[VERDICT_COLUMNS.index("RIR")] += f" (H_P and H_H: rank {ranks})"
            rows.append(tuple(cells))
    for name in ("summary", "immunization"):
        table = read_table(folder, name)
        if table is None or "convention" not in table:
            continue
        table = table.rename(columns=lambda name: name.removesuffix("_mean"))
        if "harmful_ratio" not in table:
            continue
        for row in table.to_dict("records"):
            if row.get("theta_scale", "unit") != "unit":
                continue
            count = int(row.get("seeds", 1) * row.get("pairs", 1))
            good = round(float(row["success_rate" if "success_rate" in row else "success"]) * count)
            verdict = "yes" if good == count else "no" if not good else "in part"
            alone = good == count and row.get("benign_slowdown", 0) > LOST_FACTOR
            lost = round(row.get("lost_rate", alone) * count)
            label = ", ".join(str(row[name]) for name in ("backbone", "method", "extractor") if name in row)
            said = f"{verdict}, {good} of {count}" + f", benign task lost in {lost}" * bool(lost)
            rows.append(row_of(label, row, said))
    if all({*row[-2:]} == {"—"} for row in rows):
        return [VERDICT_COLUMNS, *(row[:-2] for row in rows)] if rows else []
    return [VERDICT_COLUMNS + PROBE_COLUMNS, *rows]


# From a parameters cell to a command.


def number_reader(kind: type[int] | type[float], least: float = -math.inf) -> Callable[[str | int], float]:
    """Return a parser whose message names the value, which typer's own does not."""

    def read(text: str | int) -> float:
        with contextlib.suppress(ValueError, OverflowError):
            if not (value := kind(text)) < least:
                return value
        bound = f" ≥ {least:g}" if math.isfinite(least) else ""
        raise typer.BadParameter(f"'{text}' is not {'an integer' if kind is int else 'a number'}{bound}.")

    return read


def _read_yaml(text: str) -> Any:
    """Read a value of any other type than int, float, bool and str: null, [1, 2], text; 1e-3 is a number."""
    yaml = require("yaml", "notebooks")

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined]
        """The safe one with numbers as YAML 1.2 has them."""

    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise typer.BadParameter(f"'{text}' is not valid YAML ({problem}); put text in quotes.") from error


def _read_number(text: str) -> float:
    """Read an integer as one, and any other number."""
    with contextlib.suppress(ValueError):
        return int(text)
    return number_reader(float)(text)


def _option(parameter: Any, default: Any, ours: bool) -> tuple[Any, Any]:
    """Return the option of a notebook's parameter and its default; of `ours` no number is negative.

    The comment beside the parameter is the option's help, after `METAVAR: ` if it starts so.
    """
    kind = re.sub(r"^Optional\[(\w+)\]$|^(\w+) \| None$", r"\1\2", parameter.inferred_type_name)
    if kind == "None":
        kind = "number" if default is None and is_arithmetic(parameter.default) else type(default).__name__
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
        return Annotated[bool, typer.Option(*names, hidden=hidden, **about)], default
    readers = {
        "int": ("N", number_reader(int, 0 if ours else -math.inf)),
        "float": ("X", number_reader(float)),
        "number": ("X", _read_number),
        "str": ("TEXT", os.path.expanduser),  # where the shell did not
    }
    example, about["parser"] = readers.get(kind, ("YAML", _read_yaml))
    about["metavar"] = metavar or example
    if kind not in readers or default is None:  # the notebook has its default
        default, about["show_default"] = None, parameter.default
    elif default == "":
        about["show_default"] = False
    return Annotated[str, typer.Option(*names, **about)], default


def notebook_command(name: str, command: NotebookCommand) -> Any:
    """Build the command of a notebook; its help is the comment with which its parameters cell begins."""
    notebook = ParameterNotebook.find(command.notebook)
    options = {
        key: _option(notebook.parameters[key], default, bool(command.config))
        for key, default in command.values(notebook).items()
    }
    options |= {"out": (OutOption, None), "quiet": (QuietOption, False)}

    def call(**given: Any) -> None:
        known = {key: value for key, value in given.items() if value is not None}
        try:
            told_command(name, command, notebook, known)
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
