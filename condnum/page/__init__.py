"""Showing: the notebook runner and its offline pages, provenance, tables for people.

Nothing here knows about optimization; import from the modules, which are loaded where needed.
"""
