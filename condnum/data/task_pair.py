"""A pair of tasks: inputs and targets of a pre-training and a harmful task over the same features."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import as_array, as_targets, as_tensor, same_columns
from condnum.errors import InvalidInputError, check_integer

Float64Array: TypeAlias = NDArray[np.float64]


def read_only(value: Any, name: str, *, labels: bool = False) -> NDArray[Any]:
    """Return `value` as a read-only, finite float64 array, or int64 of `labels`; no copy if it is one.

    Labels that are text become places among the sorted classes.
    """
    if labels and not isinstance(value, Tensor) and isinstance(next(iter(np.ravel(value)), None), str):
        value = as_targets(value, name, quiet=True)[0]
    dtype = np.int64 if labels and as_array(value, name).dtype.kind in "iub" else np.float64
    whole = isinstance(value, np.ndarray) and value.base is None  # the base of a view can still change
    if whole and value.dtype == dtype and not value.flags.writeable:
        return value
    array = np.array(as_tensor(value, name).detach().cpu().numpy(), dtype=dtype, order="C")
    array.setflags(write=False)
    return array


def standardize(values: Float64Array, *, reference: Float64Array | None = None) -> Float64Array:
    """Subtract the mean and divide by the population deviation of `reference` (default: `values`).

    Columns that are constant up to round-off become exactly zero.
    """
    from sklearn.preprocessing import StandardScaler

    base = values if reference is None else reference
    scaler = StandardScaler().fit(base.reshape(len(base), -1))
    scaled = scaler.transform(values.reshape(len(values), -1))
    flat = constant_columns(scaler.mean_, scaler.var_, len(base))
    return np.where(flat, 0.0, scaled).reshape(values.shape)


def constant_columns(mean: Float64Array, variance: Float64Array, rows: int) -> NDArray[np.bool_]:
    """Tell which columns are constant up to the round-off of their moments, by scikit-learn's bound."""
    eps = np.finfo(np.float64).eps
    return np.asarray(variance <= rows * eps * variance + (rows * mean * eps) ** 2)


