"""Where a result comes from: versions, machine, seeds, data, parameters, command and source revision.

No user name and no home path is recorded, so that a provenance file can be published as it is.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Distributions whose versions can change a number or a picture of a report.
PACKAGES = {
    "condnum": "condnum",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "torch": "torch",
    "sklearn": "scikit-learn",
    "plotly": "plotly",
    "papermill": "papermill",
}


def provenance(
    *,
    parameters: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    checksums: Mapping[str, str | None] | None = None,
    device: str | torch.device = "cpu",
    started: datetime | None = None,
    seconds: float | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Collect what somebody else needs to reproduce a run.

    Examples:
        >>> record = provenance(parameters={"rows": 10}, seeds=[0, 1])
        >>> record["parameters"], record["seeds"]
        ({'rows': 10}, [0, 1])
    """
    now = datetime.now(UTC)
    start = (started or now).astimezone(UTC)
    return {
        "versions": versions(),
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "device": describe_device(device),
        "command": command_line(sys.argv if command is None else command),
        "parameters": {name: without_home(value) for name, value in (parameters or {}).items()},
        "seeds": list(seeds or []),
        "data": {without_home(name): value for name, value in (checksums or {}).items()},
        "source": source_revision(),
        "started_utc": start.isoformat(timespec="seconds"),
        "duration_seconds": round(max(0.0, (now - start).total_seconds() if seconds is None else seconds), 3),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages of `PACKAGES`.

    Examples:
        >>> versions()["python"] == platform.python_version()
        True
    """
    found = {"python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_device(device: str | torch.device) -> dict[str, Any]:
    """Return the device's name, the CPU model and the number of torch threads.

    Examples:
        >>> describe_device("cpu")["device"]
        'cpu'
    """
    import torch

    resolved = torch.device(device)
    cpu = platform.processor() or platform.machine()
    with suppress(OSError):  # not Linux: the portable name is all there is
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        named = re.search(r"^model name\s*: *(.+)$", listed, re.MULTILINE | re.IGNORECASE)
        cpu = named.group(1).strip() if named else cpu
    name = torch.cuda.get_device_name(resolved) if resolved.type == "cuda" else cpu
    return {"device": str(resolved), "name": name, "cpu": cpu, "threads": torch.get_num_threads()}


def command_line(arguments: Sequence[str]) -> str:
    """Return the command as it could be typed: the program's bare name, quoted arguments.

    Examples:
        >>> command_line(["/usr/bin/condnum", "run", "house-prices", "--out", "my runs"])
        "condnum run house-prices --out 'my runs'"
    """
    if not arguments:
        return ""
    program = Path(arguments[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m condnum
    return shlex.join([name, *(without_home(word) for word in arguments[1:])])


def without_home(value: Any) -> Any:
    """Replace the home folder by `~` in text and paths; leave other values alone.

    Examples:
        >>> without_home(str(Path.home() / "runs"))
        '~/runs'
        >>> without_home(3)
        3
    """
    if not isinstance(value, str | os.PathLike):
        return value
    text, home = str(value), str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def source_revision(tree: Path | None = None) -> dict[str, Any] | None:
    """Return the git revision of the source tree and whether it has uncommitted changes."""
    folder = tree or Path(__file__).resolve().parents[2]
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
