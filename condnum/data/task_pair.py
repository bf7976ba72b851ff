"""What every experiment starts from: the inputs and targets of a pre-training and a harmful task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from condnum.data.checksums import sha256_arrays
from condnum.data.task_arrays import FloatArray, check_finite, check_rows, check_shapes, read_only
from condnum.errors import InvalidInputError

#: Where data are: one of the places that `condnum.data.resolver` looks in, in order, or none of them.
SourceKind = Literal[
    "CONDNUM_DATA", "./data", "user cache", "condnum's box", "given path", "embedded", "given arrays"
]

#: The four arrays that every pair has.
ARRAYS = ("X_P", "y_P", "X_H", "y_H")


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
            check_shapes(X, y, inputs, targets, task, self.feature_names)
            check_finite(X, y, inputs, targets, self.feature_names)
            constant_allowed = self.allow_constant_target and inputs in ("X_P", "X_H")
            if not constant_allowed and bool((y == y[0]).all()):
                raise InvalidInputError(
                    f"target {targets} of task '{task}' is the constant {y[0]:g} over {len(y)} rows: "
                    "there is nothing to learn; choose another target or split, or take more rows."
                )
            object.__setattr__(self, inputs, X)
            object.__setattr__(self, targets, y)

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
        arrays = {key: read_only(value, key) for key, value in zip(ARRAYS, (X_P, y_P, X_H, y_H), strict=True)}
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
