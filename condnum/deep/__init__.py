"""Deep nets (Sec. 5.2): backbones and image folders, immunization, RIR_θ0, probes and attacks.

Names are imported when they are first used, and `__init__.pyi` lists them; timm, torchvision and
safetensors come with the extra `deep` and are needed only where a function says so.
"""

# ruff: file-ignore[non-empty-init-module] - reads the list of the lazy names

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_LISTED = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: home for home, name in re.findall(r"(?m)^from (\S+) import (\w+)", _LISTED)}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'condnum.deep' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*globals(), *_HOME])
