"""Optional dependencies: imported where they are used, and named when they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Literal

from condnum.errors import MissingExtraError

Extra = Literal["viz", "notebooks", "deep", "cluster"]


def require(module: str, extra: Extra) -> ModuleType:
    """Import an optional module, or say which extra installs it.

    Examples:
        >>> require("json", "viz").loads("[1]")
        [1]
        >>> require("condnum_has_no_such_module", "viz")
        Traceback (most recent call last):
            ...
        condnum.errors.MissingExtraError: this needs the module 'condnum_has_no_such_module', which is
        not installed; install it with: pip install 'condnum[viz]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingExtraError(
            f"this needs the module '{missing}', which is not installed; "
            f"install it with: pip install 'condnum[{extra}]'"
        ) from error
