"""The door: NumPy, torch and data frames of any library, in and out in the caller's kind, dtype and device.

Inside, all is a float64 tensor on the caller's device. `door`, the decorator of public functions, hands
results back and keeps the caller's state out: gradient and inference mode, default device, NumPy's error
state.
"""

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import reduce, wraps
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import narwhals as nw
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.errors import DeviceError, InvalidInputError, check_known

ArrayLike: TypeAlias = NDArray[Any] | Tensor | list[Any]
Array: TypeAlias = NDArray[Any] | Tensor
FloatArray: TypeAlias = NDArray[np.float64]
TargetKind = Literal["auto", "classification", "regression"]

#: Whole numbers with more different values than this are rarely labels.
MOST_LABELS = 20


F = TypeVar("F", bound=Callable[..., Any])


def door(function: F) -> F:
    """Run a public function in a state of our own, and return tensors as the first array that it was given.

    Tensors of results, also those in dataclasses and tuples, get its kind, dtype and device; whole numbers,
    lists and frames count as NumPy's float64. A function that a gradient goes through stays differentiable.

    Examples:
        >>> door(lambda x: as_tensor(x, "x") / 2)(np.array([1, 3], dtype=np.float32))
        array([0.5, 1.5], dtype=float32)
    """

    @wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        given = next(filter(_has_kind, (*args, *kwargs.values())), None)
        task = hasattr(given, "sample") and frame(given) is None  # frames have a method of that name
        sample = getattr(given, "sample", None) if task else sample_of([0.0] if given is None else given)
        with own_state():
            result = function(*args, **kwargs)
        return handed_back(result, sample)

    return entered  # type: ignore[return-value]


def _has_kind(value: Any) -> bool:
    """Tell whether an argument says of which kind results are to be: an array, a frame, a list, a task."""
    return (
        isinstance(value, (Tensor, np.ndarray, list)) or hasattr(value, "sample") or frame(value) is not None
    )


#: `own_state` as a decorator calls from there.
_CONTEXTLIB = contextlib.__file__

#: NumPy's own error state.
_WARNINGS: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


@contextmanager
def own_state() -> Generator[None]:
    """Compute with NumPy's usual warnings, on the CPU by default, and outside of inference mode.

    As a decorator, `@own_state()`, it serves what returns objects of condnum's own, where `door` hands arrays
    back.
    """
    with ExitStack() as stack:
        if np.geterr() != _WARNINGS:
            stack.enter_context(np.errstate(**_WARNINGS))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def handed_back(result: Any, sample: Any) -> Any:
    """Return a result with its tensors in kind, dtype and device of a sample; None: as they are."""
    if isinstance(result, Tensor) and sample is not None:
        if result.ndim == 0:  # a number: half precision could not hold it
            return result.item() if isinstance(sample, np.ndarray) else result
        return like_sample(sample, result)
    if isinstance(result, tuple) and type(result) is tuple:
        return tuple(handed_back(part, sample) for part in result)
    if is_dataclass(result) and not isinstance(result, type):
        tensors = {
            own.name: handed_back(value, sample)
            for own in fields(result)
            if isinstance(value := getattr(result, own.name), Tensor)
        }
        return replace(result, **tensors) if tensors else result
    return result


def sample_of(X: Any) -> Any:
    """Return an empty array or tensor of the floating-point dtype and device of X; other dtypes: float64."""
    if isinstance(X, Tensor):
        return torch.empty(0, dtype=X.dtype if X.dtype.is_floating_point else torch.float64, device=X.device)
    dtype = as_array(X, "X").dtype.newbyteorder("=")
    return np.empty(0, dtype if dtype in (np.float16, np.float32) else np.float64)


def like_sample(sample: Any, tensor: Tensor) -> Any:
    """Return a tensor in kind, dtype and device of a sample."""
    if isinstance(sample, Tensor):
        return tensor.to(sample.dtype).to(sample.device)  # the dtype first: MPS has no float64
    return tensor.detach().cpu().numpy().astype(sample.dtype, copy=False)


