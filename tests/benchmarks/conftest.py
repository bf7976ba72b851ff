"""Benchmarks run with `make bench` only: other work on the machine would decide the result."""

import pytest


@pytest.fixture(autouse=True)
def on_request(request):
    """Skip ordinary runs."""
    if "benchmark" in request.fixturenames and not request.config.getoption("--benchmark-only"):
        pytest.skip("a benchmark; run it with make bench")
