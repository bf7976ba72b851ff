"""Interactive views for notebooks; they draw what `condnum.plots` returns and compute nothing."""

from condnum.widgets.pair_browser import PairBrowser

__all__ = ["PairBrowser"]
