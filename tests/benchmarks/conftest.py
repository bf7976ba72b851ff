"""Benchmarks run with `make bench` only; they print times and ratios, and assert nothing about them.

`make bench-short`, a part of `.ci/run`, leaves out those that take more than seconds.
"""

import os
import statistics
import time

import pytest
from browser.conftest import chromium, needs_chromium, window  # ruff: ignore[unused-import]


@pytest.fixture(autouse=True)
def on_request():
    """Skip ordinary runs: other work on the machine would decide the result."""
    if not os.environ.get("CONDNUM_BENCH"):
        pytest.skip("a benchmark; run it with make bench")


@pytest.fixture
def seconds():
    """`seconds(call, rounds, clock)`: the median time of a call, after one that is not counted."""

    def measure(call, rounds=7, clock=time.perf_counter):
        call()
        times = []
        for _ in range(rounds):
            started = clock()
            call()
            times.append(clock() - started)
        return statistics.median(times)

    return measure
