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
    from condnum.studies.house_prices import HousePricesConfig, load

    source = data_source(data)
    # What cannot be had fails here, before a kernel is started for it.
    loaded = load(HousePricesConfig(source, features=features.value, rows=rows or None))
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
        title=f"Immunization of a linear feature extractor ({loaded.label})",
        checksums=lambda: {loaded.label: loaded.checksum},
        quiet=quiet,
    )


def valid_methods() -> list[str]:
    """Return the names of the methods, importing them only now."""
    from condnum.methods import method_names

    return list(method_names())
