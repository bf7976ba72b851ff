"""`Immunizer` and `Eraser` as scikit-learn and torch users meet them: the kind that goes in comes back."""

import pickle
import resource

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter
from torch import nn

import condnum
from condnum import DescentSettings, Eraser, Immunizer, Task
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError
from condnum.estimators.extractor import Extractor

RNG = np.random.default_rng(0)
P, H = (RNG.normal(size=(60, 4)) * scales for scales in ([1, 2, 3, 4], [4, 3, 2, 1]))
Y = np.array(["ham", "egg", "tea"])[np.arange(60) % 3]
CODES = np.unique(Y, return_inverse=True)[1]
H += (Y == "tea")[:, None]
Z = H @ [1.0, -1.0, 2.0, 0.5]
COLUMNS = list("abcd")
KINDS = {
    "float64": lambda A: A,
    "float32": lambda A: A.astype(np.float32),
    "tensor": torch.tensor,
    "float32 tensor": lambda A: torch.tensor(A, dtype=torch.float32),
    "float16 tensor": lambda A: torch.tensor(A, dtype=torch.float16),
    "frame": lambda A: pd.DataFrame(A, columns=COLUMNS, index=range(7, 7 + len(A))),
    "float32 frame": lambda A: pd.DataFrame(A, columns=COLUMNS, dtype=np.float32),
    "frame of numbers": pd.DataFrame,
}
if torch.cuda.is_available():
    KINDS["float32 CUDA tensor"] = lambda A: torch.tensor(A).float().cuda()
#: Either estimator, fitted to what a converter makes of the arrays above.
FITTED = {
    "immunizer": lambda convert: Immunizer().fit(convert(P), convert(H)),
    "eraser": lambda convert: Eraser().fit(convert(H), Y),
    "blocks": lambda convert: Eraser().partial_fit(convert(H[:9]), Y[:9]).partial_fit(convert(H[9:]), Y[9:]),
    "path": lambda convert: Eraser(strength=0.5).fit(convert(H), Z),
}
each_fit, each_kind = pytest.mark.parametrize("fit", FITTED), pytest.mark.parametrize("kind", KINDS)


@parametrize_with_checks([Eraser()])
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@each_kind
@each_fit
def test_what_goes_in_comes_back(fit, kind):
    X, fitted = KINDS[kind](H), FITTED[fit](KINDS[kind])
    features, theta, layer = fitted.transform(X), fitted.theta_, fitted.to_linear()
    assert type(features) is type(X)
    if isinstance(X, pd.DataFrame):
        pd.testing.assert_index_equal(features.index, X.index)
        assert set(features.dtypes) == {theta.dtype} == set(X.dtypes)
    else:
        assert (features.dtype, theta.dtype, type(theta)) == (X.dtype, X.dtype, type(X))
        assert len({getattr(of, "device", None) for of in (features, theta, X)}) == 1
    rows = torch.as_tensor(X if isinstance(X, torch.Tensor) else np.array(X))
    weight = next(layer.parameters())
    assert (weight.dtype, weight.device) == (rows.dtype, rows.device)
    exact = 1e-12 if "64" in str(rows.dtype) else 2e-2 if "16" in kind else 1e-5
    right = torch.as_tensor(features if isinstance(X, torch.Tensor) else np.array(features))
    torch.testing.assert_close(nn.Sequential(layer)(rows).detach(), right, rtol=exact, atol=exact)


@pytest.mark.parametrize("kind", ["float64", "float32 tensor", "frame", "frame of numbers"])
@each_fit
def test_a_file_a_pickle_and_a_clone(fit, kind, tmp_path):
    fitted, X, path = FITTED[fit](KINDS[kind]), KINDS[kind](P), tmp_path / "theta.safetensors"
    fitted.save(path)
    for found in (type(fitted).load(path), Extractor.load(path), pickle.loads(pickle.dumps(fitted))):
        assert (type(found), found.get_params()) == (type(fitted), fitted.get_params())
        np.testing.assert_array_equal(np.asarray(found.transform(X)), np.asarray(fitted.transform(X)))
        torch.testing.assert_close(found.to_linear().state_dict(), fitted.to_linear().state_dict())
        for name in ("verdict_", "limit_", "explanation_", "columns_"):
            assert getattr(found, name, None) == getattr(fitted, name, None)
        assert list(getattr(found, "classes_", ())) == list(getattr(fitted, "classes_", ()))
    with pytest.raises(NotFittedError):
        clone(fitted).transform(X)


