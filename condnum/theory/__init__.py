"""Tasks, condition numbers, alignment, regularizers, limits, erasure; no files."""

from condnum.lazy import attach

__all__, __getattr__, __dir__ = attach(
    __name__,
    {
        "Features": "condnum.theory.task",
        "Task": "condnum.theory.task",
        "ConditionNumber": "condnum.theory.kappa",
        "Immunization": "condnum.theory.kappa",
        "Clauses": "condnum.theory.kappa",
        "Alignment": "condnum.theory.alignment",
        "RirLimit": "condnum.theory.limits",
        "ridge_convention_limit": "condnum.theory.limits",
        "Erasure": "condnum.theory.erasure",
        "RegularizerGradient": "condnum.theory.regularizers",
        "well_spectrum_step": "condnum.theory.regularizers",
        "well_step_bound": "condnum.theory.regularizers",
        "ill_spectrum_step": "condnum.theory.regularizers",
        "ill_step_bound": "condnum.theory.regularizers",
    },
)
