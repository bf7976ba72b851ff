"""Interactive views for notebooks; they draw what `condnum.plots` returns and compute nothing."""

from condnum.widgets.alignment import AlignedTasksExplorer, AlignmentExplorer
from condnum.widgets.answer_box import AnswerBox
from condnum.widgets.ceiling import CeilingExplorer, RidgeCeilingExplorer
from condnum.widgets.digit_detail import digit_pair_detail
from condnum.widgets.explorer import Explorer
from condnum.widgets.figure_view import shown_figure
from condnum.widgets.gradient_descent import GradientDescentExplorer, SpectrumDescentExplorer
from condnum.widgets.own_data import OwnDataExplorer
from condnum.widgets.pair_browser import PairBrowser
from condnum.widgets.regularizers import JointStepsExplorer, RegularizerExplorer, RegularizerPathExplorer

__all__ = [
    "AlignedTasksExplorer",
    "AlignmentExplorer",
    "AnswerBox",
    "CeilingExplorer",
    "Explorer",
    "GradientDescentExplorer",
    "JointStepsExplorer",
    "OwnDataExplorer",
    "PairBrowser",
    "RegularizerExplorer",
    "RegularizerPathExplorer",
    "RidgeCeilingExplorer",
    "SpectrumDescentExplorer",
    "digit_pair_detail",
    "shown_figure",
]