def test_a_file_keeps_a_descent_and_no_rows(tmp_path):
    method, options, path = condnum.get_method("ours"), DescentSettings(steps=5), tmp_path / "t.safetensors"
    fitted = Immunizer(method, settings=options, seed=3, callback=lambda at: None).fit(P, H)
    fitted.save(path)
    found = Immunizer.load(path)
    assert found.get_params() == fitted.get_params() | {"method": "ours", "callback": None}
    np.testing.assert_equal(found.history_, fitted.history_)
    Eraser().fit(H, Y).save(path)
    with pytest.raises(InvalidInputError, match="a loaded Eraser holds no rows to go on from"):
        Eraser.load(path).partial_fit(H, Y)
    assert Eraser.load(path).fit(H, Y).partial_fit(H, Y).classes_.tolist() == ["egg", "ham", "tea"]


@pytest.mark.parametrize("kind", ["frame", "frame of numbers"])
@each_fit
def test_columns_are_matched_by_name(fit, kind):
    fitted, frame = FITTED[fit](KINDS[kind]), KINDS[kind](P)
    assert list(getattr(fitted, "feature_names_in_", [0, 1, 2, 3])) == list(frame.columns)
    turned = fitted.transform(frame.iloc[:, [2, 0, 1, 3]])
    pd.testing.assert_frame_equal(turned, fitted.transform(frame))
    assert list(turned.columns) == list(fitted.get_feature_names_out())
    with pytest.raises(InvalidInputError, match=r"no column '?[d3]'?"):
        fitted.transform(frame.iloc[:, :3])
    np.testing.assert_array_equal(np.asarray(fitted.transform(P)), turned)  # no names: by position
    assert not hasattr(clone(fitted).fit(P, H if fit == "immunizer" else Y), "feature_names_in_")


@pytest.mark.parametrize(
    "y", [Y, pd.Series(Y, dtype="category"), torch.tensor(CODES), np.eye(3)[CODES], CODES[:, None]],
    ids=["text", "category", "integers", "numbers", "column"],
)  # fmt: skip
def test_targets_of_any_type(y):
    for fitted in (Eraser().fit(H, y), Eraser().partial_fit(H, y)):
        np.testing.assert_allclose(fitted.theta_, condnum.erasure(H, Y).theta, atol=1e-12)
        assert len(getattr(fitted, "classes_", "abc")) == 3
        F = fitted.transform(H)
        np.testing.assert_allclose(F.mean(axis=0), H.mean(axis=0))
        assert LogisticRegression().fit(F, Y).score(F, Y) == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize("y", [np.array([*"zam"])[CODES], CODES + 7, np.array([2, 0, 1])[CODES]], ids=str)
