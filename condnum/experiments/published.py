"""The paper's published numbers (mean, standard deviation), as printed in its tables."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One row of a published table: (i), (ii) and RIR, each with its standard deviation."""

    harmful_ratio: float
    harmful_ratio_std: float
    pretrain_ratio: float
    pretrain_ratio_std: float
    rir: float
    rir_std: float


#: Table 1, house prices, 5 seeds.
TABLE_1 = {
    "r_ill_only": Published(90.02, 3.773, 72.415, 3.545, 1.244, 0.021),
    "imma": Published(7.053, 1.662, 3.545, 0.880, 2.001, 0.187),
    "opt_kappa": Published(1.518, 0.027, 0.016, 0.001, 92.58, 4.492),
    "ours": Published(18.92, 2.056, 0.053, 0.002, 356.20, 5.491),
}

#: Table 2, MNIST, 3 seeds, averaged over the 90 ordered digit pairs.
TABLE_2 = {
    "r_ill_only": Published(14.832, 1.039, 8.654, 0.606, 1.933, 0.046),
    "imma": Published(4.522, 0.139, 2.774, 0.094, 1.774, 0.041),
    "opt_kappa": Published(3.196, 1.225, 0.756, 1.171, 69.73, 54.00),
    "ours": Published(6.345, 0.188, 0.149, 0.009, 70.04, 3.280),
}
