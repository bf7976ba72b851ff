"""The tree of commands. Heavy imports (torch, papermill) wait until a command needs them."""

from __future__ import annotations

from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from condnum.cli.attackers import attackers
from condnum.cli.audit import audit
from condnum.cli.data import data_app
from condnum.cli.deep import deep
from condnum.cli.digit_pairs import digits, mnist
from condnum.cli.house_prices import house_prices
from condnum.cli.limits import limits
from condnum.cli.notebook import notebook
from condnum.cli.options import DebugOption
from condnum.cli.reproduce import EPILOG, reproduce
from condnum.cli.reproduction_audit import reproduction_audit
from condnum.cli.run import run_app

app = typer.Typer(
    name="condnum",
    help="Model immunization from a condition-number perspective: explore, reproduce, teach, audit.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(run_app, name="run")
app.command("audit")(audit)
app.command("reproduce", epilog=EPILOG)(reproduce)
run_app.command("house-prices")(house_prices)
run_app.command("mnist")(mnist)
run_app.command("digits")(digits)
run_app.command("limits")(limits)
run_app.command("attackers")(attackers)
run_app.command("deep")(deep)
run_app.command("reproduction-audit")(reproduction_audit)
run_app.command("notebook")(notebook)


def _show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"condnum {distribution_version('condnum')}")
        raise typer.Exit


@app.callback()
def condnum(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Model immunization from a condition-number perspective: explore, reproduce, teach, audit."""
