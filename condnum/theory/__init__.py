"""Condition numbers, spectra, alignment, regularizers, RIR, ceilings, the Pareto front: no files."""
