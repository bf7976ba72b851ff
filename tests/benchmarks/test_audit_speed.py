"""The pass of an audit against the plain product that forms K, and its memory; both in one run.

`CONDNUM_AUDIT_ROWS=1000000` takes the full size, 1 000 000 × 512 float32: a file of 2 GB, removed
again.
"""

import json
import os
import subprocess
import sys

import numpy as np

D = 512
ROWS = int(os.environ.get("CONDNUM_AUDIT_ROWS", "65536"))
HARMFUL_ROWS = max(4096, ROWS // 20)
SHARE = 0.5  # of the plain product's speed
LIMIT_MIB = 2048

#: In a process of its own: the peak of resident memory is that of the audit alone.
AUDIT = """
import json, re, sys, time
from pathlib import Path
from condnum.audit import audit
started = time.perf_counter()
found = audit(sys.argv[1], sys.argv[2], bootstrap=int(sys.argv[3]))
peak_kib = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"seconds": dict(found.seconds), "total": time.perf_counter() - started,
                  "peak_mib": peak_kib / 1024, "rank": found.pretrain.rank, "rows": found.pretrain.rows}))
"""

#: The product that forms K: float64, as the audit sums, on blocks that are in memory already.
PRODUCT = """
import json, time
import numpy as np
D, rows = {D}, {rows}
left = np.random.default_rng(0).standard_normal((65536, D))
right, blocks = left.copy(), max(1, rows // 65536)
left.T @ right
started = time.perf_counter()
for _ in range(blocks):
    left.T @ right
print(json.dumps((time.perf_counter() - started) * rows / (blocks * 65536)))
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
    del values


def output(*arguments):
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_pass_runs_at_half_the_speed_of_the_plain_product(benchmark, tmp_path):
    P, H = tmp_path / "P.npy", tmp_path / "H.npy"
    try:
        write(P, ROWS, 0)
        write(H, HARMFUL_ROWS, 1)
        before = output(PRODUCT.format(D=D, rows=ROWS + HARMFUL_ROWS))
        found = benchmark.pedantic(lambda: output(AUDIT, str(P), str(H), "20"), rounds=1)
        after = output(PRODUCT.format(D=D, rows=ROWS + HARMFUL_ROWS))
    finally:
        P.unlink(missing_ok=True)
        H.unlink(missing_ok=True)
    product = min(before, after)  # the less disturbed one
    reading = found["seconds"]["rows of D_P"] + found["seconds"]["rows of D_H"]
    rest = ", ".join(f"{k} {v:.1f} s" for k, v in found["seconds"].items() if not k.startswith("rows"))
    print(
        f"\n{ROWS:,d} + {HARMFUL_ROWS:,d} rows × {D} float32: read and summed in {reading:.2f} s; the plain "
        f"product takes {product:.2f} s: {product / reading:.0%} of its speed; peak "
        f"{found['peak_mib']:,.0f} MiB; then {rest}; the whole audit {found['total']:.1f} s"
    )
    assert (found["rows"], found["rank"]) == (ROWS, D)
    assert found["peak_mib"] <= LIMIT_MIB
    assert product / reading >= SHARE
