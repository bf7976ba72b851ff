"""What the fuzz tests share: a limit on time and memory for each example, mutations, and a table of figures.

`make test` runs a few dozen derandomised examples a target. `make fuzz` repeats each target with new seeds,
which it prints, until `CONDNUM_FUZZ_SECONDS` are over, and writes `CONDNUM_FUZZ_REPORT`. What it has found is
kept as a regression test by name in `test_regressions.py`.
"""

import csv
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from condnum.errors import CondnumError

#: No example may take longer: of the processor, and by the clock, on a machine with other work.
SECONDS, CLOCK_SECONDS = 10.0, 40.0
#: No example may add more to the process: with the libraries, 620 MiB, this makes 1 GiB. What earlier tests
#: have left in this process does not count; `test_memory_of_a_process` looks at the sum in a fresh one.
GROWTH_BYTES = 384 << 20
#: Nor reserve more than this in one go, touched or not.
RESERVE_BYTES = 1 << 30

BUDGET = float(os.environ.get("CONDNUM_FUZZ_SECONDS", "0"))
REPORT = os.environ.get("CONDNUM_FUZZ_REPORT", "")
EXAMPLES = 25 if not BUDGET else 150

#: Numbers that headers lie with.
HUGE = [
    0,
    1,
    2,
    255,
    10**12,
    *(2**k for k in (15, 16, 31, 32, 40, 62, 63, 64)),
    2**31 - 1,
    2**32 - 1,
    2**63 - 1,
]


@dataclass
class Figures:
    """What one target went through."""

    target: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0
    crashed: int = 0
    seeds: list[int] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "examples": self.accepted + self.refused + self.crashed,
            "accepted": self.accepted,
            "refused": self.refused,
            "crashed": self.crashed,
            "seconds": round(self.seconds, 1),
            "slowest_seconds": round(self.slowest, 2),
            "memory_mib": round(self.peak / 2**20),
            "rounds": len(self.seeds),
            "first_seed": self.seeds[0] if self.seeds else "derandomised",
        }


_FIGURES: list[Figures] = []


def _status(name: str) -> int:
    """Return a line of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def limited(figures: Figures) -> Generator[None]:
    """Run one example under the limits; a MemoryError inside it is a failure like any other."""
    with Path("/proc/self/clear_refs").open("w") as refs:
        refs.write("5")  # the peak starts anew
    before = _status("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + RESERVE_BYTES, hard))
    began, busy = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        taken, peak = time.monotonic() - began, max(0, _status("VmHWM") - before)
        figures.seconds += taken
        figures.slowest, figures.peak = max(figures.slowest, taken), max(figures.peak, peak)
    assert taken < CLOCK_SECONDS, f"took {taken:.1f} s"
    assert time.process_time() - busy < SECONDS, f"took {time.process_time() - busy:.1f} s of the processor"
    assert peak < GROWTH_BYTES, f"took {peak / 2**20:.0f} MiB"


Loader = Callable[[Any], Any]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`fuzz(strategy, loader)`: every value is read, or refused by a `CondnumError` that says something."""
    targets = max(1, sum("fuzz" in getattr(item, "fixturenames", ()) for item in request.session.items))

    def run(strategy: st.SearchStrategy[Any], loader: Loader, *, examples: int = EXAMPLES) -> None:
        figures = Figures(request.node.name)
        _FIGURES.append(figures)

        def example(value: Any) -> None:
            refusal = ""
            figures.crashed += 1  # unless it comes back
            with limited(figures):
                try:
                    loader(value)
                    figures.accepted += 1
                except CondnumError as error:
                    refusal = str(error)
                    figures.refused += 1
            assert not refusal or len(refusal) > 10, "says nothing"
            assert "Traceback" not in refusal
            figures.crashed -= 1

        options: dict[str, Any] = {
            "max_examples": examples,
            "deadline": None,
            "suppress_health_check": list(HealthCheck),
            "print_blob": True,
        }
        if not BUDGET:
            quick = [Phase.explicit, Phase.generate, Phase.shrink]
            settings(**options, derandomize=True, database=None, phases=quick)(given(strategy)(example))()
        else:
            options["database"] = DirectoryBasedExampleDatabase(".hypothesis/fuzz")
            end, chance = time.monotonic() + BUDGET / targets, random.SystemRandom()
            while time.monotonic() < end:
                figures.seeds.append(chance.randrange(2**32))
                print(f"{figures.target}: seed {figures.seeds[-1]}")
                seed(figures.seeds[-1])(settings(**options)(given(strategy)(lambda value: example(value))))()

    return run


def pytest_sessionfinish() -> None:
    """Write the figures of a long run."""
    if REPORT and _FIGURES:
        Path(REPORT).parent.mkdir(parents=True, exist_ok=True)
        with open(REPORT, "w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, list(_FIGURES[0].row()), lineterminator="\n")
            table.writeheader()
            table.writerows(figures.row() for figures in _FIGURES)


@st.composite
def mutated(draw: Callable[..., Any], originals: list[bytes]) -> bytes:
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
def damaged() -> Callable[[list[bytes]], st.SearchStrategy[bytes]]:
    """`damaged(files)`: mutations of valid files."""
    return mutated


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """`written(name, content)`: the path of a file with this content."""

    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write
