"""The door: the caller's state, frames, kind, dtype and memory change no number, and stay as they were."""

import contextlib
from dataclasses import fields, is_dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import condnum
from condnum import Eraser, ImmunizationProblem, Immunizer, Task, immunize
from condnum.probing import AttackBudget
from condnum.theory import limits, regularizers

RNG = np.random.default_rng(0)
X_P, X_H = RNG.normal(size=(2, 40, 4)) * [[[1, 2, 3, 4]], [[4, 1, 2, 1]]]
Y_P, Y_H = X_P @ [1.0, 2, 3, 4] + 1, np.where(X_H[:, 0] > 0, "cat", "dog")
THETA = np.diag([1.0, 2, 4, 8]) + 0.5


def tensor(array):
    """The same numbers as a tensor, where they are numbers."""
    return torch.tensor(array) if np.asarray(array).dtype.kind == "f" else array


def calls(kind):
    """Every public function on arrays of a kind, by name: `np.asarray` or `tensor`."""
    P, H, y, z, theta = (kind(of) for of in (X_P, X_H, Y_P, Y_H, THETA))
    K_P, K_H, sigma = P.T @ P, H.T @ H, kind(np.array([4.0, 2, 1]))

    def tasks():
        return Task.of(P, y), Task.of(H, z)

    def problem():
        return ImmunizationProblem.from_data(P, y, H, z)

    steps = {"steps": 3, "record_every": 1}
    return {
        "Task.of": lambda: [of.covariance for of in tasks()],
        "centered": lambda: [of.centered().root for of in tasks()],
        "extended": lambda: Task.of(P[:7], y[:7]).extended(P[7:], y[7:]).moment,
        "ridged": lambda: Task.of_covariance(K_P).ridged(0.1).kappa,
        "covariance": lambda: condnum.covariance(P),
        "hessian": lambda: condnum.hessian(theta, K_P),
        "condition_number": lambda: condnum.condition_number(P),
        "of features": lambda: condnum.condition_number(P, kind="features"),
        "ratio": lambda: condnum.relative_immunization_ratio(theta, K_P, K_H),
        "ratio of tasks": lambda: condnum.relative_immunization_ratio(theta, *tasks()),
        "alignment": lambda: condnum.alignment(theta, K_P),
        "rir_limit": lambda: condnum.rir_limit(K_P, K_H),
        "ridge limit": lambda: limits.ridge_convention_limit(K_P, K_H),
        "null_spaces": lambda: limits.null_spaces(K_P, K_H),
        "pencil": lambda: limits.pencil_directions(K_P, K_H),
        "region": lambda: limits.feasible_region(K_P, K_H).start,
        "ridge_limits": lambda: limits.ridge_limits(K_P, K_H),
        "max_rir": lambda: condnum.max_rir_immunizer(K_P),
        "pareto": lambda: condnum.pareto_immunizer(K_P, K_H),
        "pareto_extractor": lambda: limits.pareto_extractor(K_P, K_H, 0.5),
        "erasure": lambda: condnum.erasure(H, z),
        "erasure of degree 2": lambda: condnum.erasure(H, z, degree=2, rank=2),
        "erasure_price": lambda: condnum.erasure_price(Task.of(P, y), theta[:, :1]),
        "r_well": lambda: [condnum.r_well(K_P), condnum.r_well_gradient(K_P)],
        "r_ill": lambda: [condnum.r_ill(K_P), condnum.r_ill_gradient(K_P)],
        "steps": lambda: [condnum.well_step(theta, K_P, 1e-5), condnum.ill_step(theta, K_P, 1e-5)],
        "spectrum steps": lambda: [
            regularizers.well_spectrum_step(sigma, 0.1), regularizers.ill_spectrum_step(sigma, 0.1)
        ],
        "bounds": lambda: [regularizers.well_step_bound(sigma), regularizers.ill_step_bound(sigma)],
        "probe_steps": lambda: [condnum.probe_steps(theta, of) for of in tasks()],
        "linear_probe": lambda: condnum.linear_probe(theta, tasks()[0], steps=20),
        "attack_panel": lambda: condnum.attack_panel(
            H, z, theta, budget=AttackBudget(steps=20, dense_steps=20)
        ).curves,
        "audit": lambda: condnum.audit(P, H, y_harmful=z, attackers=False).measures,
        "problem": lambda: problem().probe_steps(theta),
        **{
            f"immunize {name}": lambda name=name: immunize(
                problem(), name, **({} if not hasattr(condnum.get_method(name), "defaults") else steps)
            ).theta
            for name in condnum.method_names()
        },
        "Immunizer": lambda: Immunizer().fit(P, H, y, z).transform(H),
        "Immunizer's layer": lambda: Immunizer().fit(P, H).to_linear().weight.detach(),
        "Eraser": lambda: Eraser().fit(H, z).transform(H),
        "Eraser of blocks": lambda: Eraser().partial_fit(H[:9], z[:9]).partial_fit(H[9:], z[9:]).transform(P),
    }  # fmt: skip