def frame(value: Any) -> "nw.DataFrame[Any] | None":
    """Return a data frame of any library (pandas, polars, Arrow, …) through narwhals; None: it is none."""
    if isinstance(value, Tensor | np.ndarray | list | str | float | None):  # at once, for most arguments
        return None
    try:
        found = nw.from_native(value, pass_through=True, eager_only=True)
    except nw.exceptions.DuplicateError:
        twice = next(name for name in value.columns if list(value.columns).count(name) > 1)
        raise InvalidInputError(f"a table has the column '{twice}' twice; rename or drop one.") from None
    return found if isinstance(found, nw.DataFrame) else None


def selected(table: Any, names: Sequence[Any]) -> Any:
    """Return a data frame with these columns, in this order; a name may be a number."""
    found = frame(table)
    assert found is not None
    own = [str(name) for name in found.columns]
    return found[:, [own.index(str(name)) for name in names]].to_native()


def as_tensor(value: ArrayLike, name: str, *, ndim: int | None = None, minimum_ndim: int = 0) -> Tensor:
    """Return `value` as a finite float64 tensor on its own device, or say what is wrong with it."""
    if isinstance(value, Tensor):
        tensor = _dense(value, name)
        if tensor.is_inference():  # autograd could not save it
            tensor = tensor.clone()
        if tensor.device.type == "mps":
            warnings.warn(
                f"{name} is on {tensor.device}, which has no float64: the CPU computes.", stacklevel=3
            )
            tensor = tensor.cpu()
    else:
        array = as_array(value, name)
        if array.dtype.kind == "c":
            raise InvalidInputError(f"Complex data not supported: {name} must be real, got {array.dtype}.")
        if array.dtype.kind not in "fiub":
            said = f"got dtype {array.dtype}; convert it with .astype(float)"
            if array.dtype == object:
                odd = next((one for one in array.ravel() if not isinstance(one, Real)), None)
                said = f"but an argument must be a string or a number, not {type(odd).__name__}: {odd!r:.40}"
            raise InvalidInputError(f"{name} must hold real numbers, {said}.")
        # torch takes neither longdouble, nor a foreign byte order, nor (quietly) read-only memory.
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite, and is refused below
            tensor = torch.from_numpy(np.require(array, dtype=np.float64, requirements=["W", "C"]))
    if tensor.is_complex():
        raise InvalidInputError(f"Complex data not supported: {name} must be real, got {tensor.dtype}.")
    shape = tuple(tensor.shape)
    if ndim is not None and tensor.ndim != ndim:
        hint = (
            f" Reshape your data: {name}.reshape(1, -1) is one row." if (len(shape), ndim) == (1, 2) else ""
        )
        raise InvalidInputError(f"{name} must have {ndim} dimension(s), got shape {shape}.{hint}")
    if tensor.ndim < minimum_ndim:
        raise InvalidInputError(f"{name} must have at least {minimum_ndim} dimension(s), got shape {shape}.")
    if tensor.numel() == 0:
        what = "sample" if shape[0] == 0 else "feature"
        raise InvalidInputError(
            f"{name} is empty: 0 {what}(s) (shape={shape}) while a minimum of 1 is required."
        )
    tensor = tensor.to(torch.float64)
    if not all_finite(tensor):
        finite = torch.isfinite(tensor)
        first = tuple(int(i) for i in torch.nonzero(~finite)[0])
        count = int((~finite).sum())
        raise InvalidInputError(
            f"{name} holds {count} non-finite value(s) (NaN or inf), the first at index {first}: "
            f"{float(tensor[first].detach())}; impute or drop these rows."
        )
    return tensor


def all_finite(tensor: Tensor) -> bool:
    """Tell whether all entries are finite, mostly by one sum, which no infinite one leaves finite."""
    return math.isfinite(float(tensor.detach().sum())) or bool(torch.isfinite(tensor).all())


