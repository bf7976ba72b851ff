"""The package's lazy names: light to import, and never hidden by a module of the same name."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import condnum.deep


def test_importing_waits_neither_for_torch_nor_for_an_extra():
    code = (
        "import sys, condnum.deep; "
        "print([m for m in ('torch', 'timm', 'torchvision', 'safetensors', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_every_name_resolves_whatever_was_imported_before():
    for module in pkgutil.iter_modules(condnum.deep.__path__):
        assert module.name not in condnum.deep.__all__, (
            f"the module {module.name} would hide its own function"
        )
        importlib.import_module(f"condnum.deep.{module.name}")
    for name in condnum.deep.__all__:
        assert not inspect.ismodule(getattr(condnum.deep, name)), name
    assert len(set(condnum.deep.__all__)) == len(condnum.deep.__all__)