def sha256_arrays(**arrays: NDArray[Any]) -> str:
    """Return the SHA-256 of named arrays: names, types, shapes and little-endian C-ordered bytes."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.kind}{little.dtype.itemsize} {array.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Provenance:
    """Where a data set came from, in words that a report can print."""

    source: str  # a place that `condnum.data.files` looks in, "embedded", or "given arrays"
    location: str  # path, or the package that carries the table
    known_checksum: bool  # the SHA-256 is one that this project has seen before
    split: str = ""  # "training" or "test", of data that have both


@dataclass(frozen=True, eq=False, repr=False)
class TaskPair:
    r"""A pre-training task D_P and a harmful task D_H over the same D features (Sec. 3 of the paper).

    The covariances of the paper are :math:`K_P = X_P^\top X_P` and :math:`K_H = X_H^\top X_H`
    (Eq. 9). The supervised loss of Algorithm 1 and the attacker's probe may need a different sample
    than K (a digit against the rest); `loss_sample` and `probe_sample` return the right one.

    Arrays are copied, turned into float64 (integer targets, which are labels, into int64) and made read-only,
    so that no method can change another's data; `ImmunizationProblem.from_pair` makes tasks of them.

    Raises:
        InvalidInputError: Shapes that do not fit, or entries that are not finite numbers.

    Examples:
        >>> TaskPair.from_arrays([[1, 0], [0, 1]], [0, 1], [[1, 1], [2, 0], [0, 3]], [1, 2, 3], name="toy")
        toy, given arrays: 2 pre-training and 3 harmful rows, D = 2, SHA-256 7c164fd8
    """

    X_P: Float64Array  # (N_P, D) inputs of the pre-training task
    y_P: NDArray[Any]  # (N_P,) its targets
    X_H: Float64Array  # (N_H, D) inputs of the harmful task
    y_H: NDArray[Any]  # (N_H,) its targets
    name: str  # of the data set, "house-prices"
    benign_name: str  # the task in words, "LotArea, zoning not RL"
    harmful_name: str
    feature_names: tuple[str, ...]  # (D,) in column order
    checksum: str  # SHA-256 (64 hexadecimal digits) of the source file(s), or of an embedded table
    provenance: Provenance
    X_loss: Float64Array | None = None  # (M_P, D) sample for the loss on D_P; None: `X_P`
    y_loss: NDArray[Any] | None = None  # (M_P,)
    X_probe: Float64Array | None = None  # (M_H, D) sample for the probe on D_H; None: `X_H`
    y_probe: NDArray[Any] | None = None  # (M_H,)

    def __post_init__(self) -> None:
        for task in ("P", "H", "loss", "probe"):
            X, y = f"X_{task}", f"y_{task}"
            if getattr(self, X) is None:
                continue
            object.__setattr__(self, X, read_only(getattr(self, X), X))
            object.__setattr__(self, y, read_only(getattr(self, y), y, labels=True))
            shapes = getattr(self, X).shape, getattr(self, y).shape
            if shapes[0] != (*shapes[1], len(self.feature_names)):
                raise InvalidInputError(
                    f"{X} must be (N, D) with D = {len(self.feature_names)} feature names, and {y} (N,), got "
                    f"shapes {shapes[0]} and {shapes[1]}."
                )

    @classmethod
    def from_arrays(
        cls,
        X_P: Any,
        y_P: Any,
        X_H: Any,
        y_H: Any,
        *,
        name: str = "own data",
        benign_name: str = "D_P",
        harmful_name: str = "D_H",
        feature_names: Sequence[str] | None = None,
    ) -> TaskPair:
        """Make a pair of arrays at hand; the checksum is that of their values, features are `x1`, `x2`, ….

        Examples:
            >>> pair = TaskPair.from_arrays([[1, 0], [0, 1]], ["ham", "egg"], [[1, 1], [2, 0]], [1, 2])
            >>> pair.feature_names, pair.y_P
            (('x1', 'x2'), array([1, 0]))
        """
        X_P, X_H = same_columns(X_P=X_P, X_H=X_H)
        arrays: dict[str, Any] = {
            "X_P": read_only(X_P, "X_P"),
            "y_P": read_only(y_P, "y_P", labels=True),
            "X_H": read_only(X_H, "X_H"),
            "y_H": read_only(y_H, "y_H", labels=True),
        }
        if feature_names is None:
            columns = arrays["X_P"].shape[-1]
            feature_names = getattr(X_P, "columns", [f"x{k}" for k in range(1, columns + 1)])
        return cls(
            **arrays,
            name=name,
            benign_name=benign_name,
            harmful_name=harmful_name,
            feature_names=tuple(map(str, feature_names)),
            checksum=sha256_arrays(**{key: read_only(array, key) for key, array in arrays.items()}),
            provenance=Provenance("given arrays", "memory", False),
        )

    def __len__(self) -> int:
        """Return the number of rows of both tasks."""
        return len(self.X_P) + len(self.X_H)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return int(self.X_P.shape[1])

    @property
    def loss_sample(self) -> tuple[Float64Array, NDArray[Any]]:
        """`(M_P, D)` inputs and `(M_P,)` targets for the supervised loss on D_P."""
        if self.X_loss is None or self.y_loss is None:
            return self.X_P, self.y_P
        return self.X_loss, self.y_loss

    @property
    def probe_sample(self) -> tuple[Float64Array, NDArray[Any]]:
        """`(M_H, D)` inputs and `(M_H,)` targets for the attacker's probe on D_H."""
        if self.X_probe is None or self.y_probe is None:
            return self.X_H, self.y_H
        return self.X_probe, self.y_probe

    def head(self, rows: int) -> TaskPair:
        """Return the pair cut to the first rows (2 or more) of each array; nothing is standardized again."""
        rows = check_integer("rows", rows, 2)
        names = ("X_P", "y_P", "X_H", "y_H", "X_loss", "y_loss", "X_probe", "y_probe")
        cut: dict[str, Any] = {n: getattr(self, n)[:rows] for n in names if getattr(self, n) is not None}
        return replace(self, **cut)

    @property
    def label(self) -> str:
        """Data set, which images of it if it has two splits, and where they were found."""
        split = self.provenance.split
        return f"{self.name}, {f'{split} images, ' if split else ''}{self.provenance.source}"

    def title(self) -> str:
        """Return `label`, row counts and the first 8 digits of the SHA-256, for figures and as `repr`."""
        return (
            f"{self.label}: {len(self.X_P)} pre-training and {len(self.X_H)} harmful rows, "
            f"D = {self.dimension}, SHA-256 {self.checksum[:8]}"
        )

    __repr__ = title
