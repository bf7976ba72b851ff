"""The experiments of the two scales of `condnum reproduce`, declared in `experiments.toml`."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from condnum.data.resolver import data_folders
from condnum.errors import check_known
from condnum.files import asset

SCALES = ("quick", "full")


@dataclass(frozen=True)
class Experiment:
    """One run, what it needs, and how it is shown."""

    name: str  # of its folder and page: "house-prices"
    title: str
    summary: str  # one sentence
    run: str  # the word after `condnum run`
    options: Mapping[str, Any] = field(default_factory=dict)  # "{cars}": a folder of images
    data: Sequence[str] = ()  # names of `condnum.data.catalog` whose checksums decide about reuse
    jobs: bool = True  # whether it runs in several processes
    core_seconds: float = 0.0  # of one core, about; 0 if not known
    scales: Sequence[str] = ()

    @property
    def typed(self) -> str:
        """The command as it can be typed."""
        words = (f" --{name.replace('_', '-')} {value}" for name, value in self.options.items())
        return re.sub(r"[{}]", "", f"condnum run {self.run}{''.join(words)}")

    @property
    def images(self) -> list[str]:
        """The names of its folders of images."""
        return re.findall(r"{(\w+)}", str(list(self.options.values())))

    @property
    def values(self) -> dict[str, Any] | None:
        """The options, folders of images filled in; None if one is not here."""
        here = {
            name: str(folder / name)
            for folder in reversed(data_folders())
            for name in self.images
            if (folder / name).is_dir()
        }
        if set(self.images) - set(here):
            return None
        return {
            name: value.format_map(here) if isinstance(value, str) else value
            for name, value in self.options.items()
        }


@cache
def _declared() -> tuple[Experiment, ...]:
    found = tomllib.loads(asset("report/experiments.toml"))
    return tuple(Experiment(**declared) for declared in found["experiment"])


def experiments(scale: str, only: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Return the experiments of a scale, in the order in which they run."""
    check_known("scale", scale, SCALES)
    found = [experiment for experiment in _declared() if scale in experiment.scales]
    for name in only:
        check_known("experiment", name, [experiment.name for experiment in found])
    return tuple(experiment for experiment in found if not only or experiment.name in only)
