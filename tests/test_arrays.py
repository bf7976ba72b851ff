"""The border: what comes in, what goes out, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import scipy
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import FunctionTransformer
from torch import nn

import condnum
from condnum.arrays import (
    as_targets,
    as_tensor,
    extracted,
    extractor_matrix,
    resolve_device,
)
from condnum.data import TaskPair
from condnum.errors import DeviceError, InvalidInputError

TABLE = [[1, 2], [3, 4]]
READ_ONLY = np.array(TABLE, dtype=float)
READ_ONLY.flags.writeable = False


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "value",
    [
        TABLE,
        *(np.array(TABLE, dtype=t) for t in (np.int8, ">f8", np.longdouble, np.float16)),
        np.array([[4.0, 3], [2, 1]])[::-1, ::-1],
        READ_ONLY,
        torch.tensor(TABLE, dtype=torch.bfloat16),
        [torch.tensor(row) for row in TABLE],
        pd.DataFrame(TABLE).astype({0: "Int64", 1: "float32"}),
    ],
)
def test_everything_becomes_float64(value):
    tensor = as_tensor(value, "x", ndim=2)
    assert tensor.dtype is torch.float64
    assert tensor.tolist() == TABLE


def test_scalars_booleans_and_what_is_shared():
    assert as_tensor(np.array([True, False]), "x").tolist() == [1, 0]
    assert (as_tensor(2.5, "x").shape, as_tensor(np.float32(2), "x").shape) == ((), ())
    x = torch.ones(2, requires_grad=True)
    (3 * as_tensor(x, "x")).sum().backward()  # the graph is kept
    assert x.grad.tolist() == [3, 3]
    shared = np.zeros(3)
    as_tensor(shared, "x")[0] = 7
    as_tensor(READ_ONLY, "x")[0, 0] = 7  # a copy
    assert (shared.tolist(), READ_ONLY.tolist()) == ([7, 0, 0], TABLE)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ([[1, 2], [3]], {}, "x is not a rectangular array"),
        (pd.DataFrame({"a": [1.5], "b": ["c"]}), {}, "could not convert string to float: 'c'"),
        (pd.DataFrame({"a": [1, None]}, dtype="Int64"), {}, r"1 non-finite.*NaN or inf.*index \(1, 0\): nan"),
        (np.ma.masked_equal([[1, -999]], -999), {}, r"1 non-finite.*NaN or inf.*index \(0, 1\): nan"),
        (scipy.sparse.eye_array(2), {}, r"x is a sparse matrix; pass x.toarray\(\)"),
        (torch.eye(2).to_sparse(), {}, r"x is a sparse tensor .*; pass x.to_dense\(\)"),
        (np.array(["a"]), {}, "x must hold real numbers, got dtype <U1"),
        (np.array([1j]), {}, "Complex data not supported: x must be real, got complex128"),
        (np.ones(3), {"ndim": 2}, r"x must have 2 dimension\(s\), got shape \(3,\)"),
        (np.ones((0, 3)), {}, r"x is empty: 0 sample\(s\) \(shape=\(0, 3\)\)"),
        (np.array([[1.0, 2], [np.nan, np.inf]]), {}, r"2 non-finite.*index \(1, 0\): nan; impute or drop"),
    ],
)
def test_refused(value, options, message):
    with pytest.raises(InvalidInputError, match=message):
        as_tensor(value, "x", **options)


def test_devices(monkeypatch):
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")
    for name, message in (("gpu", "unknown device 'gpu'"), ("mps", "not supported")):
        with pytest.raises(InvalidInputError, match=message):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(DeviceError, match=r"'cuda:1' is not available.*--device cpu"):
        resolve_device("cuda:1")


RNG = np.random.default_rng(0)
P = pd.DataFrame(RNG.normal(size=(60, 3)) * [1, 10, 100], columns=["a", "b", "c"])
H = pd.DataFrame(RNG.normal(size=(60, 3)) * [100, 10, 1], columns=["a", "b", "c"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (H.rename(columns={"a": "d"}), r"X_(H|harmful) has no column 'a' and X_(P|benign) has no column 'd'"),
        (H.assign(d=1.0), r"^X_(P|benign) has no column 'd': both tables must"),
        (H.drop(columns="b"), r"^X_(H|harmful) has no column 'b': both tables must"),
        (H[["a", "b", "c", "c"]], "has the column 'c' twice"),
    ],
)
def test_tables_with_other_columns_are_refused(other, message):
    y = np.arange(60.0)
    for make in (TaskPair.from_arrays, condnum.ImmunizationProblem.from_data):
        with pytest.raises(InvalidInputError, match=message):
            make(P, y, other, y)


LABELS = {
    "integers": [2, 0, 2],
    "booleans": np.array([True, False, True]),
    "bytes of a tensor": torch.tensor([9, 3, 9], dtype=torch.uint8),
    "one column": np.array([[5], [-1], [5]]),
    "objects": np.array(["ham", "egg", "ham"], dtype=object),
    "strings of pandas": pd.Series(["ham", "egg", "ham"], dtype="string"),
    "categories": pd.Series([2.5, 0.5, 2.5]).astype("category"),
    "nullable integers": pd.DataFrame({"y": pd.array([4, 2, 4], dtype="Int64")}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LABELS)
def test_integers_text_and_categories_are_labels(name):
    codes, classes = as_targets(LABELS[name], "y")
    assert (codes.tolist(), codes.dtype, len(classes)) == ([1, 0, 1], np.int64, 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [[0.5, 1, 2], torch.tensor([[1.0], [2], [4]]), np.eye(3, 2, dtype=int)])
def test_floats_and_several_columns_are_numbers(value):
    numbers, classes = as_targets(value, "y")
    assert (numbers.ndim, len(numbers), classes) == (2, 3, None)


def test_a_choice_that_is_often_an_accident_is_named():
    read, index = [1.0, 2.0, 1.0, 2.0], np.arange(50)
    with pytest.warns(UserWarning, match="y holds 2 different whole numbers.* pass kind='classification'"):
        assert as_targets(read, "y")[1] is None
    with pytest.warns(UserWarning, match="y holds 50 different integers in 50 rows.* pass kind='regression'"):
        assert len(as_targets(index, "y")[1]) == 50
    assert as_targets(read, "y", "classification")[0].tolist() == [0, 1, 0, 1]
    assert as_targets(index, "y", "regression")[0].shape == (50, 1)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (["a", None], "auto", r"y holds mixed values, such as \['a', None\]"),
        ([1.5, 2.0], "classification", "y must hold labels .* got 1.5"),
        (["1", "2"], "regression", "y must hold real numbers, got dtype <U1"),
        ([1.0, np.nan], "auto", "y holds 1 non-finite"),
        ([["a", "b"]], "auto", r"labels must be a vector, got y of shape \(1, 2\)"),
    ],
)
def test_targets_refused(value, kind, message):
    with pytest.raises(InvalidInputError, match=message):
        as_targets(value, "y", kind)


class TestExtractors:
    """An extractor is an array, a module, an estimator or None, wherever θ is taken."""

    X, THETA = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]), np.array([[1.0, 0], [0, 2], [1, 1]])

    def layer(self, bias=None):
        layer = nn.Linear(3, 2, bias=bias is not None)
        layer.load_state_dict(
            {"weight": torch.tensor(self.THETA.T)} | ({} if bias is None else {"bias": bias})
        )
        return layer

    def test_the_matrix_of_whatever_is_linear(self):
        immunizer = condnum.Immunizer().fit(np.diag([10.0, 1.0]), np.diag([1.5, 1.0]))
        np.testing.assert_array_equal(extractor_matrix(immunizer), immunizer.theta_)
        for theta in (self.THETA, pd.DataFrame(self.THETA), self.layer(), self.layer(torch.zeros(2))):
            np.testing.assert_array_equal(extractor_matrix(theta), self.THETA)
        found = condnum.relative_immunization_ratio(self.layer().double(), np.eye(3), np.diag([1.0, 2, 3]))
        assert (
            found.rir == condnum.relative_immunization_ratio(self.THETA, np.eye(3), np.diag([1.0, 2, 3])).rir
        )

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda layer: layer(torch.ones(2)), r"adds a bias.* theta.weight.T"),
            (lambda layer: nn.Sequential(layer(), nn.ReLU()), "is a Sequential, which has no matrix"),
            (lambda layer: PCA(), r"is a PCA, which has no to_linear\(\)"),
            (lambda layer: condnum.Immunizer, "is the class Immunizer; pass an instance"),
        ],
    )
    def test_what_is_not_linear_is_refused(self, make, message):
        with pytest.raises(InvalidInputError, match=message):
            extractor_matrix(make(self.layer))

    def test_features_of_rows(self):
        for kind in (np.array, torch.tensor, pd.DataFrame, np.float32):
            for theta in (
                self.THETA,
                self.layer(),
                FunctionTransformer(lambda X: np.asarray(X) @ self.THETA),
            ):
                found = extracted(theta, kind(self.X))
                assert isinstance(found, torch.Tensor if kind is torch.tensor else np.ndarray)
                np.testing.assert_allclose(found, self.X @ self.THETA)
        np.testing.assert_array_equal(extracted(None, self.X), self.X)
        with pytest.raises(InvalidInputError, match=r"shape \(2, 3\), but .* 3 columns; it looks transposed"):
            extracted(self.THETA.T, self.X)

    def test_a_net_is_evaluated_and_left_as_it_was(self):
        net = nn.Sequential(self.layer(), nn.Dropout(0.9), nn.BatchNorm1d(2)).train()
        net[2].eval()
        np.testing.assert_allclose(extracted(net, self.X), self.X @ self.THETA, rtol=1e-4)
        assert [part.training for part in net] == [True, True, False]
