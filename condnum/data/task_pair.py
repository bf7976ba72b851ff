"""What every experiment starts from: the inputs and targets of a pre-training and a harmful task."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

FloatArray: TypeAlias = NDArray[np.float64]


def read_only(value: Any, name: str) -> FloatArray:
    """Return `value` as a read-only float64 array; an array that already is one is not copied.

    Examples:
        >>> read_only([1, 2], "y").flags.writeable
        False
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInputError(f"{name} is not an array ({error}); give rows of equal length.") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} must hold real numbers, got dtype {array.dtype}; encode it first.")
    if array.dtype == np.float64 and array.base is None and array.flags.c_contiguous:
        if not array.flags.writeable:
            return array
        array = array.copy() if array is value else array
    else:
        array = np.array(array, dtype=np.float64, order="C")
    array.setflags(write=False)
    return array


def check_rows(rows: object) -> None:
    """Check a number of rows."""
    if not isinstance(rows, int | np.integer) or isinstance(rows, bool) or rows < 2:
        raise InvalidInputError(f"rows must be an integer of at least 2, got {rows!r}.")


def label_encode(values: NDArray[Any]) -> FloatArray:
    """Number the categories 0, 1, … in sorted order, as scikit-learn's `LabelEncoder` does.

    Examples:
        >>> label_encode(np.array(["b", "a", "b", "0"]))
        array([2., 1., 2., 0.])
    """
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.float64)


def standardise(values: FloatArray, *, reference: FloatArray | None = None) -> FloatArray:
    r"""Subtract the mean and divide by the population standard deviation, column by column.

    :math:`\tilde x_{nd} = (x_{nd} - \mu_d)/s_d` with
    :math:`s_d^2 = \frac1N\sum_n (x_{nd} - \mu_d)^2`. A column that is constant in the
    reference rows becomes exactly zero: its mean in floating point may differ from the constant
    by round-off, which the division would blow up to order 1.

    Examples:
        >>> standardise(np.array([[1.0, 0.1], [3.0, 0.1]]))
        array([[-1.,  0.],
               [ 1.,  0.]])
    """
    base = values if reference is None else reference
    constant = (base == base[:1]).all(axis=0)
    deviation = np.where(constant, 1.0, base.std(axis=0))
    return np.where(constant, 0.0, (values - base.mean(axis=0)) / deviation)


_SHA256SUMS = """
1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41  house_prices/train.csv
db8f937d487057fb14a9f0fbe97f0bc8d311ab41b750d41e1ff37c43b9e55e19  MNIST/raw/train-images-idx3-ubyte.gz
51fc562b6747b666fbf6e84ce29d43c3cb5f9c388c664d43b33f02095313405a  MNIST/raw/train-labels-idx1-ubyte.gz
cfeddb84311ecf044fc6a5b0f6ee8a24d265d4e83e388400186eb114082f4209  MNIST/raw/t10k-images-idx3-ubyte.gz
e41c74e484045d39b462a7790a4af51301bd9b0b24f0154798d713ec68c45920  MNIST/raw/t10k-labels-idx1-ubyte.gz
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  MNIST/raw/train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  MNIST/raw/train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  MNIST/raw/t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  MNIST/raw/t10k-labels-idx1-ubyte
715adb24fd0f53b9d9b5b9f591e3a5498a40b604338e3ff3cc50cd6a17fca27d  embedded/digits-8x8
ed0af9b810baa6057ea752af4060c68ba0f2e712817a9f3fcad9b80c37b1a60e  embedded/diabetes
"""

#: Name under the data folder -> SHA-256; `embedded/` names arrays. MNIST has two sums a file,
#: compressed and plain, as a file that was compressed anew has other bytes but the same content.
KNOWN_CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {name: digest for digest, name in (line.split() for line in _SHA256SUMS.split("\n") if line)}
)


