"""A study of methods: built-in ones, and those of one's own, which go with it to the workers."""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.methods import Method, get_method
from condnum.methods.registry import METHODS, own_methods
from condnum.stale import class_hash
from condnum.studies.frame import Study, several


def given_method(method: str | Method) -> str | Method:
    """Return a name as it is, or a method of one's own or of a file such as `mine.py`, known by its name."""
    if isinstance(method, str) and method.endswith(".py"):
        method = _of_file(Path(method).expanduser().resolve())
    if isinstance(method, Method):
        name = get_method(method).name
        if name in METHODS and METHODS[name] not in [*own_methods(), method]:
            raise InvalidInputError(f"'{name}' is the name of a built-in method; choose another name.")
        METHODS[name] = method
    return method


def _of_file(path: Path) -> Method:
    """Import a file as the module of its name, and return the method whose class it defines."""
    if not path.is_file():
        raise DataNotFoundError(f"{path} does not exist; give the file that defines your method.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # where workers look too
    module = import_module(path.stem)
    if Path(str(getattr(module, "__file__", ""))).resolve() != path:
        raise InvalidInputError(f"another module is called {path.stem}; rename {path}.")
    made = [of for of in vars(module).values() if isinstance(of, Method)]
    own = [of for of in vars(module).values() if isinstance(of, type) and of.__module__ == path.stem]
    found = made or [of() for of in own if issubclass(of, Method)]
    if len(found) != 1:
        raise InvalidInputError(
            f"{path} must define one Method, as a class or an object; found {len(found)}."
        )
    return found[0]


def _method_name(method: str | Method) -> str:
    return get_method(given_method(method)).name


#: Names of methods, files that define one, or `Method` objects.
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
        METHODS.update({method.name: method for method in state.pop("own_methods")})
        self.__dict__.update(state)
