"""condnum: model immunization from a condition-number perspective.

The public names of the library core; everything here needs NumPy, SciPy, pandas, torch and
scikit-learn alone. Figures, notebooks, deep nets and clusters live in `condnum.figures`,
`condnum.report`, … behind extras. Names are imported when they are first used, so that
`import condnum` and `condnum --help` do not wait for torch; `__init__.pyi` lists them.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_LISTED = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: home for home, name in re.findall(r"(?m)^from (\S+) import (\w+)", _LISTED)}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'condnum' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted([*globals(), *_HOME])
