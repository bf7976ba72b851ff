"""Print what linear heads read of an eraser by how it is released: one matrix, through its bottleneck, or in the bottleneck."""

import numpy as np
import pandas as pd

from condnum.experiments.erasure import split as split_of
from condnum.probing.heads import linear_heads, score
from condnum.theory.erasure import erasure

rows = []
for name in ("digits-8x8", "house-prices"):
    for seed in range(5):
        split = split_of(name, seed, 0)
        found, mean = erasure(*split.defender[:2], kind=split.defender.kind), split.defender.X.mean(axis=0)
        B, C = found.left, found.right
        seen = {"X @ (B @ C)": lambda X: X @ (B @ C), "(X @ B) @ C": lambda X: (X @ B) @ C, "X @ B": lambda X: X @ B}  # noqa: B023
        for released, features in seen.items():
            train, judge = (of._replace(X=features(of.X - mean)) for of in (split.attacker, split.judge))
            rows += [(name, head, released, score(p, train, judge)) for head, p in linear_heads(train, judge.X)]
table = pd.DataFrame(rows, columns=["pair", "head", "released", "score"])
print((100 * table.pivot_table(index=["pair", "head"], columns="released", values="score", aggfunc=np.mean, sort=False)).round(1).to_string())