def numbers(value):
    """All numbers of a result in one list, also those of records, tables and tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().double().ravel().tolist()
    if isinstance(value, pd.DataFrame):
        return value.to_numpy(dtype=str).ravel().tolist()
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in numbers(one)]
    if is_dataclass(value):
        return [number for own in fields(value) for number in numbers(getattr(value, own.name))]
    return [None if one != one else one for one in np.asarray(value).ravel().tolist()]  # NaN equals NaN


@contextlib.contextmanager
def default(device="cpu", dtype=torch.float32):
    """Another default of torch for a while."""
    before = torch.get_default_device(), torch.get_default_dtype()
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_device(before[0])
        torch.set_default_dtype(before[1])


STATES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "meta": lambda: default("meta"),
    "float64 by default": lambda: default(dtype=torch.float64),
    "errors of NumPy": lambda: np.errstate(all="raise"),
}


def state():
    """All that a caller may have set."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return *modes, str(torch.get_default_device()), np.geterr(), hash(torch.get_rng_state().numpy().tobytes())


@pytest.fixture(scope="module")
def expected():
    return {
        kind: {name: numbers(call()) for name, call in calls(kind).items()} for kind in (np.asarray, tensor)
    }


@pytest.mark.parametrize("around", STATES)
@pytest.mark.parametrize("name", calls(np.asarray))
def test_the_state_around_changes_no_number_and_stays(name, around, expected):
    for kind, known in expected.items():
        call = calls(kind)[name]
        with STATES[around]():
            before = state()
            found = call()
            assert state() == before
        assert numbers(found) == known[name]


FRAMES = {
    "pandas": lambda X: pd.DataFrame(X, columns=[*"abcd"]),
    "pyarrow": lambda X: pytest.importorskip("pyarrow").table(
        dict(zip("abcd", np.asarray(X).T, strict=True))
    ),
    "polars": lambda X: pytest.importorskip("polars").DataFrame(np.asarray(X), schema=[*"abcd"]),
}


def covariance_frame(library, K, names="abcd"):
    """A frame with these columns, which name the rows of a square one where the library can."""
    if library == "pandas":
        return pd.DataFrame(K, index=[*names], columns=[*names])
    if library == "pyarrow":
        return pytest.importorskip("pyarrow").table(dict(zip(names, K.T, strict=True)))
    return pytest.importorskip("polars").DataFrame(K, schema=[*names])


def reordered(table, names="dbca"):
    """A frame of any library with its columns in another order."""
    return table[[*names]] if hasattr(table, "iloc") else table.select([*names])


@pytest.mark.parametrize("library", FRAMES)
class TestFrames:
    def test_rows_meet_by_name_in_any_order(self, library):
        P, H = FRAMES[library](X_P), FRAMES[library](X_H)
        right = condnum.relative_immunization_ratio(THETA, Task.of(X_P, Y_P), Task.of(X_H, Y_H))
        for other in (H, reordered(H)):
            found = condnum.relative_immunization_ratio(THETA, Task.of(P, Y_P), Task.of(other, Y_H))
            np.testing.assert_allclose(numbers(found)[1], numbers(right)[1])
            assert (found.rir, found.fit_lost) == pytest.approx((right.rir, right.fit_lost), rel=1e-9)
            problem = ImmunizationProblem.from_data(P, Y_P, other, Y_H)
            np.testing.assert_allclose(problem.harmful.covariance, X_H.T @ X_H, rtol=1e-9, atol=1e-9)
            blocks = Task.of(H[:9] if library != "pyarrow" else H.slice(0, 9)).extended(other)
            np.testing.assert_allclose(
                blocks.covariance, X_H.T @ X_H + X_H[:9].T @ X_H[:9], rtol=1e-9, atol=1e-9
            )

    def test_a_square_frame_is_a_covariance(self, library):
        K_P, K_H = X_P.T @ X_P, X_H.T @ X_H
        table, other = (covariance_frame(library, K) for K in (K_P, K_H))
        turned = [3, 1, 2, 0]
        moved = covariance_frame(library, K_H[np.ix_(turned, turned)], "dbca")
        right = condnum.rir_limit(K_P, K_H)
        for one in (other, moved):
            assert condnum.rir_limit(table, one).value == pytest.approx(right.value, rel=1e-9)
        theta = condnum.pareto_immunizer(table, other)
        assert isinstance(theta, np.ndarray)
        np.testing.assert_allclose(theta, condnum.pareto_immunizer(K_P, K_H), rtol=1e-9, atol=1e-12)
        assert Task.of_covariance(table).columns == tuple("abcd")

    def test_transform_gives_a_frame_of_the_same_library(self, library):
        P, H = FRAMES[library](X_P), FRAMES[library](X_H)
        for estimator, right in (
            (Immunizer().fit(P, reordered(H)), Immunizer().fit(X_P, X_H)),
            (Eraser().fit(H, Y_H), Eraser().fit(X_H, Y_H)),
            (Eraser(degree=2, rank=2).fit(H, Y_H), Eraser(degree=2, rank=2).fit(X_H, Y_H)),
        ):
            for table in (H, reordered(H)):
                found = estimator.transform(table)
                assert type(found) is type(H)
                np.testing.assert_allclose(np.asarray(found), right.transform(X_H), rtol=1e-9, atol=1e-9)


