"""A notebook as a command: its parameters cell is options and help, its results are named in the terminal."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from condnum.errors import CondnumError
from condnum.page.notebook import Parameter, ParameterNotebook, literal
from condnum.page.run import PAGE, StoppedError, run_into_folder, say

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130

out_option = click.Option(
    ["--out"], metavar="DIR", help="Write the results to this folder.  [default: runs/…]"
)
quiet_option = click.Option(["--quiet", "-q"], is_flag=True, help="Do not show progress.")

#: Types of options by the annotations of parameters; all others are read as Python literals.
_TYPES: dict[str, Any] = {"int": click.INT, "float": click.FLOAT, "str": os.path.expanduser}


def notebook_command(
    book: ParameterNotebook, name: str, defaults: Mapping[str, str] | None = None, **options: Any
) -> click.Command:
    """Build the command of a notebook; its help is the comment with which its parameters cell begins.

    `defaults` replace some of that cell's.
    """
    others = dict(defaults or {})

    def run(out: str | None, quiet: bool, **given: Any) -> None:
        values = others | {key: value for key, value in given.items() if value is not None}
        try:
            run_and_report(book, name, values, out, quiet=quiet)
        except CondnumError as error:  # what is wrong with a parameter is said of its option
            error.args = (as_options(str(error), book.parameters),)
            raise

    class Command(click.Command):
        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            """Read the options when they are needed."""
            shown = book.parameters | {
                key: book.parameters[key]._replace(default=of) for key, of in others.items()
            }
            own = [_option(of) for key, of in shown.items() if key not in ("out", "quiet", "static")]
            self.params = [*own, out_option, quiet_option]
            return super().get_params(ctx)

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            """Say of an assignment that is no option why it is none."""
            try:
                return super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                if line := book.others.get(error.option_name.lstrip("-").replace("-", "_")):
                    raise click.UsageError(
                        f"{error.option_name} is no option: `{line}` in {book.path} assigns no literal to "
                        "one name.",
                        ctx,
                    ) from error
                raise

    return Command(name, callback=run, help=book.about, **options)


def _option(parameter: Parameter) -> click.Option:
    """Return the option of a parameter; the comment beside it is the help, after `METAVAR: `."""
    kind, flag = parameter.kind, f"--{parameter.name.replace('_', '-')}"
    metavar, colon, text = parameter.help.partition(": ")
    if not colon or " " in metavar:
        metavar, text = {"int": "N", "float": "X", "str": "TEXT"}.get(kind, "VALUE"), parameter.help
    text = (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:]  # not Ε for ε
    if text and text[-1] not in ".…":
        text += "."
    if parameter.default not in ("", None):
        text += f"  [default: {parameter.default}]"
    if kind == "bool":
        return click.Option([f"{flag}/--no-{flag[2:]}"], default=None, help=text)
    names = [flag, "-j"] if parameter.name == "jobs" else [flag]
    return click.Option(names, type=_TYPES.get(kind, literal), metavar=metavar, help=text)


def as_options(text: str, names: Iterable[str]) -> str:
    """Return a message that names parameters as the options that are typed.

    Examples:
        >>> as_options("Leave it out: drop=label.", ["drop"])
        'Leave it out: --drop label.'
        >>> as_options("theta_0 was given without theta_i.", ["theta_0", "theta_i"])
        '--theta-0 was given without --theta-i.'
    """
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        text = re.sub(rf"(?<![\w-]){name}=", f"{flag} ", text)
        text = re.sub(rf"(^|without |\()({name})(?=[ ):,;.]|$)", rf"\g<1>{flag}", text)
    return text


def run_and_report(
    book: ParameterNotebook, name: str, given: Mapping[str, Any], out: str | None, *, quiet: bool
) -> None:
    """Run a notebook, and say in the terminal where its page is, what it found, and what failed."""
    from condnum.page.html import answer_of

    folder = Path(out) if out else default_folder(name, given)
    try:
        report = run_into_folder(book, given, folder, quiet=quiet)
    except StoppedError as stop:
        say(f"stopped by Ctrl-C{stop}")
        raise SystemExit(EXIT_INTERRUPTED) from None
    text, record = answer_of(report)
    click.echo("\n\n".join(filter(None, [text, str(folder / PAGE)])))
    failed, unmet = record.get("cells", {}).get("failed", 0), record.get("unmet", [])
    said = f"{failed} cell(s) failed; the page lists them, and the same command tries them again."
    for line in [*[said] * bool(failed), *unmet]:
        say(line)
    if failed or unmet:
        raise SystemExit(1)


def default_folder(name: str, values: Mapping[str, Any]) -> Path:
    """Return the folder of a run that names none: by the command and its data.

    Examples:
        >>> default_folder("house-prices", {"data": "/data/My Houses.csv"}).as_posix()
        'runs/house-prices-my-houses'
        >>> default_folder("mnist", {"data": "mnist"}).as_posix()
        'runs/mnist'
    """
    places = ("data", "benign", "harmful", "theta", "benign_images", "harmful_images")
    words = dict.fromkeys([name, *(Path(str(values[place])).stem for place in places if values.get(place))])
    slug = "".join(letter if letter.isalnum() else " " for letter in " ".join(words).lower())
    return Path("runs") / "-".join(slug.split())
