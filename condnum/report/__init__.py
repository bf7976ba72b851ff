"""Storing and showing: atomic files, provenance, the notebook runner and offline HTML reports.

Nothing here knows about optimisation; import from the modules, which are loaded where needed.
"""
