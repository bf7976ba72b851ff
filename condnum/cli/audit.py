"""`condnum audit`: what two feature sets, and perhaps an extractor, are worth by condition numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from condnum.cli.options import DebugOption, OutOption, QuietOption, default_folder, whole_number
from condnum.cli.run import run_report


def audit(
    pretrain: Annotated[
        str, typer.Option("--pretrain", metavar="FILE", help="Features of the pre-training task.")
    ] = "",
    harmful: Annotated[
        str, typer.Option("--harmful", metavar="FILE", help="Features of the harmful task.")
    ] = "",
    theta: Annotated[
        str, typer.Option("--theta", metavar="FILE", help="A linear extractor, one row a feature.")
    ] = "",
    theta_0: Annotated[
        str, typer.Option("--theta-0", metavar="FILE", help="An extractor before immunization.")
    ] = "",
    theta_i: Annotated[
        str, typer.Option("--theta-i", metavar="FILE", help="The same extractor after immunization.")
    ] = "",
    targets: Annotated[
        str, typer.Option("--targets", metavar="FILE", help="Targets of the harmful rows, for the attackers.")
    ] = "",
    pretrain_targets: Annotated[
        str, typer.Option("--pretrain-targets", metavar="FILE", help="Targets of D_P, for clause (c).")
    ] = "",
    kind: Annotated[
        str, typer.Option("--kind", metavar="auto|regression|classification", help="Of the targets.")
    ] = "auto",
    key: Annotated[
        str, typer.Option("--key", metavar="NAME[,NAME]", help="Array of an npz file, or one for each file.")
    ] = "",
    drop: Annotated[
        str, typer.Option("--drop", metavar="NAME,…", help="Columns to leave out; x0, x1, … without names.")
    ] = "",
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Each task's columns to mean 0 and deviation 1.")
    ] = False,
    backbone: Annotated[
        str, typer.Option("--backbone", metavar="NAME", help="A timm model, instead of feature files.")
    ] = "",
    pretrain_images: Annotated[
        str, typer.Option("--pretrain-images", metavar="DIR", help="Images of the pre-training task.")
    ] = "",
    harmful_images: Annotated[
        str, typer.Option("--harmful-images", metavar="DIR", help="Images of the harmful task.")
    ] = "",
    weights: Annotated[
        str, typer.Option("--weights", metavar="pretrained|FILE", help="Of the backbone; default: random.")
    ] = "",
    ridge: Annotated[float, typer.Option("--ridge", metavar="EPS", help="ε of the ridge convention.")] = 1e-6,
    rtol: Annotated[
        float, typer.Option("--rtol", metavar="R", help="Rank tolerance; 0: that of the stored type.")
    ] = 0.0,
    bootstrap: Annotated[
        int,
        typer.Option("--bootstrap", metavar="N", parser=whole_number(0), help="Replicates; 0 for none."),
    ] = 200,
    attackers: Annotated[bool, typer.Option("--attackers/--no-attackers", help="Run the panel.")] = True,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=whole_number(0), help="Of everything random.")
    ] = 0,
    scheduler: Annotated[
        str,
        typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Form covariances on a dask cluster."),
    ] = "",
    max_dimension: Annotated[
        int,
        typer.Option("--max-dimension", metavar="D", parser=whole_number(1), help="Most columns to accept."),
    ] = 20_000,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Audit features of two tasks (npy, npz, csv, parquet): κ's, ranks, ceiling, verdict, attackers."""
    parameters: dict[str, Any] = {
        "pretrain": _expanded(pretrain),
        "harmful": _expanded(harmful),
        "theta": _expanded(theta),
        "theta_0": _expanded(theta_0),
        "theta_i": _expanded(theta_i),
        "targets": _expanded(targets),
        "pretrain_targets": _expanded(pretrain_targets),
        "kind": kind,
        "key": key,
        "drop": drop,
        "standardise": standardise,
        "backbone": backbone,
        "pretrain_images": pretrain_images,
        "harmful_images": harmful_images,
        "weights": weights,
        "ridge": ridge,
        "rtol": rtol,
        "replicates": bootstrap,
        "attackers": attackers,
        "seed": seed,
        "scheduler": scheduler,
        "max_dimension": max_dimension,
    }
    check(parameters)
    files = [parameters[name] for name in ("pretrain", "harmful", "theta", "theta_0", "theta_i", "targets")]
    folder = out or default_folder("audit", pretrain or pretrain_images)
    run_report(
        "audit",
        parameters,
        out=folder,
        title="Audit: how much immunization two feature sets allow",
        checksums=lambda: file_checksums(files),
        quiet=quiet,
    )
    say_warnings(folder)


def say_warnings(folder: str | Path) -> None:
    """Repeat in the terminal what a page says about columns that seem to be no features."""
    from condnum.cli.main import say

    for note in json.loads((Path(folder) / "audit.json").read_text(encoding="utf-8"))["warnings"]:
        if "drop=" in note:
            say(f"warning: {note}")


def check(parameters: dict[str, Any]) -> None:
    """Refuse what cannot be audited before a kernel is started for it; only the beginnings of files are read.

    Args:
        parameters: Of the notebook.

    Raises:
        BadParameter: Nothing to audit.
        CondnumError: Files that are missing or do not fit each other, or bad targets or numbers.
    """
    from condnum.audit.attacks import read_targets
    from condnum.audit.full_audit import check_numbers
    from condnum.audit.measures import read_extractors
    from condnum.audit.run import Options
    from condnum.data.feature_pair import open_pair

    options = Options(**parameters)
    if not options.pretrain and not options.backbone:
        raise typer.BadParameter(
            "give the features of both tasks with --pretrain FILE and --harmful FILE, or --backbone NAME "
            "with --pretrain-images DIR and --harmful-images DIR."
        )
    check_numbers(options.ridge, options.rtol, options.replicates)
    for path in (options.targets, options.pretrain_targets):
        if path:
            read_targets(path, kind=options.kind)
    if options.pretrain:
        P, H, _ = open_pair(
            options.pretrain, options.harmful, key=options.key, drop=options.drop,
            max_dimension=options.max_dimension,
        )  # fmt: skip
        for stream in (P, H):
            next(stream.raw_blocks(), None)  # columns of text in a CSV
        read_extractors(options.theta or None, options.theta_0 or None, options.theta_i or None, P.dimension)


def file_checksums(paths: list[str]) -> dict[str, str]:
    """Return the SHA-256 of the files that an audit has read.

    Examples:
        >>> file_checksums([""])
        {}
    """
    from condnum.report.provenance import file_checksum

    return {Path(path).name: file_checksum(Path(path)) for path in paths if path}


def _expanded(path: str) -> str:
    """Expand `~`; nothing stays nothing."""
    return str(Path(path).expanduser()) if path else ""
