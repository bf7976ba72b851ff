"""`Immunizer` as scikit-learn and torch users meet it: what goes in comes back, in kind, dtype and device."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import condnum
from condnum import DescentSettings, Immunizer

RNG = np.random.default_rng(0)
P, H = (RNG.normal(size=(60, 4)) * scales for scales in ([1, 2, 3, 4], [4, 3, 2, 1]))
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_in_comes_back(kind):
    X_P, X_H = KINDS[kind](P), KINDS[kind](H)
    fitted = Immunizer().fit(X_P, X_H)
    features = fitted.transform(X_P)
    assert type(features) is type(X_P)
    dtypes = [
        set(np.ravel(of.dtypes if isinstance(of, pd.DataFrame) else [of.dtype])) for of in (features, X_P)
    ]
    assert dtypes[0] == dtypes[1]
    layer = fitted.to_linear()
    plain = torch.tensor(np.array(X_P)) if not isinstance(X_P, torch.Tensor) else X_P
    out = nn.Sequential(layer)(plain.to(layer.weight)).detach().double().numpy()
    exact = 1e-12 if "64" in str(layer.weight.dtype) else 1e-2
    np.testing.assert_allclose(out, np.asarray(features, dtype=np.float64), rtol=exact, atol=exact)
    assert fitted.verdict_.success
    assert str(fitted.verdict_).startswith("Definition 3.1 is met: (i) = ")


def test_theta_and_verdict_are_those_of_the_functions():
    problem = condnum.ImmunizationProblem.from_data(P, P[:, 0], H, None)
    found, fitted = condnum.immunize(problem), Immunizer().fit(P, H, P[:, 0])
    np.testing.assert_array_equal(fitted.theta_, found.theta)
    assert fitted.verdict_ == found.verdict
    assert fitted.limit_ == found.ceiling
    assert fitted.explanation_ == found.explanation
    assert "the benign probe takes" in fitted.explanation_


def test_the_verdict_is_of_the_theta_that_is_stored():
    X = [torch.tensor(A * [1, 10, 100, 1000], dtype=torch.float16) for A in (P, H)]
    half, double = Immunizer().fit(*X), Immunizer().fit(*(A.double() for A in X))
    measured = condnum.relative_immunization_ratio(half.theta_, *(condnum.covariance(A) for A in X))
    assert half.verdict_.rir == pytest.approx(measured.rir, rel=1e-6)
    assert half.verdict_.rir != pytest.approx(double.verdict_.rir, rel=1e-3)


def test_columns_are_matched_by_name():
    frame, harmful = KINDS["frame"](P), KINDS["frame"](H)
    fitted = Immunizer().fit(frame, harmful[["d", "b", "a", "c"]])
    np.testing.assert_array_equal(fitted.theta_, Immunizer().fit(P, H).theta_)
    assert list(fitted.feature_names_in_) == COLUMNS
    turned = fitted.transform(frame[["c", "a", "b", "d"]])
    pd.testing.assert_frame_equal(turned, fitted.transform(frame))
    assert list(turned.columns) == ["immunizer0", "immunizer1", "immunizer2", "immunizer3"]
    with pytest.raises(condnum.CondnumError, match="no column 'd'"):
        fitted.transform(frame[["a", "b", "c"]])
    fitted.fit(P, H)
    assert not hasattr(fitted, "feature_names_in_")


def test_scikit_learn():
    fitted = make_pipeline(StandardScaler(), clone(Immunizer(method="max_rir"))).fit(P, H)
    assert fitted.transform(P).shape == P.shape
    named = Immunizer().set_output(transform="pandas").fit(P, H).transform(P)
    assert named.columns[0] == "immunizer0"
    with pytest.raises(NotFittedError):
        Immunizer().transform(P)
    with pytest.raises(condnum.CondnumError, match="X has 3 features, but this Immunizer was fitted to 4"):
        Immunizer().fit(P, H).transform(P[:, :3])


@pytest.mark.parametrize("kind", ["float64", "float32 tensor", "frame"])
def test_a_file_gives_the_same_immunizer(kind, tmp_path):
    X = KINDS[kind](P)
    descent = Immunizer("ours", settings=DescentSettings(steps=5), seed=3)
    for fitted in (Immunizer().fit(X, KINDS[kind](H)), descent.fit(X, KINDS[kind](H))):
        fitted.save(tmp_path / "theta.safetensors")
        found = Immunizer.load(tmp_path / "theta.safetensors")
        assert found.explanation_ == fitted.explanation_
        assert found.get_params() == fitted.get_params()
        assert (found.verdict_, found.limit_) == (fitted.verdict_, fitted.limit_)
        np.testing.assert_equal(found.history_, fitted.history_)
        np.testing.assert_array_equal(np.asarray(found.transform(X)), np.asarray(fitted.transform(X)))


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"theta": torch.eye(2)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    for name in ("other", "text"):
        with pytest.raises(condnum.errors.DataFormatError, match="holds no Immunizer"):
            Immunizer.load(tmp_path / f"{name}.safetensors")
