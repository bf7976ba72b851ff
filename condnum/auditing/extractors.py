"""The extractors that an audit is given: matrices, modules, estimators and their files."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from condnum.arrays import extractor_affine
from condnum.auditing import measures
from condnum.data.files import as_stream
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, RankError
from condnum.estimators.extractor import Extractor

#: A matrix of any kind, linear layers, an `Immunizer` or `Eraser`, or where to find one of them.
ThetaLike = Any


def read_extractors(
    theta: ThetaLike, dimension: int, columns: Sequence[str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read extractors, match their names to the columns, and check that they fit.

    Return their matrices in the stored types, from which κ follows, and what attackers meet: the same, or the
    layers and estimators as they are. The product of two layers keeps more than they pass on.
    """
    found, maps = dict[str, NDArray[Any]](), dict[str, Any]()
    reserved = (measures.AS_IS, *measures.CLOSED, measures.ERASED)
    given = theta if isinstance(theta, Mapping) else {} if theta is None else {"theta": theta}
    if isinstance(theta, str | Path) and (stem := Path(theta).stem) not in reserved:
        given = {stem: theta}
    for name, value in given.items():
        if name in reserved:
            raise InvalidInputError(
                f"the name '{name}' is that of an extractor of the audit; choose another."
            )
        layer, called = value, name
        if isinstance(value, str | Path):
            layer = _saved_estimator(value)
            called = f"{type(layer).__name__}.load({str(value)!r})"
        if not isinstance(layer, str | Path):
            maps[name], (layer, _) = layer, extractor_affine(layer, called, columns)
        stream = as_stream(layer, name=name)
        stored = stream.dtype.newbyteorder("=")
        known = stored in (np.float16, np.float32, np.float64)
        matrix = stream.array(gaps="refuse").astype(stored if known else np.float64)
        if len(matrix) != dimension:
            hint = "; it looks transposed: save θ.T" if matrix.shape[1] == dimension else ""
            said = "".join(f" {note}" for note in stream.notes)
            raise InvalidInputError(
                f"{name} has shape {matrix.shape}, but the features have D = {dimension} columns: θ must be "
                f"(D, D_hid), the features of an attacker are Xθ{hint}.{said}"
            )
        if not matrix.any():
            raise RankError(f"{name} is the zero matrix: no features are extracted, and κ is undefined.")
        found[name] = matrix
        if not hasattr(maps.get(name), "to_linear") and not isinstance(maps.get(name), nn.Module):
            maps[name] = matrix
    return found, maps


def _saved_estimator(path: str | Path) -> Any:
    """Return the `Immunizer` or `Eraser` that `save` wrote, or the path of any other file."""
    if Path(path).suffix.lower() == ".safetensors":
        with suppress(DataFormatError, DataNotFoundError):
            return Extractor.load(Path(path).expanduser())
    return path