def sha256_file(path: str | Path, *, decompress: bool = False) -> str:
    """Return the SHA-256 of a file, read in chunks."""
    try:
        with gzip.open(path, "rb") if decompress else open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFormatError(f"{path} is not a whole gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error}; check the path and its permissions."
        ) from error


def sha256_arrays(**arrays: NDArray[Any]) -> str:
    """Return the SHA-256 of named arrays: names, types, shapes and little-endian C-ordered bytes.

    Examples:
        >>> a = np.array([1.0, 2.0])
        >>> sha256_arrays(a=a) == sha256_arrays(a=a.astype(">f8"))
        True
        >>> sha256_arrays(a=a) == sha256_arrays(a=a[::-1])
        False
    """
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.kind}{little.dtype.itemsize} {array.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


def combine_checksums(digests: Sequence[str]) -> str:
    """Return one sum for several files: that of a single file, else that of the sums, a line each."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()


def is_known(name: str, path: Path, digest: str) -> bool:
    """Tell whether a file has a known sum, by its bytes or, when gzip, by its content."""
    if digest in (KNOWN_CHECKSUMS.get(name), KNOWN_CHECKSUMS.get(f"{name}.gz")):
        return True
    return path.suffix == ".gz" and sha256_file(path, decompress=True) == KNOWN_CHECKSUMS.get(name)


#: Where data are: one of the places that `condnum.data.resolver` looks in, in order, or none of them.
SourceKind = Literal[
    "CONDNUM_DATA", "./data", "user cache", "condnum's box", "given path", "embedded", "given arrays"
]


@dataclass(frozen=True)
class Provenance:
    """Where a data set came from and what was done to it, in words that a report can print."""

    source: SourceKind
    location: str  # path, or the package that carries the table
    description: str  # what the data set is, in one sentence
    url: str  # its home
    licence: str  # licence or terms of use
    citation: str  # whom to cite
    known_checksum: bool  # the SHA-256 is one that this project has seen before
    files: Mapping[str, str] = field(default_factory=dict)  # name -> SHA-256 of each source
    options: Mapping[str, object] = field(default_factory=dict)  # the loader's options, by name


@dataclass(frozen=True, eq=False)
class TaskPair:
    r"""A pre-training task D_P and a harmful task D_H over the same D features (Sec. 3 of the paper).

    The covariances of the paper are :math:`K_P = X_P^\top X_P` and :math:`K_H = X_H^\top X_H`
    (Eq. 9). The supervised loss of Algorithm 1 and the attacker's probe may need another sample
    than the one that gives K (a digit against the rest); `loss_sample` and `probe_sample` hand
    out the right one.

    Arrays are copied, turned into float64 and made read-only, so that no method can change
    another's data.

    Attributes:
        X_P: `(N_P, D)` inputs of the pre-training task.
        y_P: `(N_P,)` its targets.
        X_H: `(N_H, D)` inputs of the harmful task.
        y_H: `(N_H,)` its targets.
        name: Data set, "house-prices".
        pretrain_name: Pre-training task in words, "LotArea, zoning not RL".
        harmful_name: Harmful task in words.
        feature_names: D names, in column order.
        checksum: SHA-256 (64 hexadecimal digits) of the source file(s), or of an embedded table.
        provenance: Where it came from and the options used.
        X_loss: `(M_P, D)` sample for the loss on D_P; None: `X_P`.
        y_loss: `(M_P,)` its targets; None: `y_P`.
        X_probe: `(M_H, D)` sample for the probe on D_H; None: `X_H`.
        y_probe: `(M_H,)` its targets; None: `y_H`.
        allow_constant_target: Accept a `y_P` or `y_H` that never varies (one class only).

    Raises:
        InvalidInputError: Shapes that do not fit, non-finite entries, fewer than two rows, or a
            target that never varies.

    Examples:
        >>> origin = Provenance("embedded", "here", "two tiny tasks", "", "", "", False)
        >>> pair = TaskPair([[1, 0], [0, 1]], [0, 1], [[1, 1], [2, 0], [0, 3]], [1, 2, 3], name="toy",
        ...     pretrain_name="p", harmful_name="h", feature_names=("a", "b"), checksum="ab" * 32,
        ...     provenance=origin)
        >>> pair.title()
        'toy, embedded: 2 rows D_P, 3 rows D_H, D = 2, SHA-256 abababab'
    """

    X_P: FloatArray  # (N_P, D)
    y_P: FloatArray  # (N_P,)
    X_H: FloatArray  # (N_H, D)
    y_H: FloatArray  # (N_H,)
    name: str
    pretrain_name: str
    harmful_name: str
    feature_names: tuple[str, ...]  # D names
    checksum: str  # 64 hexadecimal digits
    provenance: Provenance
    X_loss: FloatArray | None = None  # (M_P, D)
    y_loss: FloatArray | None = None  # (M_P,)
    X_probe: FloatArray | None = None  # (M_H, D)
    y_probe: FloatArray | None = None  # (M_H,)
    allow_constant_target: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        for inputs, targets, task in (
            ("X_P", "y_P", self.pretrain_name),
            ("X_H", "y_H", self.harmful_name),
            ("X_loss", "y_loss", self.pretrain_name),
            ("X_probe", "y_probe", self.harmful_name),
        ):
            X, y = getattr(self, inputs), getattr(self, targets)
            if inputs in ("X_loss", "X_probe") and X is None and y is None:
                continue
            if X is None or y is None:
                raise InvalidInputError(f"{inputs} and {targets} belong together: give both or neither.")
            X, y = read_only(X, inputs), read_only(y, targets)
            self._check(X, y, inputs, targets, task)
            constant_allowed = self.allow_constant_target and inputs in ("X_P", "X_H")
            if not constant_allowed and bool((y == y[0]).all()):
                raise InvalidInputError(
                    f"target {targets} of task '{task}' is the constant {y[0]:g} over {len(y)} rows: "
                    "there is nothing to learn; choose another target or split, or take more rows."
                )
            object.__setattr__(self, inputs, X)
            object.__setattr__(self, targets, y)

    def _check(self, X: FloatArray, y: FloatArray, inputs: str, targets: str, task: str) -> None:
        """Check shapes and that all values are finite."""
        if X.ndim != 2 or y.ndim != 1:
            raise InvalidInputError(
                f"{inputs} must be (N, D) and {targets} (N,), got shapes {X.shape} and {y.shape}."
            )
        if len(X) != len(y):
            raise InvalidInputError(f"{inputs} has {len(X)} rows but {targets} has {len(y)} values.")
        if X.shape[1] != len(self.feature_names) or not self.feature_names:
            raise InvalidInputError(
                f"{inputs} has {X.shape[1]} columns but there are {len(self.feature_names)} feature names; "
                "both tasks must have the same, non-empty list of features."
            )
        if len(X) < 2:
            raise InvalidInputError(
                f"task '{task}' has {len(X)} row(s) in {inputs}; at least 2 are needed: check the split."
            )
        bad = np.argwhere(~np.isfinite(X))
        if len(bad):
            row, column = bad[0]
            raise InvalidInputError(
                f"{inputs} holds {len(bad)} non-finite value(s), the first at row {row}, feature "
                f"'{self.feature_names[column]}' (column {column}): {X[row, column]}; impute or drop these "
                "rows."
            )
        wrong = np.flatnonzero(~np.isfinite(y))
        if len(wrong):
            raise InvalidInputError(
                f"{targets} holds {len(wrong)} non-finite value(s), the first at row {wrong[0]}: "
                f"{y[wrong[0]]}; drop these rows."
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
        pretrain_name: str = "D_P",
        harmful_name: str = "D_H",
        feature_names: Sequence[str] | None = None,
    ) -> TaskPair:
        """Make a pair of arrays at hand; the checksum is that of their values.

        Args:
            X_P: `(N_P, D)` inputs of the pre-training task.
            y_P: `(N_P,)` its targets.
            X_H: `(N_H, D)` inputs of the harmful task.
            y_H: `(N_H,)` its targets.
            name: Data set, for titles.
            pretrain_name: Pre-training task in words.
            harmful_name: Harmful task in words.
            feature_names: D names; default `x1`, `x2`, ….

        Returns:
            The pair.

        Raises:
            InvalidInputError: As the class.

        Examples:
            >>> TaskPair.from_arrays([[1, 0], [0, 1]], [0, 1], [[1, 1], [2, 0]], [1, 2]).feature_names
            ('x1', 'x2')
        """
        arrays = {
            key: read_only(value, key)
            for key, value in {"X_P": X_P, "y_P": y_P, "X_H": X_H, "y_H": y_H}.items()
        }
        columns = arrays["X_P"].shape[1] if arrays["X_P"].ndim == 2 else 0
        return cls(
            **arrays,  # type: ignore[arg-type]
            name=name,
            pretrain_name=pretrain_name,
            harmful_name=harmful_name,
            feature_names=tuple(feature_names or (f"x{k}" for k in range(1, columns + 1))),
            checksum=sha256_arrays(**arrays),
            provenance=Provenance(
                "given arrays", "memory", f"{name}, arrays given by the caller", "", "", "", False
            ),
        )

    @property
    def rows_pretrain(self) -> int:
        """Number of rows N_P of the pre-training task."""
        return len(self.X_P)

    @property
    def rows_harmful(self) -> int:
        """Number of rows N_H of the harmful task."""
        return len(self.X_H)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return int(self.X_P.shape[1])

    @property
    def loss_sample(self) -> tuple[FloatArray, FloatArray]:
        """`(M_P, D)` inputs and `(M_P,)` targets for the supervised loss on D_P."""
        if self.X_loss is None or self.y_loss is None:
            return self.X_P, self.y_P
        return self.X_loss, self.y_loss

    @property
    def probe_sample(self) -> tuple[FloatArray, FloatArray]:
        """`(M_H, D)` inputs and `(M_H,)` targets for the attacker's probe on D_H."""
        if self.X_probe is None or self.y_probe is None:
            return self.X_H, self.y_H
        return self.X_probe, self.y_probe

    def head(self, rows: int) -> TaskPair:
        """Return the pair cut to the first rows of each array; nothing is standardised again.

        Args:
            rows: At least 2; a task that has fewer keeps all of its rows.

        Returns:
            A new pair with the same checksum and `head` among the options of its provenance.

        Raises:
            InvalidInputError: `rows` is not an integer of at least 2, or a target is constant
                over these rows.
        """
        check_rows(rows)
        names = ("X_P", "y_P", "X_H", "y_H", "X_loss", "y_loss", "X_probe", "y_probe")
        cut: dict[str, Any] = {n: getattr(self, n)[:rows] for n in names if getattr(self, n) is not None}
        options = {**self.provenance.options, "head": int(rows)}
        return replace(self, **cut, provenance=replace(self.provenance, options=options))

    @property
    def label(self) -> str:
        """Data set, which images of it if it has two splits, and where they were found."""
        split = self.provenance.options.get("split")
        return f"{self.name}, {f'{split} images, ' if split else ''}{self.provenance.source}"

    def title(self) -> str:
        """Return `label`, row counts and the first 8 digits of the SHA-256, for figure titles."""
        return (
            f"{self.label}: {self.rows_pretrain} rows D_P, {self.rows_harmful} rows D_H, "
            f"D = {self.dimension}, SHA-256 {self.checksum[:8]}"
        )

    def describe(self) -> str:
        """Return one line with the tasks in words, the row counts, the source and the SHA-256."""
        return (
            f"{self.label}: "
            f"D_P = {self.pretrain_name} ({self.rows_pretrain} rows), "
            f"D_H = {self.harmful_name} ({self.rows_harmful} rows), "
            f"{self.dimension} features, SHA-256 {self.checksum[:8]}"
        )
