"""`condnum run notebook`: any notebook with a parameters cell, a lesson or one of your own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from condnum.cli.options import DebugOption, OutOption, QuietOption, default_folder
from condnum.cli.run import run_report

NotebookArgument = Annotated[
    str, typer.Argument(metavar="NOTEBOOK", help="A name, such as 4_ceiling, or a path to an .ipynb file.")
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter, in YAML; may be repeated."),
]


def notebook(
    notebook: NotebookArgument,
    parameter: ParameterOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Execute a notebook and write its page, as the other commands do with theirs."""
    from condnum.report.html import first_heading
    from condnum.report.notebook import declared_parameters, find_notebook, read_notebook

    path = find_notebook(notebook)
    node = read_notebook(path)
    declared = declared_parameters(node)
    given = dict(_named_value(text) for text in parameter or [])
    if "static" in declared:
        given.setdefault("static", True)
    run_report(
        str(path),
        given,
        out=out or default_folder("notebook", path.name),
        title=first_heading(node) or path.stem,
        checksums=dict,
        quiet=quiet,
    )


def _named_value(text: str) -> tuple[str, Any]:
    """Read `name=value`, where the value is YAML: 3, 0.5, true, [1, 2], text."""
    from condnum.errors import require

    yaml = require("yaml", "notebooks")
    name, sign, value = text.partition("=")
    if not name.strip() or not sign:
        raise typer.BadParameter(f"'{text}' is no parameter; write NAME=VALUE, such as -p seeds=3.")
    try:
        return name.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise typer.BadParameter(f"the value of '{text}' is no YAML ({problem}); quote text.") from error
