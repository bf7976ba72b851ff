"""Pure functions from tables to plotly figures; nothing here computes a result."""

from condnum.figures.curves import history_figure, norm_ratio_figure, task_spectra_figure
from condnum.figures.limits import pareto_figure
from condnum.figures.pairs import pair_heatmaps
from condnum.page.style import MethodStyle, method_style

__all__ = [
    "MethodStyle",
    "history_figure",
    "method_style",
    "norm_ratio_figure",
    "pair_heatmaps",
    "pareto_figure",
    "task_spectra_figure",
]