def test_names_and_order_of_classes_change_no_number(y):
    np.testing.assert_allclose(Eraser().fit(H, y).theta_, Eraser().fit(H, Y).theta_, atol=1e-12)
    one, other = (Immunizer().fit(P, H, of, of) for of in (Y, y))
    np.testing.assert_allclose(one.theta_, other.theta_, atol=1e-12)
    for name in ("rir", "benign_slowdown", "harmful_slowdown"):
        assert getattr(other.verdict_, name) == pytest.approx(getattr(one.verdict_, name), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_verdict_is_of_the_theta_that_is_stored(dtype):
    X = [(A * [1, 10, 100, 1000]).astype(dtype) for A in (P, H)]
    half, double = Immunizer().fit(*X), Immunizer().fit(*(A.astype(float) for A in X))
    measured = condnum.relative_immunization_ratio(half.theta_, *map(Task.of, X))
    assert half.verdict_.rir == pytest.approx(measured.rir, rel=1e-6)
    assert half.verdict_.rir != pytest.approx(double.verdict_.rir, rel=1e-6)
    assert Immunizer("erase").fit(*X, None, Y).verdict_.harmful_slowdown == np.inf


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
@pytest.mark.parametrize("y", [Y, Z, P[:, :2]], ids=["labels", "numbers", "columns"])
def test_blocks_in_any_order_give_what_all_rows_give(y, first):
    order, right = RNG.permutation(60), Eraser().fit(H, y)
    start, *parts = np.split(order, [1 if y is Z and first != "fit" else 9, 20, 21])
    blocks = getattr(Eraser(), first)(H[start], y[start])
    for part in parts:
        blocks.partial_fit(H[part], y[part])
    np.testing.assert_allclose(blocks.theta_, right.theta_, atol=1e-10)
    np.testing.assert_allclose(blocks.transform(P), right.transform(P), atol=1e-10)


def test_a_stream_keeps_few_rows_and_its_coarsest_precision_and_classes_grow():
    X, y = load_digits(return_X_y=True)
    order, eraser = np.argsort(y, kind="stable"), Eraser()  # the first block has one class
    for part in np.split(order, range(50, len(X), 50)):
        eraser.partial_fit(X[part] + 1e6, y[part])
    assert len(eraser._task.factor) <= 1 + 64 + 10
    assert eraser.classes_.tolist() == list(range(10))
    np.testing.assert_allclose(eraser.theta_, Eraser().fit(X, y).theta_, atol=1e-6)
    F, targets = eraser.transform(X + 1e6), np.eye(10)[y] - np.eye(10)[y].mean(axis=0)
    assert np.abs((F - F.mean(axis=0)).T @ targets).max() < 1e-8 * np.linalg.norm(X) * np.linalg.norm(targets)
    assert eraser.partial_fit(X[:5].astype(np.float32), y[:5])._task.eps == np.finfo(np.float32).eps


def test_pipelines_and_searches():
    assert not any(has_fit_parameter(of, "sample_weight") for of in (Immunizer(), Eraser()))
    fitted = make_pipeline(StandardScaler(), Immunizer(method="max_rir")).fit(P, H)
    assert fitted.transform(P).shape == Immunizer().fit_transform(P, H).shape == P.shape
    for estimator, targets in ((Immunizer(), H), (Eraser(), Y)):
        named = estimator.set_output(transform="pandas").fit(H, targets).transform(H)
        assert isinstance(named, pd.DataFrame)
    model = make_pipeline(StandardScaler(), Eraser(), LogisticRegression())
    grid = {"eraser__strength": [0.0, 1.0], "eraser__keep_unseen": [False, True]}
    search = GridSearchCV(model, grid, cv=3).fit(*(of[:600] for of in load_digits(return_X_y=True)))
    assert search.best_params_["eraser__strength"] == 0  # a classifier learns more where nothing is erased
    assert search.cv_results_["mean_test_score"].min() < 0.5 < search.best_score_


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Immunizer().fit(P, Y), r"X_harmful has shape \(60,\), as targets have"),
        (lambda: Immunizer().fit(P, H, sample_weight=Z), "Immunizer does not support sample_weight.*√weight"),
        (lambda: Eraser().fit(H, Y, sample_weight=Z), "Eraser does not support sample_weight.*repeat rows"),
        (lambda: Eraser().fit(H, None), "requires y to be passed"),
        (lambda: Eraser().fit(H[:1], Z[:1]), "one row tells nothing"),
        (lambda: Eraser().partial_fit(H[:1], Y[:1]).transform(H), "all 1 labels are of one class, ham"),
        (lambda: Immunizer().fit(P, H).transform(H[:, :3]), "3 features, but Immunizer is expecting 4"),
        (lambda: Eraser(degree=2).partial_fit(H, Y), r"degree=2 needs all rows.*use fit\(X, y\)"),
        (lambda: Eraser().fit(H, Y).partial_fit(H, range(60)), "y holds 0, but earlier labels"),
        (lambda: Eraser().fit(H, Y).set_params(kind="regression").partial_fit(H, Y), "is classification"),
        (lambda: condnum.erasure(Task.of(H, Y), Y), "a Task has its own targets"),
        (lambda: condnum.condition_number(Task.of(H), rtol=0.1), "a Task was cut at its rank"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_many_columns_and_few_rows_need_no_square_matrix(tmp_path):
    D = 20_000  # D × D would take 3.2 GB
    X, y = np.random.default_rng(0).normal(size=(40, D)).astype(np.float32), np.arange(40) % 3
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for eraser in (Eraser().fit(X, y), Eraser().partial_fit(X[:9], y[:9]).partial_fit(X[9:], y[9:])):
        eraser.save(tmp_path / "wide.safetensors")
        F, targets = Eraser.load(tmp_path / "wide.safetensors").transform(X).astype(float), np.eye(3)[y]
        assert np.abs((F - F.mean(axis=0)).T @ (targets - targets.mean(axis=0))).max() < 1e-5
        assert eraser.erasure_.left.shape[1] <= 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e6  # kB


#: What a function finds of θ on frames of both tasks.
MEASURES = {
    "audit": lambda theta, P, H: condnum.audit(P, H, theta=theta, attackers=False).measures["rir"].iloc[0],
    "ratio": lambda theta, P, H: condnum.relative_immunization_ratio(theta, Task.of(P), Task.of(H)).rir,
    "of covariances": lambda theta, P, H: condnum.relative_immunization_ratio(theta, P.T @ P, H.T @ H).rir,
    "probe_steps": lambda theta, P, H: condnum.probe_steps(theta, Task.of(H, Z)).slowdown,
    "hessian": lambda theta, P, H: np.trace(condnum.hessian(theta, H.T @ H)),
    "alignment": lambda theta, P, H: condnum.alignment(theta, H.T @ H).spectrum[0],
    "panel": lambda theta, P, H: condnum.attack_panel(H, Z, theta, attackers="gd").curves["loss"].sum(),
}


@pytest.mark.parametrize("judge", MEASURES)
def test_every_function_matches_theta_to_named_columns(judge):
    measure, frames = MEASURES[judge], [pd.DataFrame(A, columns=COLUMNS) for A in (P, H)]
    turned = Immunizer().fit(*(frame[[*"dbca"]] for frame in frames))
    matrix = pd.DataFrame(turned.theta_, index=[*"dbca"])
    right = pytest.approx(measure(Immunizer().fit(*frames), *frames), rel=1e-6)  # of a θ with κ below 100
    assert measure(turned, *frames) == measure(matrix, *frames) == right
    with pytest.raises(InvalidInputError, match="has no column 'z'"):
        measure(matrix, *(A.rename(columns={"a": "z"}) for A in frames))


@pytest.mark.parametrize(("y_P", "y_H"), [(CODES, Y), (P[:, 0], Z)], ids=["labels", "numbers"])
def test_all_agree_on_one_theta_and_what_is_erased(y_P, y_H):
    fitted, problem = Immunizer().fit(P, H, y_P, y_H), condnum.ImmunizationProblem.from_data(P, y_P, H, y_H)
    found, tasks = condnum.immunize(problem), (Task.of(P, y_P), Task.of(H, y_H))
    np.testing.assert_array_equal(fitted.theta_, found.theta)
    assert (fitted.verdict_, fitted.explanation_) == (found.verdict, found.explanation)
    assert fitted.limit_ == pytest.approx(condnum.rir_limit(*tasks).value, rel=1e-12)
    known = condnum.relative_immunization_ratio(fitted.theta_, *tasks)
    audit = condnum.audit(P, H, theta=fitted.theta_, y_benign=y_P, y_harmful=y_H, attackers=False)
    row, steps = audit.row("theta", "compact"), condnum.probe_steps(fitted.theta_, tasks[1]).slowdown
    assert steps == known.harmful_slowdown == fitted.verdict_.harmful_slowdown
    for name in ("harmful_ratio", "benign_ratio", "rir", "benign_slowdown", "harmful_slowdown"):
        same = pytest.approx(getattr(known, name), rel=1e-9)
        assert row[name] == getattr(fitted.verdict_, name) == same
    eraser = Eraser().fit(H, y_H)
    for erased in (condnum.erasure(H, y_H), condnum.erasure(tasks[1])):
        np.testing.assert_allclose(erased.theta, eraser.theta_, atol=1e-12)
        np.testing.assert_allclose(erased.directions.T @ eraser.theta_, 0, atol=1e-10)
    bare = Immunizer().fit(P, H).verdict_
    assert (bare.benign_slowdown, bare.harmful_slowdown) == (None, None)


def test_an_eraser_stays_as_it_was_where_a_fit_is_refused():
    fitted, fresh = Eraser().fit(H, Y), Eraser()
    for found in (fitted, fresh):
        with pytest.raises(InvalidInputError):
            found.fit(H[:, :3], ["a"] * 60)
    np.testing.assert_array_equal(fitted.transform(H), Eraser().fit(H, Y).transform(H))
    with pytest.raises(NotFittedError):
        fresh.to_linear()


def test_what_is_no_file_of_an_immunizer_is_refused(tmp_path):
    (tmp_path / "text.safetensors").write_text("no")
    Eraser().fit(H, Y).save(tmp_path / "eraser.safetensors")
    for name in ("text", "eraser"):
        with pytest.raises(DataFormatError, match="holds no Immunizer"):
            Immunizer.load(tmp_path / f"{name}.safetensors")
    with pytest.raises(DataNotFoundError, match="there is no file"):
        Immunizer.load(tmp_path / "none.safetensors")
