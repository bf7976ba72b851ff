"""Condition numbers, spectra, alignment, regularizers, RIR, ceilings, the Pareto front: no files."""

from condnum.lazy import attach

__all__, __getattr__, __dir__ = attach(
    __name__,
    {
        "ConditionNumber": "condnum.theory.spectra",
        "CovarianceRange": "condnum.theory.covariances",
        "Immunization": "condnum.theory.immunization",
        "Clauses": "condnum.theory.immunization",
        "Alignment": "condnum.theory.alignment",
        "RirCeiling": "condnum.theory.ceiling",
        "ridge_convention_ceiling": "condnum.theory.ceiling",
        "Erasure": "condnum.theory.erasure",
        "RegularizerGradient": "condnum.theory.regularizers",
        "well_spectrum_step": "condnum.theory.steps",
        "well_step_bound": "condnum.theory.steps",
        "ill_spectrum_step": "condnum.theory.steps",
        "ill_step_bound": "condnum.theory.steps",
    },
)
