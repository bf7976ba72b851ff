"""Notebook 6: checks that look at what an answer does, and say what is wrong with it."""

from condnum.teaching.exercises.alignment import check_underestimate
from condnum.teaching.exercises.ceiling import (
    check_aligned_pair,
    check_ceiling,
    check_spent_budget,
    check_whitening,
)
from condnum.teaching.exercises.spectra import AXES_RATIO, check_conventions, check_kappa, check_steps
from condnum.teaching.exercises.steps import check_harmful_step, check_ill_spectra, check_largest_step
from condnum.teaching.exercises.verdict import Verdict

__all__ = [
    "AXES_RATIO",
    "Verdict",
    "check_kappa",
    "check_steps",
    "check_conventions",
    "check_underestimate",
    "check_harmful_step",
    "check_ill_spectra",
    "check_aligned_pair",
    "check_whitening",
    "check_ceiling",
    "check_largest_step",
    "check_spent_budget",
]
