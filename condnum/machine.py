"""The machine: its threads, so that cells side by side do not fight for the cores, its memory, its name."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condnum.errors import DeviceError

if TYPE_CHECKING:
    import torch

#: Distributions whose versions can change a number or a picture of a report.
PACKAGES = ("condnum", "numpy", "scipy", "pandas", "torch", "timm", "scikit-learn", "plotly", "papermill")


# Threads.


@contextmanager
def limited_threads(threads: int | None) -> Generator[None, None, None]:
    """Limit the threads of torch and BLAS while the block runs."""
    if threads is None:
        yield
        return
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    torch = sys.modules.get("torch")  # an explorer that needs none does not wait for it
    before = torch.get_num_threads() if torch else 0
    with threadpool_limits(limits=threads):
        if torch:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


# Memory.


@contextmanager
def memory_advice(batch_size: int, device: torch.device, what: str) -> Generator[None]:
    """Turn running out of memory in the block into an error that names the batch size to try."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        smaller = (
            f"try a batch size of {batch_size // 2}" if batch_size > 1 else "a single image does not fit"
        )
        raise DeviceError(
            f"{what}: out of memory on {device} with a batch size of {batch_size}; {smaller}, or use smaller "
            "images, a smaller backbone or another device."
        ) from error


# Processes.

#: Seconds between two looks whether the parent still lives.
_WATCH_SECONDS = 1.0


def end_with(parent: int) -> None:
    """Let this process end once its parent was killed: nobody would take its results."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="condnum-parent", daemon=True).start()


def end_group(leader: int) -> None:
    """Kill a process and those that it started; where there are no process groups (Windows), it alone."""
    with suppress(ProcessLookupError, PermissionError):  # nobody left
        if hasattr(os, "killpg"):
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGTERM)  # ends it at once there


# Where a result comes from.


def provenance(
    parameters: Mapping[str, Any], started: datetime, source: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Collect what somebody else needs to reproduce a run; `source` is its revision, as `source_revision`."""
    now = datetime.now(UTC)
    return {
        "versions": versions(),
        "platform": {name: getattr(platform, name)() for name in ("system", "release", "machine")},
        "parameters": {name: without_home(value) for name, value in parameters.items()},
        "source": None if source is None else dict(source),
        "started_utc": started.astimezone(UTC).isoformat(timespec="seconds"),
        "duration_seconds": round(max(0.0, (now - started).total_seconds()), 3),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages of `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def describe_device(device: str | torch.device, threads: int | None = None) -> dict[str, Any]:
    """Return the device's name, the CPU model and the number of threads (None: torch's here)."""
    import torch

    resolved = torch.device(device)
    cpu = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux: the portable name is all there is
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        named = re.search(r"^model name\s*: *(.+)$", listed, re.MULTILINE | re.IGNORECASE)
        cpu = named.group(1).strip() if named else cpu
    name = torch.cuda.get_device_name(resolved) if resolved.type == "cuda" else cpu
    return {"device": str(resolved), "name": name, "cpu": cpu, "threads": threads or torch.get_num_threads()}


def without_home(value: Any) -> Any:
    """Replace the home folder by `~` in text and paths; leave other values alone."""
    if not isinstance(value, str | os.PathLike):
        return value
    text, home = str(value), str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def source_revision(tree: Path | None = None) -> dict[str, Any] | None:
    """Return the git revision of the source tree and whether it has uncommitted changes."""
    folder = tree or Path(__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 20, "check": True}
    try:
        revision = subprocess.run([*git, "rev-parse", "HEAD"], **options).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain"], **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": revision, "dirty": bool(status)}
