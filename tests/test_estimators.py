"""`Immunizer` and `Eraser` as scikit-learn and torch users meet them: the kind that goes in comes back."""

import pickle
import resource

import numpy as np
import pandas as pd
import pytest
import torch
from covariances import STRUCTURES, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import condnum
from condnum import DescentSettings, Eraser, Immunizer, Task
from condnum.errors import InvalidInputError
from condnum.numbers import times
from condnum.probing import AttackBudget

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
}

#: Either estimator, fitted to what a converter makes of the arrays above.
FITTED = {
    "immunizer": lambda convert: Immunizer().fit(convert(P), convert(H)),
    "eraser": lambda convert: Eraser().fit(convert(H), Y),
    "eraser of blocks": lambda convert: (
        Eraser().partial_fit(convert(H[:9]), Y[:9]).partial_fit(convert(H[9:]), Y[9:])
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", FITTED)
def test_what_goes_in_comes_back(fit, kind):
    X, fitted = KINDS[kind](H), FITTED[fit](KINDS[kind])
    features = fitted.transform(X)
    assert type(features) is type(X)
    dtypes = [
        set(np.ravel(of.dtypes if isinstance(of, pd.DataFrame) else [of.dtype])) for of in (features, X)
    ]
    assert dtypes[0] == dtypes[1]
    layer = fitted.to_linear()
    plain = torch.tensor(np.array(X)) if not isinstance(X, torch.Tensor) else X
    weight = next(layer.parameters())
    out = nn.Sequential(layer)(plain.to(weight)).detach().double().numpy()
    exact = 1e-12 if "64" in str(weight.dtype) else 2e-2 if "16" in kind else 1e-5
    np.testing.assert_allclose(out, np.asarray(features, dtype=np.float64), rtol=exact, atol=exact)
    theta = fitted.theta_
    assert (isinstance(theta, torch.Tensor), theta.dtype) == (
        isinstance(X, torch.Tensor),
        getattr(X, "dtype", theta.dtype),
    )
    if fit == "immunizer":
        np.testing.assert_allclose(np.asarray(X @ theta), np.asarray(features), rtol=exact, atol=exact)


def test_theta_and_verdict_are_those_of_the_functions():
    problem = condnum.ImmunizationProblem.from_data(P, P[:, 0], H, None)
    found, fitted = condnum.immunize(problem), Immunizer().fit(P, H, P[:, 0])
    np.testing.assert_array_equal(fitted.theta_, found.theta)
    assert fitted.verdict_ == found.verdict
    assert fitted.limit_ == found.limit
    assert fitted.explanation_ == found.explanation
    assert "the benign probe takes" in fitted.explanation_
    assert "the benign probe takes" in repr(fitted.verdict_)


def test_the_verdict_is_of_the_theta_that_is_stored():
    X = [torch.tensor(A * [1, 10, 100, 1000], dtype=torch.float16) for A in (P, H)]
    half, double = Immunizer().fit(*X), Immunizer().fit(*(A.double() for A in X))
    measured = condnum.relative_immunization_ratio(half.theta_, *map(Task.of, X))
    assert half.verdict_.rir == pytest.approx(measured.rir, rel=1e-6)
    assert half.verdict_.rir != pytest.approx(double.verdict_.rir, rel=1e-3)


#: Targets of two digits in the kinds that `fit` takes.
TARGETS = {
    "text": lambda y: np.array(["dark", "light"])[y],
    "column": lambda y: y[:, None],
    "series": pd.Series,
    "float32 tensor": lambda y: torch.tensor(y).float(),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", TARGETS)
def test_the_verdict_says_how_slow_the_actual_probes_become(kind, dtype, tmp_path):
    """On the digits 0 and 1 the definition is met, and the benign task is lost."""
    X, digit = load_digits(return_X_y=True)
    rows, inks = (
        [X[digit == of].astype(dtype) for of in (0, 1)],
        [X[digit == of].sum(axis=1) for of in (0, 1)],
    )
    y = [TARGETS[kind]((ink > np.median(ink)).astype(int)) for ink in inks]
    fitted = Immunizer().fit(*rows, *y)
    fitted.save(tmp_path / "theta.safetensors")
    loaded = Immunizer.load(tmp_path / "theta.safetensors")
    assert (loaded.verdict_, repr(loaded.verdict_)) == (fitted.verdict_, repr(fitted.verdict_))
    found, said = fitted.verdict_, str(fitted.verdict_)
    assert said.startswith("Definition 3.1 is met")
    for name, factor in (("benign", found.benign_slowdown), ("harmful", found.harmful_slowdown)):
        assert factor > 10
        assert f"the {name} probe takes {times(factor)} steps as on raw inputs" in said
    assert "The definition is met, but the benign task is lost" in said


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("given", [(), ("benign",), ("harmful",), ("benign", "harmful")], ids=str)
def test_a_probe_is_known_where_its_targets_are(given, dtype):
    y = {f"y_{name}": X[:, 0] for name, X in (("benign", P), ("harmful", H)) if name in given}
    verdict = Immunizer().fit(P.astype(dtype), H.astype(dtype), **y).verdict_
    known = {name for name in ("benign", "harmful") if getattr(verdict, f"{name}_slowdown") is not None}
    assert known == {*given}
    assert ("not known without targets" in repr(verdict)) == (len(given) < 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_stored_projection_keeps_erased_targets_out_of_reach(dtype):
    assert (
        Immunizer("erase").fit(P.astype(dtype), H.astype(dtype), None, Y).verdict_.harmful_slowdown == np.inf
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("fit", FITTED)
def test_on_a_gpu(fit):
    fitted = FITTED[fit](lambda A: torch.tensor(A).float().cuda())
    X = torch.tensor(H).float()
    for of in (X, X.cuda()):
        features = fitted.transform(of)
        assert (features.dtype, features.device) == (of.dtype, of.device)
        right = FITTED[fit](lambda A: torch.tensor(A).float()).transform(X)
        torch.testing.assert_close(features.cpu(), right, rtol=1e-4, atol=1e-4)
    assert next(fitted.to_linear().parameters()).device == fitted.theta_.device == X.cuda().device


@pytest.mark.parametrize("fit", FITTED)
def test_columns_are_matched_by_name(fit):
    fitted, frame = FITTED[fit](KINDS["frame"]), KINDS["frame"](P)
    assert list(fitted.feature_names_in_) == COLUMNS
    turned = fitted.transform(frame[["c", "a", "b", "d"]])
    pd.testing.assert_frame_equal(turned, fitted.transform(frame))
    assert list(turned.columns) == (COLUMNS if "eraser" in fit else [f"immunizer{i}" for i in range(4)])
    with pytest.raises(condnum.CondnumError, match="no column 'd'"):
        fitted.transform(frame[["a", "b", "c"]])
    np.testing.assert_array_equal(np.asarray(fitted.transform(P)), turned)  # no names: by position
    assert not hasattr(clone(fitted).fit(P, Y if "eraser" in fit else H), "feature_names_in_")


#: What a function finds of θ on frames of both tasks.
MEASURES = {
    "audit": lambda theta, P, H: condnum.audit(P, H, theta=theta, attackers=False).row("theta", "compact")[
        "rir"
    ],
    "relative_immunization_ratio": lambda theta, P, H: (
        condnum.relative_immunization_ratio(theta, Task.of(P), Task.of(H)).rir
    ),
    "relative_immunization_ratio of covariances": lambda theta, P, H: (
        condnum.relative_immunization_ratio(theta, P.T @ P, H.T @ H).rir
    ),
    "probe_steps": lambda theta, P, H: condnum.probe_steps(theta, Task.of(H, Z)).slowdown,
    "probe_steps of a covariance": lambda theta, P, H: (
        condnum.probe_steps(theta, Task.of_covariance(H.T @ H, H.T @ Z)).slowdown
    ),
    "linear_probe": lambda theta, P, H: condnum.linear_probe(theta, Task.of(H, Z), steps=3).excess_loss[-1],
    "hessian": lambda theta, P, H: np.trace(condnum.hessian(theta, H.T @ H)),
    "alignment": lambda theta, P, H: condnum.alignment(theta, H.T @ H).spectrum[0],
    "attack_panel": lambda theta, P, H: (
        condnum.attack_panel(H, Z, theta, attackers="fine_tune", budget=AttackBudget(steps=20, dense_steps=5))
        .curves["loss"]
        .sum()
    ),
}


@pytest.mark.parametrize("judge", MEASURES)
def test_every_function_matches_theta_to_named_columns(judge):
    frames = [KINDS["frame"](A).reset_index(drop=True) for A in (P, H)]
    fitted, turned = (Immunizer().fit(*(A[order] for A in frames)) for order in (COLUMNS, [*"dbca"]))
    matrix = pd.DataFrame(turned.theta_, index=[*"dbca"])
    for theta in (turned, matrix):
        # Fits on turned columns differ by round-off, of a θ with κ below 100.
        assert MEASURES[judge](theta, *frames) == pytest.approx(MEASURES[judge](fitted, *frames), rel=1e-6)
    with pytest.raises(InvalidInputError, match="has no column 'z'"):
        MEASURES[judge](matrix, *(A.rename(columns={"a": "z"}) for A in frames))


def test_functions_match_columns_whose_names_are_numbers():
    frames = [pd.DataFrame(A) for A in (P, H)]
    fitted, turned = (Immunizer().fit(*(A[order] for A in frames)) for order in ([0, 1, 2, 3], [3, 1, 2, 0]))
    for judge in ("audit", "relative_immunization_ratio", "probe_steps", "hessian"):
        assert MEASURES[judge](turned, *frames) == pytest.approx(MEASURES[judge](fitted, *frames), rel=1e-6)


@pytest.mark.parametrize("fit", FITTED)
def test_columns_without_text_for_names_are_matched_too(fit, tmp_path):
    fitted, frame = FITTED[fit](pd.DataFrame), pd.DataFrame(P)
    fitted.save(tmp_path / "theta.safetensors")
    for found in (fitted, type(fitted).load(tmp_path / "theta.safetensors")):
        pd.testing.assert_frame_equal(found.transform(frame[[3, 1, 0, 2]]), fitted.transform(frame))


@pytest.mark.parametrize("refit", [lambda of: of.fit(H[:, :3], ["a"] * 60), lambda of: of.fit(H, Y[:9])])
def test_an_eraser_stays_as_it_was_where_a_fit_is_refused(refit):
    fitted, fresh, stream = Eraser().fit(H, Y), Eraser(), Eraser()
    for found in (fitted, fresh):
        with pytest.raises(InvalidInputError):
            refit(found)
    np.testing.assert_array_equal(fitted.transform(H), Eraser().fit(H, Y).transform(H))
    for ask in (lambda: fresh.transform(H), lambda: fresh.theta_, lambda: fresh.to_linear()):
        with pytest.raises(NotFittedError):
            ask()
    with pytest.raises(InvalidInputError):
        stream.partial_fit(H[:5], Y[:4])
    assert stream.partial_fit(H, Y).classes_.tolist() == ["egg", "ham", "tea"]


def test_parameters_count_when_it_is_fitted():
    fitted, stream = Eraser().fit(H, Y), Eraser().partial_fit(H, Y)
    layer = fitted.to_linear().state_dict()
    for found in (fitted, stream):
        found.set_params(strength=0.5)
    torch.testing.assert_close(fitted.to_linear().state_dict(), layer)
    np.testing.assert_allclose(stream.theta_, Eraser().fit(H, Y).theta_, atol=1e-10)
    twice = np.concatenate([H, H]), np.concatenate([Y, Y])
    np.testing.assert_allclose(
        stream.partial_fit(H, Y).theta_, Eraser(strength=0.5).fit(*twice).theta_, atol=1e-10
    )


def test_a_stream_goes_on_from_a_fit_with_the_precision_of_its_coarsest_block():
    single = H.astype(np.float32)
    grown = Eraser().fit(H[:20], Y[:20]).partial_fit(single[20:], Y[20:])
    np.testing.assert_allclose(grown.theta_, Eraser().fit(H, Y).theta_, atol=1e-5)
    assert grown._task.eps == np.finfo(np.float32).eps


@pytest.mark.parametrize("fit", FITTED)
def test_a_file_a_pickle_and_a_clone(fit, tmp_path):
    for kind in ("float64", "float32 tensor", "frame"):
        fitted, X = FITTED[fit](KINDS[kind]), KINDS[kind](P)
        fitted.save(tmp_path / "theta.safetensors")
        for found in (type(fitted).load(tmp_path / "theta.safetensors"), pickle.loads(pickle.dumps(fitted))):
            assert found.get_params() == fitted.get_params()
            np.testing.assert_array_equal(np.asarray(found.transform(X)), np.asarray(fitted.transform(X)))
            torch.testing.assert_close(found.to_linear().state_dict(), fitted.to_linear().state_dict())
            for name in ("verdict_", "limit_", "explanation_"):
                assert getattr(found, name, None) == getattr(fitted, name, None)
    with pytest.raises(NotFittedError):
        clone(fitted).transform(X)


def test_a_file_keeps_a_descent(tmp_path):
    fitted = Immunizer(condnum.get_method("ours"), settings=DescentSettings(steps=5), seed=3).fit(P, H)
    fitted.save(tmp_path / "theta.safetensors")
    found = Immunizer.load(tmp_path / "theta.safetensors")
    assert found.get_params() == fitted.get_params() | {"method": "ours"}
    np.testing.assert_equal(found.history_, fitted.history_)


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"theta": torch.eye(2)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    for name in ("other", "text"):
        with pytest.raises(condnum.errors.DataFormatError, match="holds no Immunizer"):
            Immunizer.load(tmp_path / f"{name}.safetensors")
    with pytest.raises(condnum.errors.DataNotFoundError, match="there is no file"):
        Immunizer.load(tmp_path / "none.safetensors")
    with pytest.raises(condnum.errors.OutputError, match="choose a folder that exists"):
        Eraser().fit(H, Y).save(tmp_path / "none" / "x.safetensors")


def test_pipelines_and_searches():
    fitted = make_pipeline(StandardScaler(), Immunizer(method="max_rir")).fit(P, H)
    assert fitted.transform(P).shape == Immunizer().fit_transform(P, H).shape == P.shape
    for estimator, targets in ((Immunizer(), H), (Eraser(), Y)):
        named = estimator.set_output(transform="pandas").fit(H, targets).transform(H)
        assert isinstance(named, pd.DataFrame)
    X, y = load_digits(return_X_y=True)
    X, y = X[:600], y[:600]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Eraser(), LogisticRegression()),
        {"eraser__strength": [0.0, 1.0], "eraser__keep_unseen": [False, True]},
        cv=3,
    ).fit(X, y)
    assert search.best_params_["eraser__strength"] == 0  # a classifier learns more where nothing is erased
    assert search.cv_results_["mean_test_score"].min() < 0.5 < search.best_score_


REASONS = {
    "check_dtype_object": "a dictionary in X is an InvalidInputError, which is a ValueError and no TypeError",
    "check_estimators_empty_data_messages": "the message is condnum's: X is empty: shape (12, 0)",
    **dict.fromkeys(
        (
            "check_estimators_overwrite_params",
            "check_estimators_fit_returns_self",
            "check_readonly_memmap_input",
        ),
        "three classes take both of two features: nothing would be left, which is an error",
    ),
}


@parametrize_with_checks([Eraser()], expected_failed_checks=lambda estimator: REASONS)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


class TestEraser:
    @pytest.mark.parametrize(
        "y",
        [Y, pd.Series(Y, dtype="category"), torch.tensor(CODES), np.eye(3)[CODES]],
        ids=["text", "category", "integers", "numbers"],
    )
    def test_targets_of_any_type(self, y):
        right = condnum.erasure(H, Y).theta
        fitted = Eraser().fit(H, y)
        np.testing.assert_allclose(fitted.theta_, right, atol=1e-12)
        np.testing.assert_allclose(Eraser().fit(H, y).theta_, Eraser().partial_fit(H, y).theta_, atol=1e-12)
        F = fitted.transform(H)
        np.testing.assert_allclose(F.mean(axis=0), H.mean(axis=0))
        assert len({tuple(np.round(F[label == Y].mean(axis=0), 9)) for label in set(Y)}) == 1
        assert len(getattr(fitted, "classes_", "abc")) == 3
        assert LogisticRegression().fit(F, Y).score(F, Y) == pytest.approx(1 / 3, abs=0.02)

    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 10**6),
        st.sampled_from(STRUCTURES),
        st.integers(2, 8),
        st.booleans(),
        st.sampled_from([0.0, 1e6]),
    )
    def test_blocks_of_any_sizes_and_orders_give_what_all_rows_give(self, seed, kind, D, labels, mean):
        rng = np.random.default_rng(seed)
        X = structured_rows(rng, kind, D)
        X = np.concatenate([X, X[::-1] + rng.normal(size=X.shape) * (X != 0)]) + mean
        y = rng.integers(0, 3, len(X)) if labels else rng.normal(size=(len(X), 2))
        F = X - X.mean(axis=0)
        lengths = np.linalg.norm(F, axis=0)
        sigma = np.linalg.svd(F / np.where(lengths > 1e-9 * (1 + mean), lengths, np.inf), compute_uv=False)
        sigma = sigma[sigma > 1e-10]
        assume(len(sigma) and sigma[-1] > 1e-3)  # the rank is known
        try:
            right = Eraser().fit(X, y)
        except InvalidInputError:  # one class, or no linear part
            assume(False)
        order, blocks = rng.permutation(len(X)), Eraser()
        for part in np.split(order, np.sort(rng.integers(0, len(X), 4))):
            if len(part):
                blocks.partial_fit(X[part], y[part])
        # Columns are known up to the round-off of their means, and σ divides it.
        slack = (
            1e3 * 2.0**-52 * len(X) * (1 + mean / lengths[lengths > 1e-9 * (1 + mean)].min()) / sigma[-1] ** 2
        )
        assume(slack < 1e-2)
        difference = (blocks.theta_ - right.theta_) * lengths[:, None] / np.where(lengths > 0, lengths, 1)
        size = max(1, np.abs(right.theta_ * lengths[:, None] / np.where(lengths > 0, lengths, 1)).max())
        assert np.abs(difference).max() <= slack * size
        assert blocks.erasure_.rank == right.erasure_.rank

    def test_a_stream_of_many_blocks_keeps_few_rows_and_erases(self):
        X, y = load_digits(return_X_y=True)
        eraser = Eraser()
        for start in range(0, len(X), 50):
            eraser.partial_fit(X[start : start + 50] + 1e6, y[start : start + 50])
        assert len(eraser._task.factor) <= 1 + 64 + 10
        F, Z = eraser.transform(X + 1e6), np.eye(10)[y] - np.eye(10)[y].mean(axis=0)
        assert np.abs((F - F.mean(axis=0)).T @ Z).max() < 1e-8 * np.linalg.norm(X) * np.linalg.norm(Z)
        assert eraser.classes_.tolist() == list(range(10))
        np.testing.assert_allclose(eraser.theta_, Eraser().fit(X, y).theta_, atol=1e-6)

    def test_the_classes_of_a_stream_grow(self):
        grown = Eraser()
        for part in np.split(np.argsort(Y, kind="stable"), 4):  # sorted by class: the first block has one
            grown.partial_fit(H[part], Y[part])
        np.testing.assert_allclose(grown.theta_, Eraser().fit(H, Y).theta_, atol=1e-10)
        assert grown.classes_.tolist() == ["egg", "ham", "tea"]
        with pytest.raises(InvalidInputError, match="all 1 labels are of one class, ham: there is nothing"):
            Eraser().partial_fit(H[:1], Y[:1]).transform(H)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: Immunizer().fit(P, Y), r"X_harmful has shape \(60,\), as targets have"),
            (lambda: Immunizer().fit(P, [[1.0], [2.0, 3.0]]), "X_harmful is not a rectangular array"),
            (lambda: Immunizer().fit(P[:, :3], H), "X_benign has 3 features and X_harmful 4"),
            (lambda: Immunizer().fit(P, H, Z[1:]), r"y_benign of shape \(59,\) for 60 rows"),
            (lambda: Immunizer("erase").fit(P, H), "'erase' needs targets, but y_harmful are missing"),
            (
                lambda: condnum.rir_limit(P, H),
                r"benign is an array of shape \(60, 4\).*for rows pass Task.of\(X, y\)",
            ),
            (lambda: Eraser().fit(H, None), "requires y to be passed"),
            (lambda: Eraser().fit(H, ["a"] * 60), "all 60 labels are of one class, a"),
            (lambda: Immunizer().fit(P, H).transform(H[:, :3]), "3 features, but Immunizer is expecting 4"),
            (lambda: Eraser(degree=2).partial_fit(H, Y), r"degree=2 needs all rows.*use fit\(X, y\)"),
            (
                lambda: Eraser().partial_fit(H, Y).partial_fit(H, range(60)),
                "y holds 0, but earlier labels",
            ),
            (
                lambda: Eraser().partial_fit(H, H).partial_fit(H, H[:, :2]),
                "y has 2 columns, but the task has 4",
            ),
            (lambda: Eraser(strength=2).partial_fit(H, Y).theta_, r"strength must lie in \[0, 1\]"),
        ],
    )
    def test_refused(self, call, message):
        with pytest.raises(InvalidInputError, match=message):
            call()

    def test_many_columns_and_few_rows_need_no_square_matrix(self):
        D = 20_000  # D × D would take 3.2 GB
        X, y = np.random.default_rng(0).normal(size=(40, D)).astype(np.float32), np.arange(40) % 3
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for eraser in (Eraser().fit(X, y), Eraser().partial_fit(X[:9], y[:9]).partial_fit(X[9:], y[9:])):
            F, Z = eraser.transform(X).astype(float), np.eye(3)[y] - 1 / 3
            assert np.abs((F - F.mean(axis=0)).T @ (Z - Z.mean(axis=0))).max() < 1e-5
            assert eraser.erasure_.left.shape[1] <= 40
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e6  # kB


