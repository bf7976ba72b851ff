"""Benchmarks run with `make bench` only: other work on the machine would decide the result."""

import pytest
from browser.conftest import (  # ruff: ignore[unused-import]
    chromium,
    lab,
    lab_server,
    needs_chromium,
    window,
)


@pytest.fixture(autouse=True)
def on_request(request):
    """Skip ordinary runs."""
    if not request.config.getoption("--benchmark-only"):
        pytest.skip("a benchmark; run it with make bench")
