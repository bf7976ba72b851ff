"""`condnum reproduce`: every experiment of a scale, then the site that shows them."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condnum.cli.options import DebugOption, JobsOption, QuietOption

if TYPE_CHECKING:
    from condnum.report.reproduce import ExperimentRecord

ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="quick|full",
        help="quick: the paper's data, what two cores do in minutes; full: everything, hours.",
    ),
]
OnlyOption = Annotated[
    str, typer.Option("--only", metavar="A,B,…", help="Experiments, comma-separated; default: all.")
]
RootOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the runs.", show_default="runs/reproduce/SCALE"),
]
SiteOption = Annotated[
    Path, typer.Option("--site", metavar="DIR", help="Folder of index.html and of site/ with the pages.")
]

#: What the help adds.
EPILOG = (
    "An experiment that fails does not stop the others: the site says what is wrong, and the exit status is "
    "1. After Ctrl-C the same command goes on where it was."
)


def reproduce(
    scale: ScaleOption = "quick",
    only: OnlyOption = "",
    jobs: JobsOption = 0,
    out: RootOption = None,
    site: SiteOption = Path("reports"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Run all experiments, reuse what is unchanged; a site that grows sets each number beside its run."""
    from condnum.cli.main import say
    from condnum.errors import CondnumError
    from condnum.files import folder_lock, output_folder
    from condnum.report.reproduce import experiments, progress_view
    from condnum.report.reproduce import reproduce as run
    from condnum.report.site import build_site

    names = [word.strip() for word in only.split(",") if word.strip()]
    chosen = [experiment.name for experiment in experiments(scale, names)]
    root = output_folder(out or Path("runs") / "reproduce" / scale)
    output_folder(site)
    with folder_lock(root):
        try:
            with progress_view(io.StringIO() if quiet else None) as view:

                def on_end(index: int, total: int, entry: ExperimentRecord) -> None:
                    """Show what became of an experiment, then let the site grow by it."""
                    view.end(index, total, entry)
                    if index < total and entry.status != "reused":
                        with suppress(CondnumError):  # the last build says what is wrong
                            view.site(build_site(root, site), chosen[index:])

                record = run(
                    scale,
                    root,
                    only=names,
                    jobs=jobs,
                    progress=view.progress,
                    on_start=view.start,
                    on_end=on_end,
                )
        except KeyboardInterrupt:
            say(
                f"stopped by Ctrl-C; what is finished lies in {root}, its pages under {site}: the same "
                "command goes on from there."
            )
            raise typer.Exit(130) from None
        index = build_site(root, site)
    bad = ("failed", "not run") if names else ("failed",)  # what was asked for by name has to be there
    failed = [entry for name in chosen if (entry := record[name]).status in bad]
    for entry in failed:
        say(f"{entry.name} {entry.status}: {entry.error}")
    typer.echo(str(index))
    if failed:
        raise typer.Exit(1)
