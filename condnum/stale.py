"""What makes a kept result stale: one hash of the code that computed it, in the key of every result.

The code is a module, every module of condnum and of its own folder that it imports (in functions too), and
the versions of the libraries among its imports that compute.
"""

import ast
import hashlib
import inspect
import re
import sys
import textwrap
import uuid
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module, metadata
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

#: Modules whose versions can change a number, and their distributions.
LIBRARIES = {
    "numpy": "numpy", "scipy": "scipy", "pandas": "pandas", "sklearn": "scikit-learn", "torch": "torch",
    "torchvision": "torchvision", "timm": "timm", "PIL": "pillow",
}  # fmt: skip

_ROOT = Path(__file__).parents[1]


def code_hash(*modules: str, source: str = "") -> str:
    """Return the SHA-256 of the code of modules, or of a text such as a notebook's cells, as imported.

    Examples:
        >>> code_hash("condnum.errors") == code_hash("condnum.errors") != code_hash("condnum.arrays")
        True
        >>> _lazy("condnum")["immunize"]  # names that are imported when they are used count, too
        'condnum.methods.registry'
    """
    texts, libraries = dict[str, str](), set[str]()

    def visit(text: str, package: str, home: Path) -> None:
        waiting = list(_imports(text, package))
        while waiting:
            name = waiting.pop()
            path = _file(name, home)
            if path is None:
                parent, _, attribute = name.rpartition(".")
                waiting += {home for name, home in _lazy(parent).items() if attribute in (name, "*")}
                libraries.update({name.partition(".")[0]} & LIBRARIES.keys())
            elif name not in texts:
                texts[name] = _text(path)
                visit(texts[name], name if path.stem == "__init__" else name.rpartition(".")[0], home)

    for name in modules:
        module = import_module(name)
        path = Path(str(module.__file__))
        home = path.parents[name.count(".") + (path.stem == "__init__")]
        texts[name] = _text(path)
        visit(texts[name], module.__package__ or "", home)
    visit(source, "", Path.cwd())
    versions = [(name, metadata.version(LIBRARIES[name])) for name in sorted(libraries)]
    return hashlib.sha256(repr([source, sorted(texts.items()), versions]).encode()).hexdigest()


def class_hash(kind: type) -> str:
    """Return the hash of the modules of a class and of its bases.

    A class without a file, as of a notebook, is hashed by its text; where there is none, it is like no other.
    """
    modules = {base.__module__ for base in kind.__mro__} - sys.stdlib_module_names
    filed = sorted(name for name in modules if hasattr(import_module(name), "__file__"))
    if kind.__module__ in filed:
        return code_hash(*filed)
    try:
        source = f"import condnum, condnum.deep\n{textwrap.dedent(inspect.getsource(kind))}"
    except (OSError, TypeError):
        source = f"# {uuid.uuid4().hex}"
    return code_hash(*filed, source=source)


@lru_cache(1024)
def _imports(text: str, package: str) -> tuple[str, ...]:
    """Return what a module imports; `name.*` is everything that a package offers."""

    def found() -> Iterator[str]:
        yield from re.findall(r'\brequire\("([\w.]+)"', text)
        for node in _statements(ast.parse(text).body):
            match node:
                case ast.Import(names):
                    for alias in names:
                        yield from (alias.name, f"{alias.name}.*")
                case ast.ImportFrom(module, names, level):
                    home = resolve_name("." * level + (module or ""), package)
                    yield from (home, *(f"{home}.{alias.name}" for alias in names))

    return tuple(dict.fromkeys(found()))


def _statements(body: list[Any]) -> Iterator[ast.AST]:
    """Yield statements with those in them, without a look at expressions, which are most of a module."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, []))


def _file(name: str, home: Path) -> Path | None:
    """Return the source of a module of condnum, or of one in the user's folder."""
    own = name.partition(".")[0] == "condnum"
    place = (_ROOT if own else home).joinpath(*name.split("."))
    if not own and "site-packages" in place.parts:
        return None
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _text(path: Path) -> str:
    """Return a source; one of condnum as it was when first read, which is what this process runs."""
    return _kept(path) if path.is_relative_to(_ROOT / "condnum") else path.read_text(encoding="utf-8")


@cache
def _kept(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _lazy(package: str) -> dict[str, str]:
    """Return the names that a package of condnum imports when they are used, with their modules."""
    path = _file(package, _ROOT) if package.partition(".")[0] == "condnum" else None
    text = _text(path) if path else ""
    for node in ast.walk(ast.parse(text)) if "attach(" in text else ():
        match node:
            case ast.Call(ast.Name("attach"), [_, ast.Dict() as names]):
                return dict(ast.literal_eval(names))
    return {}
