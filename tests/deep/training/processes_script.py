"""Run one immunization on the processes of Fabric; the last one writes it. Started by test_processes.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric

sys.path.insert(0, str(Path(__file__).parent))

from conftest import gratings

from condnum.deep import Backbone, DeepSettings, evaluation_transform, immunize_backbone


def main(out: str, processes: int, method: str) -> None:
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto")
    fabric.launch()
    small = evaluation_transform(input_size=16, crop_pct=1.0)
    result = immunize_backbone(
        Backbone("test_resnet", num_classes=5, seed=1),
        gratings("angles", "angle", 240),
        gratings("frequencies", "frequency", 160),
        method=method,
        settings=DeepSettings(
            steps=6, batch_size=67, accumulate=2, learning_rate=1e-3, evaluate_every=3, precision="float64",
            groups=2, keep="last",
        ),
        transform_P=small,
        transform_H=small,
        fabric=fabric,
        checkpoint=Path(out).with_suffix(f".{processes}.ckpt"),
    )  # fmt: skip
    # Every process has the result; the last one writes it, to show that.
    if fabric.global_rank == processes - 1:
        torch.save(
            {
                "net": result.theta_I.model.state_dict(),
                "history": result.history.to_dict("list"),
                "weights": result.part_weights,
                "rank": fabric.global_rank,
            },
            out,
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