def _dense(value: Tensor, name: str) -> Tensor:
    """Return a tensor, but refuse a sparse one."""
    if value.layout != torch.strided:
        raise InvalidInputError(f"{name} is a sparse tensor ({value.layout}); pass {name}.to_dense().")
    return value


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return any array, tensor, table or list as a NumPy array of its stored type, NaN where it is masked."""
    if isinstance(value, Tensor):
        plain = _dense(value, name).detach().cpu()
        return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())
    if hasattr(value, "toarray"):
        raise InvalidInputError(f"{name} is a sparse matrix; pass {name}.toarray().")
    if np.ma.is_masked(value):
        value = value.astype(np.result_type(value.dtype, np.float16)).filled(np.nan)
    try:
        table = frame(value)
        array = np.asarray(value if table is None or hasattr(value, "iloc") else table.to_numpy())
        if array.dtype == object and hasattr(value, "to_numpy"):  # a data frame of mixed types
            array = value.to_numpy(dtype=np.float64, na_value=np.nan)
        elif array.dtype == object and all(isinstance(one, Real) for one in array.ravel()):
            array = np.array(array.tolist())
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInputError(
            f"{name} is not a rectangular array of numbers ({error}); all rows must have the same length."
        ) from error
    return array


def extractor_matrix(theta: Any, name: str = "theta", columns: Sequence[str] | None = None) -> Any:
    """Return the matrix θ `(D, D_hid)` of an extractor, in its stored type; an array comes back as it is.

    A linear layer without bias is its transposed weight, several in a row are their product, and so is what
    has `to_linear()`, such as an `Immunizer`. Where θ was fitted on named columns, or is a data frame with an
    index of names, its rows are brought to the order of the inputs' `columns`.
    """
    matrix, bias = extractor_affine(theta, name, columns)
    if bias is not None and bool(bias.any()):
        raise InvalidInputError(
            f"{name} ({type(theta).__name__}) adds a bias, so its features are not Xθ; pass its matrix, "
            f"{name}.{'theta_' if hasattr(theta, 'theta_') else 'weight.T'}, if the inputs are centered."
        )
    return matrix


def extractor_affine(
    theta: Any, name: str = "theta", columns: Sequence[str] | None = None
) -> tuple[Any, Tensor | None]:
    """Return the matrix θ `(D, D_hid)` and the bias `(D_hid,)`, if there is one; see `extractor_matrix`."""
    if isinstance(theta, type):
        raise InvalidInputError(f"{name} is the class {theta.__name__}; pass an instance of it, fitted.")
    layer, matrix, bias = theta.to_linear() if hasattr(theta, "to_linear") else theta, theta, None
    if isinstance(layer, nn.Module):
        layers = [*layer] if isinstance(layer, nn.Sequential) else [layer]
        linear = [of for of in layers if isinstance(of, nn.Linear)]
        if not layers or len(linear) < len(layers):
            raise InvalidInputError(
                f"{name} is a {type(layer).__name__}, which has no matrix; pass features that it extracts, "
                "or a linear layer without bias."
            )
        product = reduce(torch.matmul, [of.weight.detach().mT for of in linear])
        matrix = getattr(theta, "theta_", product)
        for of in linear:
            bias = None if bias is None else bias @ of.weight.detach().mT
            if of.bias is not None:
                bias = of.bias.detach() + (0 if bias is None else bias)
    elif hasattr(theta, "transform") and frame(theta) is None:  # pandas has a `transform` too
        raise InvalidInputError(
            f"{name} is a {type(theta).__name__}, which has no to_linear(); pass its matrix (D, D_hid)."
        )
    names = getattr(theta, "columns_", None)
    if names is None and hasattr(theta, "iloc") and all(isinstance(own, str) for own in theta.index):
        names = theta.index
    if columns and names is not None:
        names = [str(own) for own in names]
        check_same_names("the table of inputs", columns, name, names)
        order = [names.index(own) for own in columns]
        matrix = matrix.iloc[order] if hasattr(matrix, "iloc") else matrix[order]
    return matrix, bias


def named_columns(*tables: Any) -> list[str] | None:
    """Return the names of the columns of the first data frame; None where all are arrays."""
    found = (frame(table) for table in tables)
    return next(([str(own) for own in table.columns] for table in found if table is not None), None)


def extracted(theta: Any, X: Any, name: str = "theta") -> Array:
    """Return the features of rows `(N, D)` in float64, of the kind of `X`.

    θ is a matrix, by which the rows are multiplied, a module or an estimator, which is applied, or None, the
    identity.
    """
    features = X
    if isinstance(theta, nn.Module):
        inputs, weight = as_tensor(X, "X", minimum_ndim=2), next(theta.parameters(), None)
        training = [module for module in theta.modules() if module.training]
        theta.eval()
        try:
            with torch.no_grad():
                features = theta(inputs if weight is None else inputs.to(weight)).to(inputs.device)
        finally:
            for module in training:
                module.training = True
    elif hasattr(theta, "transform") and frame(theta) is None and not isinstance(theta, type):
        features = theta.transform(X)
    elif theta is not None:
        inputs = as_tensor(X, "X", ndim=2)
        T = as_tensor(extractor_matrix(theta, name, named_columns(X)), name, ndim=2).detach()
        if inputs.shape[1] != len(T):
            hint = f"; it looks transposed: pass {name}.T" if inputs.shape[1] == T.shape[1] else ""
            raise InvalidInputError(
                f"{name} has shape {tuple(T.shape)}, but the inputs have {inputs.shape[1]} columns{hint}."
            )
        features = inputs @ T.to(inputs.device)
    tensor = as_tensor(features, f"features of {name}", ndim=2)
    return tensor if isinstance(X, Tensor) else tensor.detach().cpu().numpy()


def same_columns(*, covariances: bool = False, **tables: Any) -> list[Any]:
    """Bring data frames to the columns of the first one, by name; what has no names is matched by position.

    The rows of `covariances` are named by their columns, and change their order alike.
    """
    frames = {name: found for name, table in tables.items() if (found := frame(table)) is not None}
    first, *others = frames or [""]
    same = dict(tables)
    for name in others:
        order, own = frames[first].columns, frames[name].columns
        check_same_names(first, order, name, own)
        if list(order) == list(own):
            continue
        places = [own.index(column) for column in order]
        found = frames[name][:, places]
        same[name] = (found[places, :] if covariances and len(found) == len(order) else found).to_native()
    return [*same.values()]


def check_same_names(first: str, names: Iterable[Any], second: str, others: Iterable[Any]) -> None:
    """Refuse two lists of columns that are not the same names, each once, in any order."""
    names, others = list(names), list(others)
    for source, own in ((first, names), (second, others)):
        twice = next((name for name in own if own.count(name) > 1), None)
        if twice is not None:
            raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    said = [
        f"{source} has no column {', '.join(map(repr, lost[:5]))}{', …' * (len(lost) > 5)}"
        for source, lost in (
            (second, [name for name in names if name not in set(others)]),
            (first, [name for name in others if name not in set(names)]),
        )
        if lost
    ]
    if said:
        raise InvalidInputError(
            f"{' and '.join(said)}: both tables must have the same columns, which are matched by name; "
            "rename or drop the others."
        )


def as_targets(
    value: Any, name: str, kind: TargetKind = "auto", *, rows: int | None = None, quiet: bool = False
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return labels as codes `(N,)` with their classes `(C,)`, or numbers as a float64 `(N, m)` and None.

    Integers, booleans, text and categories are labels; floats are numbers, and so are several columns.
    `(N, 1)` means `(N,)`; N must be `rows` where that is given. Unless `quiet`, a warning names a choice that
    is often an accident.

    Examples:
        >>> as_targets(["cat", "dog", "cat"], "y")
        (array([0, 1, 0]), array(['cat', 'dog'], dtype='<U3'))
        >>> as_targets([[0.5], [1.5]], "y")
        (array([[0.5],
               [1.5]]), None)
    """
    check_known("kind", kind, get_args(TargetKind))
    categories = hasattr(getattr(value, "dtype", None), "categories")
    array = np.asarray(value) if hasattr(value, "to_numpy") else as_array(value, name)
    if array.dtype == object:
        kinds = {np.asarray(one).dtype.kind for one in array.ravel()}
        if not (kinds <= {"U", "S"} or kinds <= {*"fiub"}):
            raise InvalidInputError(
                f"{name} holds mixed values, such as {array.ravel()[:3].tolist()}; give one number, or one "
                "label (integer or text), per row, and drop rows without one."
            )
        array = np.array(array.tolist())
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if rows is not None and (array.shape[:1] != (rows,) or array.ndim > 2):
        raise InvalidInputError(
            f"expected one target per row, got {name} of shape {array.shape} for {rows} rows."
        )
    text = array.dtype.kind in "USO"
    labels = text or categories or (array.dtype.kind in "iub" and array.ndim == 1)
    if kind == "regression" or not (labels or kind == "classification"):
        Y = as_tensor(array, name, minimum_ndim=1).numpy()
        if kind == "auto" and not quiet and Y.ndim == 1 and few_whole_numbers(Y):
            warnings.warn(
                f"{name} holds {len(np.unique(Y))} different whole numbers, stored as floats: they are taken "
                "for numbers; if they are labels, store them as integers, or pass kind='classification'.",
                stacklevel=_callers_level(),
            )
        return (Y[:, None] if Y.ndim == 1 else Y), None
    if array.ndim != 1 or not array.size:
        raise InvalidInputError(f"labels must be a vector, got {name} of shape {array.shape}: one per row.")
    if not text and not categories and len(odd := (numbers := as_tensor(array, name))[numbers % 1 != 0]):
        raise InvalidInputError(
            f"{name} must hold labels (integers or text), got {odd[0]:g}; if they are numbers, pass "
            "kind='regression'."
        )
    classes, codes = np.unique(array, return_inverse=True)
    if kind == "auto" and not quiet and not text and len(classes) > max(MOST_LABELS, len(array) / 2):
        warnings.warn(
            f"{name} holds {len(classes):,d} different integers in {len(array):,d} rows: they are taken for "
            "labels; if they are numbers, store them as floats, or pass kind='regression'.",
            stacklevel=_callers_level(),
        )
    return codes.astype(np.int64), classes


