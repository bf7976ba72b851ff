"""The core works with no optional dependency installed, and importing it changes nothing global."""

import subprocess
import sys

#: Top-level modules of every extra and of the command line; the core may import none of them.
NAMES = """
plotly anywidget IPython ipykernel ipywidgets nbconvert nbformat papermill pyarrow timm
torchvision safetensors dask distributed click
"""
OPTIONAL = NAMES.split()

BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)

sys.meta_path.insert(0, Blocker())
"""


STATE = """
import sys, condnum
assert 'torch' not in sys.modules  # importing does not wait for it
import numpy, torch, condnum.deep
assert not {'timm', 'torchvision', 'PIL'} & set(sys.modules)
torch.manual_seed(3); numpy.random.seed(3)
before = torch.get_rng_state(), numpy.random.get_state()[1].copy()
defaults = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
for name in condnum.__all__:
    assert getattr(condnum, name) is not None, name
from condnum.experiments import frame, house_prices
assert torch.equal(before[0], torch.get_rng_state())
assert (before[1] == numpy.random.get_state()[1]).all()
assert defaults == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
"""

USE = f"""
problem = condnum.ImmunizationProblem.from_pair(condnum.load_diabetes_tasks())
P, H = problem.benign, problem.harmful
for method in condnum.method_names():
    descends = hasattr(condnum.get_method(method), "defaults")
    theta = condnum.immunize(problem, method, **({{"steps": 3}} if descends else {{}})).theta
    rir = condnum.relative_immunization_ratio(theta, P, H)
    assert rir.rir > 0
assert rir.rir <= condnum.rir_limit(P, H).value * (1 + 1e-9)
curve = condnum.linear_probe(theta, H, steps=5)
assert curve.norm_ratio[0] == 1
assert condnum.alignment(theta, P).misalignment >= 0
done = frame.run(house_prices, jobs=1, quiet=True, data="embedded", methods="ours,identity", seeds=1, steps=2,
                 features="published", rows=0, device="cpu", full=True)
print(len(done.rows), len(done.table))
print(sorted(set(name.partition(".")[0] for name in sys.modules) & set({OPTIONAL!r})))
"""


def test_every_public_name_and_the_core_in_use_and_global_state_is_left_alone():
    command = [sys.executable, "-c", BLOCKER + STATE + USE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 2", "[]"]
