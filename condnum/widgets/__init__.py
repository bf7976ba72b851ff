"""Interactive views for notebooks; they draw what `condnum.plots` returns and compute nothing."""

from condnum.widgets.digit_detail import digit_pair_detail
from condnum.widgets.pair_browser import PairBrowser

__all__ = ["PairBrowser", "digit_pair_detail"]