def _callers_level() -> int:
    """Return the stack level, as a function here warns at it, of the first caller outside of condnum."""
    own, frame_of, level = str(Path(__file__).parent), sys._getframe(1), 1
    while frame_of.f_back and frame_of.f_code.co_filename.startswith((own, _CONTEXTLIB)):
        frame_of, level = frame_of.f_back, level + 1
    return level


def few_whole_numbers(values: FloatArray) -> bool:
    """Tell whether a vector of numbers looks like labels: whole, with few values, which recur."""
    if (values != np.round(values)).any():
        return False
    return 1 < len(np.unique(values)) <= min(MOST_LABELS, len(values) // 2)


def storage_eps(value: ArrayLike) -> float:
    """Return the machine epsilon of the stored dtype, at least that of float64, in which all is computed.

    A promoted float32 still carries its round-off.
    """
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype if value.dtype.is_floating_point else torch.float64).eps
    dtype = as_array(value, "value").dtype
    return max(float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps), 2.0**-52)


def rank_eps(value: ArrayLike) -> float:
    """Return the precision by which ranks are told: `storage_eps`, but half precision counts as float32.

    By its own round-off hardly any direction would be left.
    """
    return min(storage_eps(value), 2.0**-23)


def resolve_device(device: str | torch.device) -> torch.device:
    """Turn `auto`, `cpu` or `cuda[:i]` into a device that exists."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise InvalidInputError(f"unknown device '{device}'; use auto, cpu, cuda or cuda:<index>.") from error
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= count:
            raise DeviceError(
                f"device '{device}' is not available: torch {torch.__version__} sees {count} CUDA "
                "device(s) here; use --device cpu or --device auto, or install a CUDA build and driver."
            )
    elif resolved.type != "cpu":
        raise InvalidInputError(f"device '{device}' is not supported; use auto, cpu, cuda or cuda:<index>.")
    return resolved
