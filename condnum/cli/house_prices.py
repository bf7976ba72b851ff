"""`condnum run house-prices`: the paper's linear experiment on the house-price pair (Sec. 5.1)."""

from __future__ import annotations

from condnum.cli.options import (
    DataOption,
    DebugOption,
    DeviceOption,
    EpochsOption,
    Features,
    FeaturesOption,
    JobsOption,
    MethodsOption,
    OutOption,
    QuietOption,
    RowsOption,
    SeedsOption,
    data_source,
    default_folder,
    method_list,
)
from condnum.cli.run import run_report


def house_prices(
    data: DataOption = "auto",
    methods: MethodsOption = None,
    seeds: SeedsOption = 5,
    epochs: EpochsOption = None,
    features: FeaturesOption = Features.PUBLISHED,
    rows: RowsOption = None,
    device: DeviceOption = "auto",
    jobs: JobsOption = 0,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Immunize a linear feature extractor on house prices and compare the methods (Sec. 5.1)."""
    from condnum.arrays import resolve_device

    source = data_source(data)
    parameters = {
        "data": source,
        "methods": method_list(methods, valid_methods),
        "seeds": seeds,
        "epochs": epochs,
        "features": features.value,
        "rows": rows,
        "device": str(resolve_device(device)),
        "jobs": jobs,
    }
    run_report(
        "house_prices",
        parameters,
        out=out or default_folder("house-prices", source),
        title="House prices: immunization of a linear feature extractor",
        checksums=lambda: data_checksums(source),
        quiet=quiet,
    )


def valid_methods() -> list[str]:
    """Return the names of the methods, importing them only now."""
    from condnum.methods import method_names

    return list(method_names())


def data_checksums(source: str) -> dict[str, str]:
    """Return the SHA-256 of the data that a run has used, by name.

    Args:
        source: `auto`, `embedded` or a path.

    Returns:
        By data set or file; empty when they are not found again.

    Examples:
        >>> list(data_checksums("embedded"))
        ['diabetes']
    """
    from condnum.data.embedded import load_diabetes_tasks
    from condnum.data.house_prices import FILES
    from condnum.data.resolver import find
    from condnum.report.provenance import file_checksum

    if source == "embedded":
        return {"diabetes": load_diabetes_tasks().checksum}
    found = find(FILES, "local" if source == "auto" else source)
    return {path.name: file_checksum(path) for path in found.paths} if found else {}