KINDS = {
    "float32": lambda a: np.asarray(a, np.float32),
    "float64": lambda a: np.asarray(a, np.float64),
    "torch.bfloat16": lambda a: torch.tensor(a, dtype=torch.bfloat16),
    "torch.float32": lambda a: torch.tensor(a, dtype=torch.float32),
    "torch.float64": lambda a: torch.tensor(a, dtype=torch.float64),
}


@pytest.mark.parametrize("name", KINDS)
def test_results_come_back_in_the_callers_kind_and_dtype(name):
    kind = KINDS[name]
    P, H, theta, y = (kind(of) for of in (X_P, X_H, THETA, Y_P))
    K_P, K_H, sigma = kind(X_P.T @ X_P / 40), kind(X_H.T @ X_H / 40), kind([4.0, 2, 1])
    erased = condnum.erasure(H, Y_H)
    results = {
        "max_rir": condnum.max_rir_immunizer(K_P),
        "pareto": condnum.pareto_immunizer(K_P, K_H),
        "of tasks": condnum.pareto_immunizer(Task.of(P, y), Task.of(H)),
        "extractor": limits.pareto_extractor(K_P, K_H, 0.5),
        "well": condnum.well_step(theta, K_P, 1e-4),
        "ill": condnum.ill_step(theta, K_P, 1e-4),
        "spectrum": regularizers.well_spectrum_step(sigma, 0.1),
        "left": erased.left, "right": erased.right, "directions": erased.directions,
        "extractor of an erasure": erased.extractor, "theta": erased.theta,
        "of a task": condnum.erasure(Task.of(H, Y_H)).left,
        "degree 2": condnum.erasure(H, Y_H, degree=2, rank=2).left,
        "hessian": condnum.hessian(theta, K_P), "covariance": condnum.covariance(P / 8),
        "gradient": condnum.r_well_gradient(K_P).gradient,
        "alignment": condnum.alignment(theta, K_P).spectrum,
        "Immunizer": Immunizer().fit(P, H).transform(H), "Eraser": Eraser().fit(H, Y_H).transform(H),
    }  # fmt: skip
    for what, found in results.items():
        assert (type(found), found.dtype) == (type(P), P.dtype), what
        assert np.isfinite(numbers(found)).all(), what


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


MEMORY = {
    "Fortran order": np.asfortranarray,
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": read_only,
    "foreign byte order": lambda a: a.astype(">f8"),
    "transposed tensor": lambda a: torch.tensor(a.T.copy()).T,
    "gradient": lambda a: torch.tensor(a, requires_grad=True),
}


@pytest.mark.parametrize("layout", MEMORY)
def test_the_layout_of_memory_changes_no_number_and_inputs_stay(layout):
    P, H, theta = (MEMORY[layout](of) for of in (X_P, X_H, THETA))
    K_P, K_H = (MEMORY[layout](of.T @ of) for of in (X_P, X_H))
    arrays = [P, H, theta, K_P, K_H]
    plain = lambda of: of.detach().numpy() if isinstance(of, torch.Tensor) else of  # ruff: ignore[lambda-assignment]
    before = [plain(of).copy() for of in arrays]

    def results(P, H, theta, K_P, K_H):
        return numbers([
            condnum.relative_immunization_ratio(theta, Task.of(P, Y_P), Task.of(H, Y_H)),
            condnum.pareto_immunizer(K_P, K_H), condnum.hessian(theta, K_P), condnum.alignment(theta, K_P),
            condnum.well_step(theta, K_P, 1e-5), condnum.erasure(H, Y_H),
            condnum.r_ill_gradient(K_P), Eraser().fit(H, Y_H).transform(H),
        ])  # fmt: skip

    found, right = results(*arrays), results(X_P, X_H, THETA, X_P.T @ X_P, X_H.T @ X_H)
    # BLAS may add in another order: eps times κ, at most 1e4 here.
    for one, other in zip(found, right, strict=True):
        assert one == other or one == pytest.approx(other, rel=1e-9, abs=1e-9)
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(plain(now), then)
