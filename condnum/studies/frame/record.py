"""What a run was, as its notebook writes it into the folder: data, device, seeds, warnings, verdicts."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from condnum.arrays import resolve_device
from condnum.files import RECORD, write_json
from condnum.machine import describe_device, provenance, source_revision, without_home
from condnum.theory.slowdown import LOST_FACTOR

#: The revision whose code this process has imported: asked for when the first study runs.
imported_revision = cache(source_revision)

_BEGUN = datetime.now(UTC)


def write_record(
    folder: str | Path,
    data: Mapping[str, str],
    *,
    seeds: Sequence[int] = (),
    device: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
    verdicts: Sequence[Mapping[str, Any]] = (),
    said: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    started: datetime = _BEGUN,
) -> str:
    """Write `provenance.json` and return its name; `condnum run` adds its command, page and checksums.

    `data` are checksums by name, `device` is what computed, `warnings` concern whoever started the run,
    and the command prints the lines `said` and the rows of the table `verdicts`.
    """
    own = provenance(parameters or {}, started, imported_revision())
    record = {
        **{name: value for name, value in own.items() if name != "command"},  # of a kernel: nobody typed it
        "device": describe_device("cpu") if device is None else dict(device),
        "data": {without_home(name): checksum for name, checksum in data.items()},
        "seeds": list(seeds),
        "warnings": list(warnings),
        "verdicts": [dict(row) for row in verdicts],
        "said": list(said),
    }
    write_json(Path(folder) / RECORD, record)
    return RECORD


def study_record(run: Any) -> dict[str, Any]:
    """Return what the run of a study was, as `write_record` takes it."""
    study, data, tables = run.study, run.data, run.tables
    origin, seeds = getattr(data, "provenance", None), getattr(study, "seeds", None)
    device = describe_device(resolve_device(getattr(study, "device", "cpu")), run.threads)
    if "://" in run.where:  # of a cluster
        device["name"] = "workers of a cluster"
    warnings = list(getattr(data, "warnings", ()))
    if origin is not None and not origin.known_checksum:
        warnings.append(
            f"SHA-256 {data.checksum} of {data.name} in {origin.location} is unknown; the results describe "
            "these files. Run condnum data for details."
        )
    label = getattr(data, "label", "")
    return {
        "data": {label: study.checksum(data)} if label else getattr(data, "checksums", {}),
        "seeds": range(seeds) if isinstance(seeds, int) else [study.seed] if hasattr(study, "seed") else (),
        "device": device | {"where": run.where},
        "parameters": {of.name: getattr(study, of.name) for of in dataclasses.fields(study)},
        "started": run.started,
        "warnings": warnings,
        "verdicts": [row for name in ("summary", "immunization") for row in verdict_rows(tables.get(name))],
    }


def verdict_rows(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return a row per method and convention, at unit scale of θ: the verdict, the ratios, both probes.

    The probes of the actual targets need so many times the steps that they need on raw inputs.
    """
    table = pd.DataFrame() if table is None else table.rename(columns=lambda name: name.removesuffix("_mean"))
    if not {"convention", "harmful_ratio"} <= set(table):
        return []
    rows = []
    for row in table.to_dict("records"):
        if row.get("theta_scale", "unit") != "unit":
            continue
        count = int(row.get("seeds", 1) * row.get("pairs", 1))
        good = round(float(row["success_rate" if "success_rate" in row else "success"]) * count)
        verdict = f"{'yes' if good == count else 'in part' if good else 'no'}, {good} of {count}"
        alone = good == count and row.get("benign_slowdown", 0) > LOST_FACTOR
        if lost := round(row.get("lost_rate", alone) * count):
            verdict += f", benign task lost in {lost}"
        label = ", ".join(str(row[name]) for name in ("backbone", "method", "extractor") if name in row)
        rows.append(verdict_row(label, row, verdict))
    return rows


def verdict_row(label: str, row: Mapping[str, Any], verdict: str) -> dict[str, Any]:
    """Return a row of the table that the command prints."""
    return {
        "method": label,
        "convention": row["convention"],
        "immunized": verdict,
        "(i)": row["harmful_ratio"],
        "(ii)": row["benign_ratio"],
        "RIR": row["rir"],
        "benign probe": row.get("benign_slowdown", math.nan),
        "harmful probe": row.get("harmful_slowdown", math.nan),
    }
