"""How long a reader waits: from the change of a trait to the figure's new data, per explorer.

Run with `make bench`. An absolute time, since a person's perception sets it: 100 ms feels immediate. The
message to the page and the drawing there come on top: `test_pages.py` prints the sum.
"""

from itertools import count

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.alignment_lab import alignment_lab
from condnum.lessons.explorers import EXPLORERS

#: Explorer, settings, the trait that is moved, its values in turn, seconds promised.
CASES = [
    ("GradientDescentExplorer", {}, "kappa", np.geomspace(2, 500, 40), 0.1),
    ("GradientDescentExplorer", {"axes": "fit"}, "step", range(40), 0.1),
    ("SpectrumDescentExplorer", {"dimension": 64}, "kappa", np.geomspace(2, 1e6, 40), 0.1),
    ("SpectrumDescentExplorer", {"dimension": 256}, "kappa", np.geomspace(2, 1e6, 40), 0.3),
    ("AlignmentExplorer", {"dimension": 64}, "angle", np.linspace(1, 89, 43), 0.1),
    ("AlignedTasksExplorer", {}, "exponent", np.linspace(0, 1, 41), 0.1),
    ("CeilingExplorer", {"dimension": 12}, "angle", np.linspace(1, 89, 43), 0.1),
    ("RidgeCeilingExplorer", {}, "angle", np.linspace(1, 89, 43), 0.1),
    ("OwnDataExplorer", {"example": "digits"}, "tolerance", np.geomspace(1, 1e8, 40), 0.1),
    ("RegularizerExplorer", {"dimension": 64}, "step", np.geomspace(0.03, 30, 40), 0.1),
    ("RegularizerPathExplorer", {"sizes": "constant"}, "share", np.geomspace(0.02, 0.9, 40), 0.1),
    ("JointStepsExplorer", {}, "angle", np.linspace(1, 89, 40), 0.1),
]


@pytest.mark.parametrize("data", ["house-prices", "mnist:4-9"])
def test_response_of_the_lab(benchmark, data, tmp_path):
    """Scrubbing through what is kept; one short training stands for all, which are kept alike."""
    lab = alignment_lab(data, methods="r_ill_only,max_rir", steps=12, out=tmp_path)
    explorer = lab(extractor="r_ill_only", compare="max_rir")
    median, late = timed(benchmark, explorer, "training", range(40))
    print(f"\n{lab.__name__}, training: median {1000 * median:.0f} ms, p95 {1000 * late:.0f} ms")
    assert median <= 0.1


@pytest.mark.parametrize(("name", "settings", "trait", "values", "promised"), CASES)
def test_response(benchmark, name, settings, trait, values, promised):
    explorer = EXPLORERS[name](**settings)
    median, late = timed(benchmark, explorer, trait, values)
    print(f"\n{name}({settings}), {trait}: median {1000 * median:.0f} ms, p95 {1000 * late:.0f} ms")
    assert median <= promised


def timed(benchmark, explorer, trait, values):
    """Move a trait through its values, and return the median and the 95th percentile of the seconds."""
    kind = type(getattr(explorer, trait))
    turns = count()

    def move():
        setattr(explorer, trait, kind(values[next(turns) % len(values)]))

    move()
    drawn = list[str]()
    explorer.observe(lambda change: drawn.append(change["new"]), "payload")
    benchmark.pedantic(move, rounds=40, warmup_rounds=2)
    assert explorer.error == ""
    assert len(drawn) >= 40  # each round drew
    times = np.array(benchmark.stats.stats.data)
    return np.median(times), np.percentile(times, 95)
