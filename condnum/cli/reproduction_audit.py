"""`condnum run reproduction-audit`: why the release's numbers differ, a switch at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from condnum.cli.options import (
    DebugOption,
    JobsOption,
    OutOption,
    QuietOption,
    SeedsOption,
    data_source,
    default_folder,
)
from condnum.cli.run import run_report

AuditDataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="house-prices|embedded|mnist:P-H|digits:P-H",
        help="House prices; the embedded diabetes table; or one pair of digits, such as mnist:4-7.",
    ),
]
AuditSourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="auto|PATH",
        help="auto: where the data are found, the box last; or a path.",
    ),
]
StartsOption = Annotated[
    str,
    typer.Option(
        "--epochs", metavar="N,…", help="Epochs of the release at which a waterfall starts; default: 10,100."
    ),
]
EndsOption = Annotated[
    str,
    typer.Option(
        "--ends",
        metavar="N,…",
        help="Epochs of the release without a waterfall; default: 1000 for house prices; 0 for none.",
    ),
]


def reproduction_audit(
    data: AuditDataOption = "house-prices",
    source: AuditSourceOption = "auto",
    seeds: SeedsOption = 5,
    epochs: StartsOption = "",
    ends: EndsOption = "",
    jobs: JobsOption = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Turn the choices of the authors' release into the corrected ones, one at a time, and watch RIR."""
    from condnum.studies.release import AuditConfig

    place = data_source(source)
    config = AuditConfig.from_parameters(data=data, source=place, seeds=seeds, epochs=epochs, ends=ends)
    loaded = config.data.load()  # before a kernel is started for them
    run_report(
        "reproduction_audit",
        {"data": data, "source": place, "seeds": seeds, "epochs": epochs, "ends": ends, "jobs": jobs},
        out=out or default_folder("reproduction-audit", data.replace(":", "-")),
        title=f"Reproduction audit ({config.data.label}; {loaded.label})",
        checksums=lambda: {loaded.label: loaded.checksum},
        quiet=quiet,
    )
