"""The package's lazy names: light to import, and never hidden by a module of the same name."""

import importlib
import inspect
import pkgutil

import condnum.deep


def test_every_name_resolves_whatever_was_imported_before():
    for module in pkgutil.iter_modules(condnum.deep.__path__):
        importlib.import_module(f"condnum.deep.{module.name}")
    for name in condnum.deep.__all__:
        assert not inspect.ismodule(getattr(condnum.deep, name)), name
