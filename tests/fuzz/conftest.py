"""What the fuzz tests share: a limit on the memory of each example, and mutations of valid files.

`make test` runs a few dozen derandomised examples per target, `make fuzz` thousands with new seeds. What
fuzzing has found is kept by name at the end of `test_loaders.py`.
"""

import os
import resource
import struct
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from condnum.errors import CondnumError

#: No example may add more to the process: with the libraries, 620 MiB, this makes 1 GiB. What earlier tests
#: have left in this process does not count; `test_memory_of_a_process` looks at the sum in a fresh one.
GROWTH_BYTES = 384 << 20
#: Nor reserve more than this in one go, touched or not.
RESERVE_BYTES = 1 << 30

EXAMPLES = int(os.environ.get("CONDNUM_FUZZ_EXAMPLES", "0"))

#: Numbers that headers lie with.
HUGE = [0, 1, 2, 255, 10**12, *(2**k - j for k in (15, 16, 31, 32, 40, 62, 63, 64) for j in (0, 1))]


def memory(name):
    """Return a line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def limited():
    """Run one example under the limits; a MemoryError inside it is a failure like any other."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + RESERVE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert memory("VmHWM") - before < GROWTH_BYTES


@pytest.fixture
def fuzz():
    """`fuzz(strategy, loader)`: every value is read, or refused by a `CondnumError` that says something."""

    def run(strategy, loader, *, examples=25):
        def example(value):
            refusal = "nothing was refused"
            with limited():
                try:
                    loader(value)
                except CondnumError as error:
                    refusal = str(error)
            assert len(refusal) > 10
            assert "Traceback" not in refusal

        options = {"suppress_health_check": list(HealthCheck), "print_blob": True}
        if EXAMPLES:
            options |= {"max_examples": EXAMPLES, "deadline": timedelta(seconds=40)}
        else:
            quick = [Phase.explicit, Phase.generate, Phase.shrink]
            options |= {"max_examples": examples, "deadline": None, "derandomize": True, "phases": quick}
        settings(**options)(given(strategy)(example))()

    return run


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
