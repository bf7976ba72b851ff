"""What makes a kept result stale: one hash of condnum's code and of the libraries that compute."""

import hashlib
import inspect
import sys
import uuid
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

#: Distributions whose versions can change a number.
LIBRARIES = ("numpy", "scipy", "pandas", "scikit-learn", "torch", "torchvision", "timm", "pillow")

_PACKAGE = Path(__file__).parent


@cache
def code_hash() -> str:
    """Return the SHA-256 of condnum's code, as this process found it, and of the libraries' versions."""
    texts = [(str(path.relative_to(_PACKAGE)), path.read_text("utf-8")) for path in _PACKAGE.rglob("*.py")]
    versions = []
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions.append((name, metadata.version(name)))
    return hashlib.sha256(repr([sorted(texts), versions]).encode()).hexdigest()


def class_hash(kind: type) -> str:
    """Return the hash of condnum's code and of the modules of a class of one's own and of its bases.

    A class without a file, as of a notebook, is hashed by its text; where there is none, it is like no other.
    """
    texts = []
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in {"condnum", *sys.stdlib_module_names}:
            texts.append(_text(base))
    return hashlib.sha256(repr([code_hash(), texts]).encode()).hexdigest()


def _text(kind: type) -> str:
    module = sys.modules[kind.__module__]
    try:
        return inspect.getsource(module if getattr(module, "__file__", None) else kind)
    except (OSError, TypeError):
        return uuid.uuid4().hex
