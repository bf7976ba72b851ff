"""Each experiment on small input, run once for all tests of it."""

from functools import cache

from condnum.experiments import (
    attackers,
    corrections,
    deep,
    deep_attackers,
    erasure,
    frame,
    house_prices,
    limits,
    mnist,
)

TABLES = {"data": "embedded", "methods": "", "seeds": 2, "steps": 4, "rows": 0, "device": "cpu", "full": True}
DIGITS = {"data": "digits", "pairs": "4-7,9-0", "methods": "ours,initial,max_rir,pareto"}
NETS = {"data": "embedded", "seeds": 1, "device": "cpu", "full": True, "benign": "", "harmful": ""}
NETS |= {"weights": "", "methods": "ours,r_ill_only", "steps": 0, "limit": 0, "workers": 0, "image_size": 16}
NETS |= {"backbone": "test_resnet"}

#: Parameters of each experiment.
SMALL = {
    house_prices: TABLES | {"features": "published"},
    mnist: {key: of for key, of in TABLES.items() if key != "rows"} | DIGITS | {"labels": "one_vs_rest"},
    limits: {
        "data": "embedded", "methods": "ours,identity,max_rir,pareto,initial", "seeds": 2, "steps": 40,
        "pairs": "", "full": True,
    },
    attackers: {
        "data": "embedded", "methods": "initial,ours", "attackers": "gd,cg,whiten,closed_form", "seed": 1,
        "steps": 20, "rows": 0, "attack_steps": 5000, "dense_attack_steps": 100, "full": True,
    },
    erasure: {"data": "wine,diabetes", "seeds": 2, "rows": 0, "full": True},
    corrections: {},
    deep: NETS | {
        "preset": "", "steps": 6, "pretrain_epochs": 2, "finetune_benign": 0, "limit": 30, "groups": 3,
        "group_size": 40,
    },
    deep_attackers: NETS | {
        "models": "", "attackers": "head-sgd,ridge", "full": False, "passes": 5, "trials": 2,
        "test_images": 60,
    },
}  # fmt: skip


def run(experiment, **changes):
    """Run an experiment with some parameters changed, in this process."""
    return frame.run(experiment, jobs=1, quiet=True, **SMALL[experiment] | changes)


#: The run of an experiment as it stands in `SMALL`.
finished = cache(run)
