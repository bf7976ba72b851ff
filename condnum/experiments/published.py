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


class PublishedNet(NamedTuple):
    """One row of Table 3: as `Published`, with the test accuracy on D_P in percent."""

    harmful_ratio: float
    harmful_ratio_std: float
    pretrain_ratio: float
    pretrain_ratio_std: float
    rir: float
    rir_std: float
    accuracy: float
    accuracy_std: float


_NAN = float("nan")
_START = {
    "resnet18": PublishedNet(1.0, _NAN, 1.0, _NAN, 1.0, _NAN, 68.24, _NAN),
    "vit": PublishedNet(1.0, _NAN, 1.0, _NAN, 1.0, _NAN, 81.78, _NAN),
}

#: Table 3, by backbone and harmful data set; D_P is ImageNet-1K, 3 seeds.
TABLE_3 = {
    ("resnet18", "cars"): {
        "initial": _START["resnet18"],
        "r_ill_only": PublishedNet(1.878, 0.034, 1.786, 0.025, 1.057, 0.026, 63.84, 0.292),
        "imma": PublishedNet(0.866, 0.002, 0.889, 0.001, 0.974, 0.002, 63.57, 0.234),
        "opt_kappa": PublishedNet(1.217, 0.021, 0.798, 0.005, 1.527, 0.019, 63.65, 0.148),
        "ours": PublishedNet(2.386, 0.442, 0.699, 0.062, 3.467, 0.358, 62.36, 0.173),
    },
    ("vit", "cars"): {
        "initial": _START["vit"],
        "r_ill_only": PublishedNet(13.121, 0.038, 4.097, 0.098, 3.342, 0.048, 82.21, 0.035),
        "imma": PublishedNet(1.422, 0.006, 2.090, 0.043, 0.702, 0.007, 81.89, 0.010),
        "opt_kappa": PublishedNet(3.598, 0.510, 0.171, 0.033, 26.369, 2.814, 82.51, 0.085),
        "ours": PublishedNet(7.945, 0.247, 0.323, 0.086, 34.517, 0.886, 82.79, 0.200),
    },
    ("resnet18", "country211"): {
        "initial": _START["resnet18"],
        "r_ill_only": PublishedNet(20.727, 0.791, 20.675, 1.685, 1.038, 0.05, 62.17, 1.599),
        "imma": PublishedNet(0.791, 0.005, 0.814, 0.006, 0.972, 0.007, 67.03, 0.146),
        "opt_kappa": PublishedNet(1.538, 0.155, 1.053, 0.091, 1.472, 0.043, 66.81, 0.115),
        "ours": PublishedNet(3.287, 0.33, 0.399, 0.034, 8.714, 0.672, 65.01, 0.143),
    },
    ("vit", "country211"): {
        "initial": _START["vit"],
        "r_ill_only": PublishedNet(69.291, 1.198, 63.519, 6.62, 1.122, 0.097, 80.73, 0.129),
        "imma": PublishedNet(6.242, 0.203, 7.599, 0.717, 0.845, 0.048, 82.47, 0.036),
        "opt_kappa": PublishedNet(4.589, 0.079, 0.300, 0.106, 16.498, 5.183, 82.79, 0.023),
        "ours": PublishedNet(20.894, 1.425, 0.700, 0.082, 41.341, 0.967, 83.17, 0.075),
    },
}
