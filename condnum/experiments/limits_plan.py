"""What the experiment on limits is made of: its data and its cells."""

from __future__ import annotations

from dataclasses import asdict

from condnum.data import Digits, TaskPair
from condnum.experiments import digit_pairs, house_prices
from condnum.experiments.limits_config import LimitsConfig
from condnum.sweep import CellPlan

#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "1"


def load(config: LimitsConfig) -> TaskPair | Digits:
    """Load the data of a configuration."""
    return (
        house_prices.load(config.house)
        if config.data == "house-prices"
        else digit_pairs.load(config.digits)[0]
    )


def plans(config: LimitsConfig, data: TaskPair | Digits) -> list[CellPlan]:
    """List the cells: methods and seeds of every pair, the limits of every pair, the race of the first."""
    if isinstance(data, TaskPair):
        base = house_prices.plans(config.house, data)
    else:
        base = digit_pairs.plans(config.digits, digit_pairs.load(config.digits)[1])
    common = {"data": config.data, "ridge_shares": config.ridge_shares, "ridge": config.ridge}

    def cell(plan: CellPlan, part: str, settings: dict[str, object]) -> CellPlan:
        """Return a cell of this experiment on the same data."""
        payload = {**plan.payload, **common, "part": part}
        if part != "method":
            payload |= {"method": {"pair": "limits", "race": "race"}[part], "seed": 0}
        return CellPlan("limits", payload, settings, plan.data_checksum, CODE_VERSION, data=plan.data)

    methods = [cell(plan, "method", plan.settings) for plan in base]
    pairs = list(dict.fromkeys(cell(plan, "pair", {}) for plan in base))
    settings = config.settings("ours")
    if not config.race_steps or settings is None:
        return methods + pairs
    raced = asdict(settings.with_overrides(steps=config.race_steps))
    return [*methods, *pairs, cell(base[0], "race", raced)]
