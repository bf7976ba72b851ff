"""What a result depends on beside its cell: code of condnum, of an experiment and of methods of one's own."""

import contextlib
import hashlib
import linecache
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from condnum.methods import METHODS

#: Libraries whose versions can change a number.
_LIBRARIES = ("numpy", "scipy", "pandas", "scikit-learn", "torch", "torchvision", "timm", "pillow")


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _code() -> str:
    folder, versions = Path(__file__).resolve().parents[1], []
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append((name, metadata.version(name)))
    texts = [(str(path.relative_to(folder)), path.read_text("utf-8")) for path in folder.rglob("*.py")]
    return _hash([sorted(texts), versions])


#: SHA-256 of condnum's code, as this process found it, and of the libraries' versions.
CODE = _code()


#: Text of a module when it was first asked for; a reload, which gives it another spec, reads it again.
_seen: dict[int, tuple[Any, str]] = {}


def own_code(*of: Any) -> str:
    """Return the SHA-256 of the source of what is not condnum's: of a module, or of a notebook.

    Of a notebook or a script all cells count that define a function or a class, in any process the same.
    """
    modules = {name for one in of for name in modules_of(one) if name.partition(".")[0] != "condnum"}
    texts = []
    for name in sorted(modules):
        module = sys.modules[name]
        if path := getattr(module, "__file__", None):
            spec = module.__spec__
            texts.append(_seen.setdefault(id(spec), (spec, Path(path).read_text("utf-8")))[1])
            continue
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == name]
        members = [*own, *(part for value in own if isinstance(value, type) for part in vars(value).values())]
        files = {part.__code__.co_filename for part in members if isinstance(part, FunctionType)}
        known = sorted({"".join(linecache.getlines(file)) for file in files} - {""})
        texts += known or [uuid.uuid4().hex]  # typed at a prompt: never taken for another
    return _hash(texts) if texts else ""


def modules_of(one: Any) -> Iterator[str]:
    """Yield the names of the modules that define an experiment, or a method."""
    if isinstance(one, ModuleType):
        yield one.__name__
        return
    for part in (*type(one).__mro__, *(getattr(one, name, None) for name in ("cells", "compute", "table"))):
        name = getattr(part, "__module__", None)
        if name in sys.modules and name not in sys.stdlib_module_names:
            yield str(name)


def own_methods() -> dict[str, Any]:
    """Return the methods that are not condnum's, which go along to the workers."""
    return {name: of for name, of in METHODS.items() if type(of).__module__.partition(".")[0] != "condnum"}
