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
    JobsOption,
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
    """Check the options and the data before a kernel is started for them; run the notebook."""
    from condnum.arrays import resolve_device
    from condnum.cli.main import say
    from condnum.experiments.digit_config import DigitPairsConfig
    from condnum.experiments.digit_pairs import load
    from condnum.methods import method_names
    from condnum.sweep import choose_executor

    methods, seeds, epochs, pairs, labels, jobs, scheduler, device = options
    chosen = method_list(methods, method_names)
    path = "auto" if source == "embedded" else source
    where = str(resolve_device(device))
    config = DigitPairsConfig.from_parameters(
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
    choose_executor(config.jobs, scheduler or None)
    loaded, _ = load(config)
    if not loaded.provenance.known_checksum:
        say(
            f"warning: SHA-256 {loaded.checksum} of {loaded.name} in {loaded.provenance.location} is not one "
            "that this project knows; the results are those of these files. Look with: condnum data check."
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
        checksums=lambda: {loaded.name: loaded.checksum},
        quiet=quiet,
    )
