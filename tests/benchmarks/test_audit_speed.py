"""The pass of an audit against the plain product that forms K, and its memory; both in one run.

`CONDNUM_AUDIT_ROWS=1000000` takes the full size, 1,000,000 × 512 float32: a file of 2 GB, removed again.
"""

import json
import os
import subprocess
import sys

import numpy as np

D, ROWS = 512, int(os.environ.get("CONDNUM_AUDIT_ROWS", "32768"))
HARMFUL_ROWS = max(4096, ROWS // 20)
LIMIT_MIB = 2048

#: In a process of its own: the peak of resident memory is that of the audit alone.
AUDIT = """
import json, re, sys, time
from pathlib import Path
from condnum.auditing import audit
start = time.perf_counter()
found = audit(sys.argv[1], sys.argv[2])
seconds = time.perf_counter() - start
peak_kib = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"seconds": seconds, "peak_mib": peak_kib / 1024, "rank": found.benign.rank}))
"""


def write(path, rows, seed):
    """Write rows of a random task in blocks."""
    generator = np.random.default_rng(seed)
    mixing = (generator.normal(size=(D, D)) / D**0.5).astype(np.float32)
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, D))
    for start in range(0, rows, 65536):
        part = values[start : start + 65536]
        part[:] = generator.standard_normal(part.shape, dtype=np.float32) @ mixing
    values.flush()


def test_one_pass_within_its_memory(seconds, tmp_path):
    for seed, (name, rows) in enumerate({"P": ROWS, "H": HARMFUL_ROWS}.items()):
        write(tmp_path / f"{name}.npy", rows, seed)
    command = [sys.executable, "-c", AUDIT, *(str(tmp_path / f"{name}.npy") for name in "PH")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for name in "PH":
        (tmp_path / f"{name}.npy").unlink()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    block = np.random.default_rng(0).standard_normal((32768, D))  # float64, as the audit sums
    product = seconds(lambda: block.T @ block, 3) * (ROWS + HARMFUL_ROWS) / len(block)
    total = found["seconds"]
    print(
        f"\n{ROWS:,d} + {HARMFUL_ROWS:,d} rows × {D} float32: {total:.1f} s, {total / product:.1f} times the "
        f"product that forms K; peak {found['peak_mib']:,.0f} MiB"
    )
    assert found["rank"] == D
    assert found["peak_mib"] <= LIMIT_MIB
