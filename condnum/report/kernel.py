"""A Jupyter kernel that runs this very interpreter and never outlives its block.

Kernel names such as `python3` resolve to whatever is registered on a machine; a report must be
computed by the environment that was asked for it. Nothing is registered anywhere for that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from condnum.extras import require

#: The name that notebooks carry in their metadata.
KERNEL_NAME = "python3"

#: Seconds that an interrupted kernel has to finish the file it is writing.
SHUTDOWN_SECONDS = 5.0


@contextmanager
def running_kernel(
    *, cwd: Path, environment: Mapping[str, str] | None = None, log: Path | None = None
) -> Generator[Any, None, None]:
    """Start an IPython kernel of the current interpreter and stop it when the block ends.

    A kernel that is still busy (the user pressed Ctrl-C, a cell ran into its time limit) is
    interrupted first, so that it can finish the file that it is writing, and killed if it does not.
    """
    require("ipykernel", "notebooks")
    manager_module = require("jupyter_client.manager", "notebooks")
    run_sync = require("jupyter_core.utils", "notebooks").run_sync
    manager = manager_module.AsyncKernelManager(
        kernel_name=KERNEL_NAME, kernel_spec_manager=_this_interpreter(), shutdown_wait_time=SHUTDOWN_SECONDS
    )
    group: int | None = None
    with open(log or os.devnull, "ab") as output:
        try:
            run_sync(manager.start_kernel)(
                cwd=str(cwd), env={**os.environ, **(environment or {})}, stdout=output, stderr=output
            )
            group = getattr(manager.provisioner, "pgid", None)
            yield manager
        finally:
            try:
                _stop(manager, run_sync)
            finally:
                _kill_group(group)


def _this_interpreter() -> Any:
    """Return a kernel spec manager that knows one kernel: the current interpreter."""
    specs = require("jupyter_client.kernelspec", "notebooks")

    class CurrentInterpreterSpecs(specs.KernelSpecManager):  # type: ignore[name-defined]
        """Answers every name with the current interpreter."""

        def get_kernel_spec(self, kernel_name: str) -> Any:
            """Return the spec, whatever is registered under this name."""
            return specs.KernelSpec(
                argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                display_name="Python 3",
                language="python",
            )

    return CurrentInterpreterSpecs()


def _stop(manager: Any, run_sync: Any) -> None:
    """Interrupt and shut the kernel down; kill it if that fails or is itself interrupted."""
    if not manager.has_kernel:
        return
    try:
        run_sync(manager.shutdown_kernel)(now=False)
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the process has gone meanwhile: as wanted
            run_sync(manager.shutdown_kernel)(now=True)
        raise


def _kill_group(group: int | None) -> None:
    """Kill what is left of the kernel's process group: worker processes that outlive it."""
    if group and group != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left
            os.killpg(group, signal.SIGKILL)