class Columns(nn.Module):
    """The first columns of a trunk's features, of which it has more than there are images here."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, X):
        return X[:, : self.count]


def vectors(kind):
    """Features of a benign and a harmful task with labels of the latter, and the trunk that made them."""
    rng = np.random.default_rng(1)
    trunk, labels = nn.Identity(), np.array(["car", "truck"])[np.arange(80) % 2]
    if kind in ("timm", "torchvision"):
        torch.manual_seed(0)
        if kind == "timm":
            trunk = pytest.importorskip("timm").create_model("resnet10t", num_classes=0)
        else:
            trunk = pytest.importorskip("torchvision").models.mobilenet_v3_small()
            trunk.classifier = nn.Identity()
        images = torch.from_numpy(rng.normal(size=(160, 3, 32, 32))).float()
        images[80:] += torch.arange(80)[:, None, None, None] % 2
        with torch.no_grad():
            benign, harmful = trunk.eval()(images).split(80)
        return trunk, benign[:, :32], harmful[:, :32], labels
    benign, harmful = rng.normal(size=(2, 80, 6)) * rng.uniform(1, 9, (2, 1, 6))
    harmful[:, 0] += 9 * (labels == "car")
    convert = {"NumPy": lambda A: A, "torch": lambda A: torch.tensor(A).float(), "frame": pd.DataFrame}[kind]
    return trunk, convert(benign), convert(harmful), labels


@pytest.mark.parametrize("kind", ["NumPy", "torch", "frame", "timm", "torchvision"])
def test_five_lines(kind):
    """The first screen of the README, for features of any kind and nets that condnum does not name."""
    trunk, Z_benign, Z_harmful, labels = vectors(kind)
    imm = condnum.Immunizer("pareto").fit(Z_benign, Z_harmful)
    Z = imm.transform(Z_benign)
    assert (type(Z), Z.shape) == (type(Z_benign), Z_benign.shape)
    assert str(imm.verdict_).startswith("Definition 3.1 is met")
    cut = nn.Identity() if kind not in ("timm", "torchvision") else Columns(Z.shape[1])
    net = nn.Sequential(trunk, cut, imm.to_linear(), nn.Linear(Z.shape[1], 2))
    inputs = torch.zeros(2, *((3, 32, 32) if isinstance(cut, Columns) else (6,)))
    assert net.to(torch.float32)(inputs).shape == (2, 2)
    era = condnum.Eraser().fit(Z_harmful, labels)
    report = condnum.attack_panel(
        Z_harmful, labels, {"raw": None, "immunized": imm, "erased": era}, attackers=["gd", "closed_form"]
    )
    steps = report.steps_table().set_index("attacker")
    assert list(steps.columns) == ["raw", "immunized", "erased"]
    assert set(steps["erased"]) == {"∞"}
    found = condnum.audit(Z_benign, Z_harmful, theta=imm, y_harmful=labels, attackers=False)
    assert "immunized by Definition 3.1" in repr(found) or "compact convention" in repr(found)
    assert found.clauses("theta")["compact"] == imm.verdict_.clauses


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("stream", [False, True])
def test_labels_in_the_last_bits_of_a_column_are_removed_and_amplify_nothing(dtype, stream):
    """A column that is constant but for its round-off, which here is what the labels want."""
    X = np.random.default_rng(0).standard_normal((300, 12))
    y = (X[:, 0] > 0).astype(int)
    X = np.column_stack([X, 5 * (1 + 2 * np.finfo(dtype).eps * y)]).astype(dtype)
    assert np.ptp(X[:, -1]) > 0
    eraser = condnum.Eraser().partial_fit(X, y) if stream else condnum.Eraser().fit(X, y)
    assert np.ptp(eraser.transform(X)[:, -1]) <= np.spacing(dtype(5))
    assert np.linalg.norm(eraser.theta_) < 10
    theta = np.asarray(condnum.erasure(X, y).theta)
    assert not theta[:, -1].any()
    assert np.linalg.norm(theta) < 10
