"""`condnum run deep`: the paper's deep-net experiment on any timm backbone and any images (Sec. 5.2)."""

from __future__ import annotations

from typing import Annotated

import typer

from condnum.cli.options import (
    DebugOption,
    DeviceOption,
    EpochsOption,
    MethodsOption,
    OutOption,
    QuietOption,
    SeedsOption,
    default_folder,
    method_list,
    whole_number,
)
from condnum.cli.run import run_report

BackboneOption = Annotated[
    str,
    typer.Option("--backbone", metavar="A,B,…", help="timm models, comma-separated; default: the data's."),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="none|timm|FILE",
        help="θ₀: drawn and trained here on D_P; timm's, downloaded; or a safetensors file or state dict. "
        "Default: none for digits, timm for images of your own.",
    ),
]
PretrainOption = Annotated[
    str,
    typer.Option(
        "--pretrain",
        metavar="IMAGES",
        help="D_P: a folder, mnist:0-4, digits-8x8:0-4 or timm:NAME[@FOLDER].",
    ),
]
HarmfulOption = Annotated[str, typer.Option("--harmful", metavar="IMAGES", help="D_H, likewise.")]
PresetOption = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="Settings of Table 4: resnet18-cars, resnet18-country211, vit-cars or vit-country211.",
    ),
]


def deep(
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="embedded|mnist",
            help="Digits 0-4 against 5-9: 8×8 ones, or MNIST, as found: condnum's box has its 10 000 test "
            "images, of which every fifth is held back for the test.",
        ),
    ] = "embedded",
    pretrain: PretrainOption = "",
    harmful: HarmfulOption = "",
    backbone: BackboneOption = "",
    weights: WeightsOption = "",
    preset: PresetOption = "",
    methods: MethodsOption = None,
    seeds: SeedsOption = 3,
    epochs: EpochsOption = None,
    pretrain_epochs: Annotated[
        int | None,
        typer.Option(
            "--pretrain-epochs",
            metavar="N",
            parser=whole_number(1),
            help="Epochs of training θ₀ on D_P, with a new head; for weights of other classes than D_P's.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            parser=whole_number(2),
            help="Largest number of images per class and split.",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", metavar="PIXELS", parser=whole_number(8), help="Side of the images."),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option("--groups", metavar="N", parser=whole_number(1), help="Groups of Eq. 17; default 20."),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size", metavar="N", parser=whole_number(2), help="Images of a group; default 100."
        ),
    ] = None,
    device: DeviceOption = "auto",
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", parser=whole_number(0), help="Processes that decode images."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            parser=whole_number(0),
            help="Worker processes; 0: one for each core with digits on a CPU, else one.",
        ),
    ] = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Immunize the last stage of a backbone against linear probing of D_H, and measure it (Sec. 5.2).

    Image folders: ROOT/train/<class>/* with ROOT/test/<class>/* (or val, valid), or ROOT/<class>/*, of which
    a fifth is the test set. ImageNet: ROOT/train/<wnid>/*.JPEG and ROOT/val/<wnid>/*.JPEG. Stanford Cars:
    ROOT/train/<model>/* and ROOT/test/<model>/*, or as released (cars_train, cars_test, devkit).
    Country211: ROOT/train/<country>/*, ROOT/valid and ROOT/test. Nothing is downloaded but timm's weights.

    500 training images of each task, a tenth at least and a fifth at most, are held out before θ₀ is trained:
    θ is chosen by them, and reported on training and on test images.
    """
    from condnum.arrays import resolve_device
    from condnum.studies.deep_cells import METHODS, DeepConfig, weights_source
    from condnum.studies.deep_nets import prepare

    parameters = {
        "data": data,
        "pretrain": pretrain,
        "harmful": harmful,
        "backbone": backbone,
        "weights": weights_source(weights),
        "preset": preset,
        "methods": method_list(methods, lambda: METHODS) or "",
        "seeds": seeds,
        "epochs": epochs or 0,
        "pretrain_epochs": pretrain_epochs or 0,
        "limit": limit or 0,
        "image_size": image_size or 0,
        "groups": groups or 20,
        "group_size": group_size or 100,
        "device": str(resolve_device(device)),
        "workers": workers or 0,
    }
    config = DeepConfig.from_parameters(**parameters)  # type: ignore[arg-type]
    prepared = prepare(config)  # what cannot run fails here, before a kernel starts
    run_report(
        "deep_nets",
        {**parameters, "jobs": jobs},
        out=out or default_folder("deep", config.tasks[1] if pretrain else data),
        title=f"Deep nets: immunization of {', '.join(config.chosen_backbones)}",
        checksums=lambda: prepared.tasks.checksums,
        quiet=quiet,
    )
