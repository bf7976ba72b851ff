"""Memory that a sweep takes: the peak of each process, as the system counted it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

#: Host and process id.
ProcessName: TypeAlias = tuple[str, int]

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class ProcessPeak:
    """Peak resident memory of a process until now."""

    process: ProcessName
    mib: float


@dataclass(frozen=True)
class PeakMemory:
    """Peak resident memory of a sweep: the sum of what each of its processes reached, at whatever time.

    No moment needs to have seen all of the peaks together, and shared libraries count once a
    process: the sum is an upper bound.

    Examples:
        >>> peaks = [ProcessPeak(("here", 1), 100.0), ProcessPeak(("here", 2), 80.0)]
        >>> peaks.append(ProcessPeak(("here", 2), 90.0))  # the same process, later
        >>> print(PeakMemory.of(peaks))
        190 MiB (sum of the peak resident memory of 2 processes)
    """

    mib: float
    processes: int

    @classmethod
    def of(cls, peaks: Iterable[ProcessPeak]) -> PeakMemory:
        """Add up the largest peak that is known of each process.

        Args:
            peaks: In any order; a process may have told more than once.

        Returns:
            The sum.
        """
        largest: dict[ProcessName, float] = {}
        for peak in peaks:
            largest[peak.process] = max(peak.mib, largest.get(peak.process, 0.0))
        return cls(sum(largest.values()), len(largest))

    def __str__(self) -> str:
        if self.processes == 1:
            return f"{self.mib:,.0f} MiB (peak resident memory of the process)"
        return f"{self.mib:,.0f} MiB (sum of the peak resident memory of {self.processes} processes)"


def own_peak() -> ProcessPeak:
    """Return the peak resident memory of this process.

    On Linux from `VmHWM`, elsewhere from `getrusage`: on Linux that number survives `exec`, and a
    worker would report what its parent held when it was started.

    Returns:
        The peak in MiB; 0 on a system that counts neither.

    Examples:
        >>> own_peak().mib > 1
        True
    """
    return ProcessPeak((socket.gethostname(), os.getpid()), _peak_bytes() / 2**20)


def _peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
