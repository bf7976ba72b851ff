"""What the fuzz tests share: a limit on time and memory for each example, mutations, and a table of figures.

`make test` runs a few dozen derandomised examples a target. `make fuzz` repeats each target with new seeds,
which it prints, until `CONDNUM_FUZZ_SECONDS` are over, and writes `CONDNUM_FUZZ_REPORT`. What it has found is
kept by name at the end of `test_loaders.py`.
"""

import os
import random
import resource
import struct
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from condnum.errors import CondnumError

#: No example of `make fuzz` may take longer: of the processor, and by the clock, beside other work.
SECONDS, CLOCK_SECONDS = 10.0, 40.0
#: No example may add more to the process: with the libraries, 620 MiB, this makes 1 GiB. What earlier tests
#: have left in this process does not count; `test_memory_of_a_process` looks at the sum in a fresh one.
GROWTH_BYTES = 384 << 20
#: Nor reserve more than this in one go, touched or not.
RESERVE_BYTES = 1 << 30

BUDGET = float(os.environ.get("CONDNUM_FUZZ_SECONDS", "0"))
REPORT = os.environ.get("CONDNUM_FUZZ_REPORT", "")

#: Numbers that headers lie with.
HUGE = [0, 1, 2, 255, 10**12, *(2**k - j for k in (15, 16, 31, 32, 40, 62, 63, 64) for j in (0, 1))]

#: A row a target: what it went through.
FIGURES = []


def memory(name):
    """Return a line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def limited(figures):
    """Run one example under the limits; a MemoryError inside it is a failure like any other."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + RESERVE_BYTES, hard))
    began, busy = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        taken, peak = time.monotonic() - began, max(0, memory("VmHWM") - before) / 2**20
        figures["seconds"] += taken
        figures["slowest_seconds"] = max(figures["slowest_seconds"], taken)
        figures["memory_mib"] = max(figures["memory_mib"], peak)
    busy = time.process_time() - busy
    assert not BUDGET or taken < CLOCK_SECONDS, f"took {taken:.1f} s"
    assert not BUDGET or busy < SECONDS, f"took {busy:.1f} s of the processor"
    assert peak < GROWTH_BYTES / 2**20, f"took {peak:.0f} MiB"


@pytest.fixture
def fuzz(request):
    """`fuzz(strategy, loader)`: every value is read, or refused by a `CondnumError` that says something."""
    targets = max(1, sum("fuzz" in getattr(item, "fixturenames", ()) for item in request.session.items))

    def run(strategy, loader, *, examples=150 if BUDGET else 25):
        counted = ["examples", "accepted", "refused", "crashed", "seconds", "slowest_seconds", "memory_mib"]
        figures = dict.fromkeys(["target", *counted, "rounds"], 0)
        figures |= {"target": request.node.name, "first_seed": "derandomised"}
        FIGURES.append(figures)

        def example(value):
            refusal = None
            figures["examples"] += 1
            figures["crashed"] += 1  # unless it comes back
            with limited(figures):
                try:
                    loader(value)
                except CondnumError as error:
                    refusal = str(error)
            figures["accepted" if refusal is None else "refused"] += 1
            assert refusal is None or len(refusal) > 10, "says nothing"
            assert "Traceback" not in (refusal or "")
            figures["crashed"] -= 1

        options = {
            "max_examples": examples, "deadline": None, "suppress_health_check": list(HealthCheck),
            "print_blob": True,
        }  # fmt: skip
        if not BUDGET:
            quick = [Phase.explicit, Phase.generate, Phase.shrink]
            settings(**options, derandomize=True, database=None, phases=quick)(given(strategy)(example))()
            return
        options["database"] = DirectoryBasedExampleDatabase(".hypothesis/fuzz")
        end, chance = time.monotonic() + BUDGET / targets, random.SystemRandom()
        while time.monotonic() < end:
            number = chance.randrange(2**32)
            print(f"{figures['target']}: seed {number}")
            figures["first_seed"] = figures["first_seed"] if figures["rounds"] else number
            figures["rounds"] += 1
            seed(number)(settings(**options)(given(strategy)(lambda value: example(value))))()

    return run


def pytest_sessionfinish():
    """Write the figures of a long run."""
    if REPORT and FIGURES:
        Path(REPORT).parent.mkdir(parents=True, exist_ok=True)
        digits = {"seconds": 1, "slowest_seconds": 2, "memory_mib": 0}
        pd.DataFrame(FIGURES).round(digits).astype({"memory_mib": int}).to_csv(REPORT, index=False)


@st.composite
def mutated(draw, originals):
    """Draw a valid file and damage it a few times, mostly where headers and directories are."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 5))):
        size = len(content)
        ends = st.integers(0, min(size, 200)), st.integers(max(0, size - 200), size)
        place = draw(st.one_of(*ends, st.integers(0, size)))
        match draw(st.sampled_from(("byte", "cut", "remove", "insert", "number", "twice", "text"))):
            case "byte" if place < size:
                content[place] = draw(st.integers(0, 255))
            case "cut":
                del content[place:]
            case "remove":
                del content[place : place + draw(st.integers(1, 64))]
            case "insert":
                content[place:place] = draw(st.binary(max_size=32))
            case "number":
                value, order = draw(st.sampled_from(HUGE)), draw(st.sampled_from(("<I", ">I", "<Q", ">Q")))
                packed = struct.pack(order, value % (2**32 if order[1] == "I" else 2**64))
                content[place : place + len(packed)] = packed
            case "twice":
                content[place:place] = content[place : place + draw(st.integers(1, 256))]
            case "text":
                odd = [*b'\0 NaN 1e999 - " ,,, \xff\xfe'.split(b" "), b"\r\n", "ł\u202e𝟙".encode()]
                content[place:place] = draw(st.sampled_from(odd))
    return bytes(content)


@pytest.fixture(scope="session")
def damaged():
    """`damaged(files)`: mutations of valid files."""
    return mutated


@pytest.fixture
def written(tmp_path):
    """`written(name, content)`: the path of a file with this content."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write
