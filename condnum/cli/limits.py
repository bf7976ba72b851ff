"""`condnum run limits`: how much immunization is possible, and how much of it the methods reach."""

from __future__ import annotations

from typing import Annotated

import typer

from condnum.cli.options import (
    DebugOption,
    EpochsOption,
    JobsOption,
    MethodsOption,
    OutOption,
    QuietOption,
    data_source,
    default_folder,
    method_list,
    whole_number,
)
from condnum.cli.run import run_report

LimitsDataOption = Annotated[
    str, typer.Option("--data", metavar="house-prices|mnist|digits|embedded", help="Which tasks.")
]
SourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="auto|embedded|PATH",
        help="auto: where the data are found, condnum's box last; embedded: for house-prices the "
        "diabetes table; or a path.",
    ),
]
LimitsPairsOption = Annotated[
    str, typer.Option("--pairs", metavar="P-H,…", help="Digit pairs such as 4-9,4-7; default: five pairs.")
]
RidgeOption = Annotated[
    float,
    typer.Option("--ridge", metavar="SHARE", help="ε of front and directions, in mean eigenvalues of K_P."),
]
RaceOption = Annotated[
    int,
    typer.Option(
        "--race-steps",
        metavar="N",
        parser=whole_number(0),
        help="Steps of Algorithm 1 against the closed form; 0 for no race.",
    ),
]
SomeSeedsOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", parser=whole_number(1), help="How many seeds; default: 3, mnist 1."),
]


def limits(
    data: LimitsDataOption = "house-prices",
    source: SourceOption = "auto",
    methods: MethodsOption = None,
    seeds: SomeSeedsOption = None,
    epochs: EpochsOption = None,
    pairs: LimitsPairsOption = "",
    ridge: RidgeOption = 1e-3,
    race_steps: RaceOption = 1000,
    jobs: JobsOption = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Compute the RIR ceiling and the Pareto front of task pairs, and hold every method against them."""
    from condnum.methods import method_names
    from condnum.studies.limits import LimitsConfig, load

    place = data_source(source)
    chosen = method_list(methods, method_names)
    config = LimitsConfig.from_parameters(
        data=data, source=place, methods=chosen or "", seeds=seeds or 0, epochs=epochs or 0, pairs=pairs,
        ridge=ridge, race_steps=race_steps,
    )  # fmt: skip
    loaded = load(config)  # before a kernel is started for them
    parameters = {
        "data": data,
        "source": place,
        "methods": chosen,
        "seeds": config.seeds,
        "epochs": epochs,
        "pairs": pairs,
        "ridge": ridge,
        "race_steps": race_steps,
        "jobs": jobs,
    }
    run_report(
        "limits",
        parameters,
        out=out or default_folder("limits", loaded.name),
        title=f"Limits of immunization ({loaded.label})",
        checksums=lambda: {loaded.label: loaded.checksum},
        quiet=quiet,
    )
