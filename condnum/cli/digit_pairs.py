"""`condnum run mnist` and `condnum run digits`: the digit-pair sweep (Sec. 5.1, Table 2, Fig. 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from condnum.cli.options import (
    DataOption,
    DebugOption,
    DeviceOption,
    EpochsOption,
    MethodsOption,
    OutOption,
    QuietOption,
    SeedsOption,
    data_source,
    default_folder,
    method_list,
)
from condnum.cli.run import run_report

PairsOption = Annotated[
    str, typer.Option("--pairs", metavar="P-H,…", help="Digit pairs such as 4-7,9-0; default: all 90.")
]
LabelsOption = Annotated[
    str, typer.Option("--labels", metavar="one_vs_rest|published", help="Labels of the supervised loss.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", min=0, help="Worker processes; 0: one for each core.")
]
SchedulerOption = Annotated[
    str,
    typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Compute on a dask cluster."),
]


def mnist(
    data: DataOption = "auto",
    methods: MethodsOption = None,
    seeds: SeedsOption = 3,
    epochs: EpochsOption = None,
    pairs: PairsOption = "",
    labels: LabelsOption = "one_vs_rest",
    jobs: JobsOption = 0,
    scheduler: SchedulerOption = "",
    device: DeviceOption = "auto",
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Immunize every ordered pair of MNIST digits (Table 2, Figure 2)."""
    if data == "embedded":
        raise typer.BadParameter("MNIST is not embedded; the 8×8 digits are: condnum run digits.")
    source = data_source(data)
    options = (methods, seeds, epochs, pairs, labels, jobs, scheduler, device)
    _run("mnist", source, options, out or default_folder("mnist", source), quiet)


def digits(
    methods: MethodsOption = None,
    seeds: SeedsOption = 3,
    epochs: EpochsOption = None,
    pairs: PairsOption = "",
    labels: LabelsOption = "one_vs_rest",
    jobs: JobsOption = 0,
    scheduler: SchedulerOption = "",
    device: DeviceOption = "auto",
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Immunize every ordered pair of the embedded 8×8 digits: Table 2 without a download."""
    options = (methods, seeds, epochs, pairs, labels, jobs, scheduler, device)
    _run("digits", "embedded", options, out or default_folder("digits", "embedded"), quiet)


_Options = tuple[str | None, int, int | None, str, str, int, str, str]


def _run(dataset: str, source: str, options: _Options, out: Path, quiet: bool) -> None:
    """Check the options, run the notebook, and end with status 1 if a cell failed."""
    from condnum.arrays import resolve_device
    from condnum.experiments.digit_pairs import DigitPairsConfig
    from condnum.methods import method_names

    methods, seeds, epochs, pairs, labels, jobs, scheduler, device = options
    chosen = method_list(methods, method_names)
    path = "auto" if source == "embedded" else source
    where = str(resolve_device(device))
    DigitPairsConfig.from_parameters(
        dataset=dataset,
        data=path,
        methods=chosen or "",
        seeds=seeds,
        epochs=epochs or 0,
        pairs=pairs,
        labels=labels,
        jobs=jobs,
        scheduler=scheduler,
        device=where,
    )
    parameters = {
        "dataset": dataset,
        "data": path,
        "methods": chosen,
        "seeds": seeds,
        "epochs": epochs,
        "pairs": pairs,
        "labels": labels,
        "jobs": jobs,
        "scheduler": scheduler,
        "device": where,
        "static": True,
    }
    run_report(
        "mnist_pairs",
        parameters,
        out=out,
        title=f"Digit pairs ({dataset}): immunization of a linear feature extractor",
        checksums=lambda: _checksums(dataset, source),
        quiet=quiet,
    )
    if (Path(out) / "failures.csv").exists():
        typer.echo(
            f"Some cells failed: see {Path(out) / 'failures.csv'}; the same command retries them.", err=True
        )
        raise typer.Exit(1)


def _checksums(dataset: str, source: str) -> dict[str, str]:
    """Return the SHA-256 of the digits that a run has used."""
    from condnum.experiments.digit_pairs import DigitPairsConfig, load

    loaded, _ = load(DigitPairsConfig(dataset="mnist" if dataset == "mnist" else "digits", data=source))
    return {loaded.name: loaded.checksum}
