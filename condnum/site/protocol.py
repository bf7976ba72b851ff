"""In which respects a run differs from what was published, said from the run's own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from condnum.site.result import Result

#: Settings of Table 3 in words.
NET_NAMES = {
    ("resnet18", "cars"): "ResNet18, ImageNet–Cars",
    ("vit", "cars"): "ViT, ImageNet–Cars",
    ("resnet18", "country211"): "ResNet18, ImageNet–Country211",
    ("vit", "country211"): "ViT, ImageNet–Country211",
}

#: Ordered pairs of two different digits.
PAIRS = 90


@dataclass(frozen=True)
class Protocol:
    """What the paper did, for one kind of run."""

    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization
    measure: str  # of the published numbers


_LINEAR = "κ with a floor of 1e-6 under the eigenvalues (ridge), θ as trained, whose scale moves (i) and (ii)"

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1000 in Table 4, 10 in the release, which takes batches of 64",
        _LINEAR,
    ),
    "mnist": Protocol("mnist", 3, "30 epochs, in the release of batches of 64", _LINEAR),
    "digits": Protocol("mnist", 3, "30 epochs, in the release of batches of 64", _LINEAR),
    "deep": Protocol(
        "imagenet",
        3,
        "2 or 3 epochs over ImageNet",
        "κ over groups of 100 images, not stated how; here compact",
    ),
}

#: What a linear method does here and not in the paper, beside its budget.
_CHOICES = {
    "ours": "λ balanced at the first step, fixed in the paper",
    "opt_kappa": "λ balanced, on the floor of the release",
}


def differences(run: Result, summary: pd.DataFrame, data: str, *, comparable: bool) -> str:
    """Say in one line in what a run as a whole differs from the published."""
    paper, seeds, said = PROTOCOLS[run.study], int(summary["seeds"].max()), list[str]()
    if not comparable:
        said.append(
            "other data than the paper's: the numbers cannot be compared, the order of the methods can"
        )
    elif "test images" in data:
        said.append("the 10 000 test images, where the paper takes the 60 000 training images")
    pairs = int(summary["pairs"].iloc[0]) if "pairs" in summary else PAIRS
    if pairs != PAIRS:
        said.append(f"{pairs} of the {PAIRS} ordered pairs of digits")
    if seeds != paper.seeds:
        said.append(f"{seeds} seed{'s'[: seeds != 1]} instead of {paper.seeds}")
    if run.parameters.get("rows"):
        said.append(f"the first {run.parameters['rows']} rows of each task")
    if run.older:
        said.append("an older result than was asked for")
    return "; ".join(said)


def budgets(run: Result, results: pd.DataFrame, *, comparable: bool) -> Mapping[str, str]:
    """Say of each method how many steps it took, and what else it does not do as the paper."""
    if "steps" not in results:
        return {}
    how = "steps" if run.study == "deep" else "full-batch steps"
    choices = _CHOICES if comparable and run.study != "deep" else {}
    most = results.groupby("method", sort=False)["steps"].max()
    return {
        str(name): "; ".join(filter(None, (f"{int(steps):,} {how}", choices.get(str(name)))))
        for name, steps in most.items()
    }
