"""In which respects a run differs from what was published, said from the run's own record."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from condnum.site.result import Result

#: Why numbers of other data are not compared.
EMBEDDED_NOTE = "other data than the published: not comparable, only the order of the methods is"

#: Settings of Table 3 in words.
NET_NAMES = {
    ("resnet18", "cars"): "ResNet18, ImageNet–Cars",
    ("vit", "cars"): "ViT, ImageNet–Cars",
    ("resnet18", "country211"): "ResNet18, ImageNet–Country211",
    ("vit", "country211"): "ViT, ImageNet–Country211",
}


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


def protocol(run: Result, summary: pd.DataFrame) -> list[str]:
    """Say how a run was made where the paper's was made differently.

    Args:
        run: A run of one of `PROTOCOLS`.
        summary: Its rows in the published measure, with the column `seeds`.

    Returns:
        Sentences.
    """
    paper = PROTOCOLS[run.study]
    seeds = int(summary["seeds"].max())
    said = [f"Seeds: {seeds} here, {paper.seeds} published."]
    steps = _steps(run)
    said.append(f"Budget: {steps}; the paper: {paper.budget}.")
    said.append(f"Measure: {paper.measure}.")
    rows = run.parameters.get("rows")
    if rows:
        said.append(f"Only the first {rows} rows of each task.")
    if run.older:
        said.append("This is an older result: the last attempt did not finish.")
    return said


def _steps(run: Result) -> str:
    """Say how many steps the trained methods took, from the run's results."""
    results = run.table("results")
    if results is None or "steps" not in results:
        return "not recorded"
    steps = results.loc[results["steps"] > 0].groupby("method", sort=False)["steps"].max()
    if steps.empty:
        return "nothing was trained"
    low, high = int(steps.min()), int(steps.max())
    how = "steps" if run.study == "deep" else "full-batch steps"
    return f"{low:,} {how}" if low == high else f"{low:,} to {high:,} {how}, by method"
