"""The package's lazy names: light to import, and never hidden by a module of the same name."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import condnum.deep


def test_importing_waits_neither_for_torch_nor_for_an_extra():
    code = "import sys, condnum.deep; assert not {'torch', 'timm', 'torchvision', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_name_resolves_whatever_was_imported_before():
    for module in pkgutil.iter_modules(condnum.deep.__path__):
        importlib.import_module(f"condnum.deep.{module.name}")
    for name in condnum.deep.__all__:
        assert not inspect.ismodule(getattr(condnum.deep, name)), name
