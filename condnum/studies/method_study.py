"""A study of methods: built-in ones, and those of one's own, which go with it to the workers."""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.methods import Method, get_method, register_method
from condnum.methods.registry import own_methods
from condnum.stale import class_hash
from condnum.studies.frame import Study, several


def given_method(method: str | Method) -> str | Method:
    """Return a name as it is; a method of one's own, or that of a file such as `mine.py`, is registered."""
    if isinstance(method, str) and method.endswith(".py"):
        method = _of_file(Path(method).expanduser().resolve())
    if isinstance(method, Method):
        register_method(method)
    return method


def _of_file(path: Path) -> Method:
    """Import a file as the module of its name, and return the method that it registers."""
    if not path.is_file():
        raise DataNotFoundError(f"{path} does not exist; give the file in which your method is registered.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # where workers look too
    module = import_module(path.stem)
    if Path(str(getattr(module, "__file__", ""))).resolve() != path:
        raise InvalidInputError(f"another module is called {path.stem}; rename {path}.")
    found = [method for method in own_methods() if type(method).__module__ == path.stem]
    if len(found) != 1:
        raise InvalidInputError(
            f"{path} must register one method, by condnum.register_method(…); it registers {len(found)}."
        )
    return found[0]


def _method_name(method: str | Method) -> str:
    return get_method(given_method(method)).name


#: Names of methods, files that register one, or `Method` objects.
MethodNames: TypeAlias = Annotated[tuple[str, ...], several(_method_name)]


class MethodStudy(Study):
    """A study of methods; those of one's own go with it to the workers, and their code counts."""

    methods: MethodNames
    _own_code: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        own = sorted(class_hash(type(method)) for method in own_methods() if method.name in self.methods)
        object.__setattr__(self, "_own_code", tuple(own))  # here: a worker may not have the source

    def code(self) -> str:
        """Return the hash of what computes, methods of one's own among it."""
        known = super().code()
        return hashlib.sha256(repr([known, self._own_code]).encode()).hexdigest() if self._own_code else known

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"own_methods": own_methods()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for method in state.pop("own_methods"):
            register_method(method)
        self.__dict__.update(state)
