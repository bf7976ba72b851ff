"""`condnum run attackers`: how far immunized extractors slow each kind of training."""

from __future__ import annotations

from typing import Annotated

import typer

from condnum.cli.options import (
    DebugOption,
    EpochsOption,
    MethodsOption,
    OutOption,
    QuietOption,
    data_source,
    default_folder,
    method_list,
    whole_number,
)
from condnum.cli.run import run_report

PairOption = Annotated[
    str,
    typer.Option(
        "--data", metavar="house-prices|mnist:P-H|digits:P-H|embedded", help="The pair of tasks (D_P, D_H)."
    ),
]
SourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="auto|embedded|PATH",
        help="Where the data lie; embedded: for house prices, the diabetes table instead.",
    ),
]
AttackersOption = Annotated[
    str | None, typer.Option("--attackers", metavar="A,B,…", help="Attackers, comma-separated; default: all.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", parser=whole_number(0), help="Of θ₀ and of the attackers.")
]
TaskRowsOption = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        parser=whole_number(4),
        help="Rows of each task (house prices), or of each class (digits; default 2500).",
    ),
]
LossOption = Annotated[
    str,
    typer.Option(
        "--loss", metavar="auto|squared|logistic", help="auto: squared for house prices, else logistic."
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="N", parser=whole_number(1), help="Most steps of cheap attackers; default 20000."
    ),
]
DenseStepsOption = Annotated[
    int | None,
    typer.Option(
        "--dense-steps",
        metavar="N",
        parser=whole_number(1),
        help="Most steps of attackers that pass over the data; default 3000, of digits 500.",
    ),
]


def attackers(
    data: PairOption = "house-prices",
    source: SourceOption = "auto",
    methods: MethodsOption = None,
    attackers: AttackersOption = None,
    seed: SeedOption = 0,
    epochs: EpochsOption = None,
    rows: TaskRowsOption = None,
    loss: LossOption = "auto",
    steps: StepsOption = None,
    dense_steps: DenseStepsOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Attack raw, initial and immunized features with a panel of training algorithms."""
    from condnum.methods import method_names
    from condnum.studies.attackers import AttackConfig, load

    parameters = {
        "data": data,
        "source": data_source(source),
        "methods": method_list(methods, method_names) or "",
        "attackers": attackers or "",
        "seed": seed,
        "epochs": epochs or 0,
        "rows": rows or 0,
        "loss": loss,
        "steps": steps or 0,
        "dense_steps": dense_steps or 0,
    }
    config = AttackConfig.from_parameters(**parameters)  # type: ignore[arg-type]
    pair = load(config)  # what cannot run fails here, before a kernel starts
    name = data if source == "auto" else f"{data} {source}"
    run_report(
        "attackers",
        parameters,
        out=out or default_folder("attackers", name),
        title=f"Attackers ({pair.label}): what immunization slows, and what it does not",
        checksums=lambda: {pair.label: pair.checksum},
        quiet=quiet,
    )
