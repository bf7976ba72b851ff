"""Pure functions from tables to plotly figures; nothing here computes a result."""

from condnum.figures.curves import history_figure, norm_ratio_figure, task_spectra_figure
from condnum.page.style import MethodStyle, method_style

__all__ = [
    "MethodStyle",
    "history_figure",
    "method_style",
    "norm_ratio_figure",
    "task_spectra_figure",
]
