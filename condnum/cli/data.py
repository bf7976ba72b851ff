"""`condnum data`: what is on this machine, and whether it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from condnum.cli.options import DebugOption

data_app = typer.Typer(help="List the data sets and check them.", rich_markup_mode=None)


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context, debug: DebugOption = False) -> None:
    """List the data sets: what is found where, and what to do about the others."""
    if context.invoked_subcommand is not None:
        return
    from condnum.data.catalog import available

    statuses = available()
    rows = [
        (
            status.name,
            str(status.source or "missing"),
            "" if status.rows is None else str(status.rows),
            status.checksum[:8] + ("" if status.known_checksum or not status.found else " (unknown)"),
            status.location,
        )
        for status in statuses
    ]
    typer.echo(columns([("data set", "source", "rows", "SHA-256", "location"), *rows]))
    for status in statuses:
        if status.advice:
            typer.echo(f"\n{status.advice}")


@data_app.command("check")
def check_data(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One data set; default: all.")] = None,
    debug: DebugOption = False,
) -> None:
    """Load data sets in full and compare their checksums; the exit status is 1 unless all are well."""
    from condnum.data.catalog import check

    results = check(name)
    for result in results:
        typer.echo(f"{result.name}: {result.status}\n  {result.message}")
        for array, shape in result.shapes:
            typer.echo(f"  {array} {' x '.join(str(size) for size in shape)}")
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@data_app.command("download")
def download(debug: DebugOption = False) -> None:
    """Fetch all 70 000 images of MNIST from OpenML into the user cache, where every run looks."""
    from condnum.data.mnist import download_mnist

    typer.echo(f"MNIST: {download_mnist()}")


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of text in columns.

    Examples:
        >>> print(columns([("a", "b"), ("long", "1")]))
        a     b
        long  1
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
