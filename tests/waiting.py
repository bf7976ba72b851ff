"""Waiting for a state instead of for a time: as long as it takes, and no longer than what brings it about."""

import time
from collections.abc import Callable
from typing import Any

#: Far beyond what a busy machine needs; only a mistake waits so long.
PATIENCE = 300


def wait_until(state: Callable[[], Any], process: Any = None) -> Any:
    """Return what `state` returns once that is true; fail if the process on which it depends ends before."""
    limit = time.monotonic() + PATIENCE
    while not (found := state()):
        if process is not None and process.poll() is not None:
            found = state()  # its last act
            assert found, f"ended with status {process.returncode} before the state was reached"
            break
        assert time.monotonic() < limit, f"the state was not reached within {PATIENCE} s"
        time.sleep(0.02)
    return found
