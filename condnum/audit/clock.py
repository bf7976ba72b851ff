"""Stages of an audit: how long each took, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from condnum.progress import report_event

#: Told the stage, and how much of how much of it is done.
OnStage = Callable[[str, int, int | None], None]

#: Reports within a stage.
Tick = Callable[[int, int | None], None]

STAGES = ("columns", "rows of D_P", "rows of D_H", "spectra", "alignment", "bootstrap", "attackers")


@dataclass
class Clock:
    """Times the stages, and tells a callback and `CONDNUM_PROGRESS` how far they are.

    Examples:
        >>> clock = Clock(lambda stage, done, total: print(stage, done, total))
        >>> with clock.stage("spectra") as tick:
        ...     tick(1, 2)
        spectra 0 None
        spectra 1 2
        >>> list(clock.seconds)
        ['spectra']
    """

    on_stage: OnStage | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Generator[Tick]:
        """Time a block."""
        started = time.perf_counter()

        def tick(done: int, total: int | None) -> None:
            report_event(stage=name, step=done, steps=total, done=len(self.seconds), total=len(STAGES))
            if self.on_stage is not None:
                self.on_stage(name, done, total)

        tick(0, None)
        try:
            yield tick
        finally:
            self.seconds[name] = time.perf_counter() - started
