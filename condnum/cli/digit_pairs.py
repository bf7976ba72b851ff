"""`condnum run mnist` and `condnum run digits`: the digit-pair sweep (Sec. 5.1, Table 2, Fig. 2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from condnum.cli.options import (
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

DigitsOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="auto|embedded|PATH",
        help="MNIST: a folder, or auto: found, the 10 000 test images in condnum's box last; the 8×8 digits "
        "are embedded.",
    ),
]
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


def _command(dataset: str, default: str, summary: str) -> Callable[..., None]:
    """Return the command of a data set; both have the same options."""

    def command(
        data: DigitsOption = default,
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
        source = _source(dataset, data)
        choices = {
            "methods": methods,
            "seeds": seeds,
            "epochs": epochs,
            "pairs": pairs,
            "labels": labels,
            "jobs": jobs,
            "scheduler": scheduler,
            "device": device,
        }
        _run(dataset, source, choices, out or default_folder(dataset, source), quiet)

    command.__doc__ = summary
    return command


#: `condnum run mnist`.
mnist = _command("mnist", "auto", "Immunize every ordered pair of MNIST digits (Table 2, Figure 2).")
#: `condnum run digits`.
digits = _command(
    "digits",
    "embedded",
    "Immunize every ordered pair of the embedded 8×8 digits: Table 2 in small.",
)


def _source(dataset: str, data: str) -> str:
    """Return where the data are, or refuse a source that the data set does not have."""
    if dataset == "mnist":
        if data == "embedded":
            raise typer.BadParameter("MNIST is not embedded; the 8×8 digits are: condnum run digits.")
        return data_source(data)
    if data not in ("auto", "embedded"):
        raise typer.BadParameter(
            f"--data {data}: the 8×8 digits are embedded and need no file; for MNIST: condnum run mnist."
        )
    return "embedded"


def _run(dataset: str, source: str, choices: dict[str, Any], out: Path, quiet: bool) -> None:
    """Check the options and the data before a kernel is started for them; run the notebook."""
    from condnum.arrays import resolve_device
    from condnum.cli.main import say
    from condnum.methods import method_names
    from condnum.studies.digit_pairs import DigitPairsConfig, load
    from condnum.studies.executors import choose_executor

    path = "auto" if source == "embedded" else source
    methods, device = method_list(choices["methods"], method_names), str(resolve_device(choices["device"]))
    parameters = {"dataset": dataset, "data": path, **choices, "methods": methods, "device": device}
    config = DigitPairsConfig.from_parameters(
        **{**parameters, "methods": methods or "", "epochs": choices["epochs"] or 0}
    )
    choose_executor(config.jobs, config.scheduler or None)
    loaded, _ = load(config)
    if not loaded.provenance.known_checksum:
        say(
            f"warning: SHA-256 {loaded.checksum} of {loaded.name} in {loaded.provenance.location} is not one "
            "that this project knows; the results are those of these files. Look with: condnum data check."
        )
    run_report(
        "mnist_pairs",
        {**parameters, "static": True},
        out=out,
        title=f"Digit pairs ({loaded.label}): immunization of a linear feature extractor",
        checksums=lambda: {loaded.label: loaded.checksum},
        quiet=quiet,
    )
