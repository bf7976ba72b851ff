"""A study of methods: those of condnum, and those of one's own, which go with it to the workers."""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.methods import METHODS, Method, get_method
from condnum.stale import class_hash
from condnum.studies.frame import Study, several


def is_own(method: Method) -> bool:
    """Tell whether a method is none of condnum's."""
    return type(method).__module__.partition(".")[0] != "condnum"


def given_method(method: str | Method) -> str | Method:
    """Return a name as it is, or a method of one's own or of a file such as `mine.py`, known by its name."""
    if isinstance(method, str) and method.endswith(".py"):
        method = _of_file(Path(method).expanduser().resolve())
    if not isinstance(method, str):
        name = get_method(method).name
        if name in METHODS and METHODS[name] is not method and not is_own(METHODS[name]):
            raise InvalidInputError(f"'{name}' is the name of a built-in method; choose another name.")
        METHODS[name] = method
    return method


def _of_file(path: Path) -> Method:
    """Import a file as the module of its name, and return the one method that it makes or defines."""
    if not path.is_file():
        raise DataNotFoundError(f"{path} does not exist; give the file that defines your method.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # where workers look too
    module = import_module(path.stem)
    if Path(str(getattr(module, "__file__", ""))).resolve() != path:
        raise InvalidInputError(f"another module is called {path.stem}; rename {path}.")
    methods = [
        of for of in vars(module).values() if isinstance(of, Method)
    ]  # classes have the attributes, too
    made = [of for of in methods if not isinstance(of, type)]
    found = made or [of() for of in methods if isinstance(of, type) and of.__module__ == path.stem]
    if len(found) != 1:
        raise InvalidInputError(
            f"{path} must define one method, a class or an object with a name and initial(problem, "
            f"generator); found {len(found)}."
        )
    return found[0]


def _method_name(method: str | Method) -> str:
    return get_method(given_method(method)).name


#: Names of methods, files that define one, or objects that are one.
MethodNames: TypeAlias = Annotated[tuple[str, ...], several(_method_name)]


class MethodStudy(Study):
    """A study of methods; those of one's own go with it to the workers, and their code counts."""

    methods: MethodNames
    _own: ClassVar[dict[str, Method]] = {}
    _own_code: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {name: METHODS[name] for name in self.methods if name in METHODS and is_own(METHODS[name])}
        object.__setattr__(self, "_own", own)
        code = sorted(class_hash(type(method)) for method in own.values())
        object.__setattr__(self, "_own_code", tuple(code))  # here: a worker may not have the source

    def code(self) -> str:
        """Return the hash of what computes, methods of one's own among it."""
        known = super().code()
        return hashlib.sha256(repr([known, self._own_code]).encode()).hexdigest() if self._own_code else known

    def __setstate__(self, state: dict[str, Any]) -> None:
        METHODS.update(state["_own"])
        self.__dict__.update(state)
