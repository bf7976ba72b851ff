"""Pure functions from tables to plotly figures; nothing here computes a result."""

from condnum.plots.curves import ceiling_figure, history_figure, norm_ratio_figure, spectra_figure
from condnum.plots.style import MethodStyle, method_style

__all__ = [
    "MethodStyle",
    "ceiling_figure",
    "history_figure",
    "method_style",
    "norm_ratio_figure",
    "spectra_figure",
]
