"""The border: what comes in, what goes out, and what is refused."""

import numpy as np
import pytest
import torch

from condnum.arrays import as_tensor, like, resolve_device, storage_eps
from condnum.errors import DeviceError, InvalidInputError


class TestAsTensor:
    @pytest.mark.parametrize(
        "value",
        [
            [[1, 2], [3, 4]],
            np.array([[1, 2], [3, 4]], dtype=np.int8),
            np.array([[1, 2], [3, 4]], dtype=np.float32),
            np.array([[1, 3], [2, 4]], dtype=np.float64).T,
            torch.tensor([[1, 2], [3, 4]]),
            torch.tensor([[1, 2], [3, 4]], dtype=torch.float16),
        ],
        ids=["list", "int8", "float32", "transposed", "torch-int", "torch-half"],
    )
    def test_everything_becomes_float64(self, value):
        tensor = as_tensor(value, "x", ndim=2)
        assert tensor.dtype is torch.float64
        assert tensor.tolist() == [[1, 2], [3, 4]]

    def test_booleans_and_scalars(self):
        assert as_tensor(np.array([True, False]), "x").tolist() == [1, 0]
        assert as_tensor(2.5, "x").tolist() == pytest.approx(2.5)

    @pytest.mark.parametrize("dtype", [">f8", "<f8", np.longdouble, np.float16, np.uint16, ">i4"])
    def test_numpy_dtypes_that_torch_does_not_know(self, dtype):
        assert as_tensor(np.array([1, 2], dtype=dtype), "x").tolist() == [1, 2]

    @pytest.mark.filterwarnings("error")
    def test_read_only_memory_is_copied_without_a_warning(self):
        x = np.arange(3.0)
        x.flags.writeable = False
        tensor = as_tensor(x, "x")
        tensor[0] = 7
        assert x.tolist() == [0, 1, 2]

    def test_scalars_keep_no_dimension(self):
        assert as_tensor(np.float32(2), "x").shape == ()

    def test_negative_strides(self):
        assert as_tensor(np.arange(3.0)[::-1], "x").tolist() == [2, 1, 0]

    def test_the_graph_is_kept(self):
        x = torch.ones(2, requires_grad=True)
        (3 * as_tensor(x, "x")).sum().backward()
        assert x.grad.tolist() == [3, 3]

    def test_float64_is_shared_not_copied(self):
        x = np.zeros(3)
        as_tensor(x, "x")[0] = 7
        assert x.tolist() == [7, 0, 0]

    @pytest.mark.parametrize(
        ("value", "options", "message"),
        [
            ([[1, 2], [3]], {}, "x is not a rectangular array"),
            (np.array(["a"]), {}, "x must hold real numbers, got dtype <U1"),
            (np.array([1j]), {}, "x must hold real numbers, got dtype complex128"),
            (torch.tensor([1j]), {}, r"x must be real, got dtype torch\.complex64"),
            (np.ones(3), {"ndim": 2}, r"x must have 2 dimension\(s\), got shape \(3,\)"),
            (np.ones((1, 1, 1)), {"ndim": 2}, r"got shape \(1, 1, 1\)"),
            (np.ones(3), {"minimum_ndim": 2}, r"x must have at least 2 dimension\(s\), got shape \(3,\)"),
            (np.ones((0, 3)), {}, r"x is empty: shape \(0, 3\)"),
            (
                np.array([[1.0, 2], [np.nan, np.inf]]),
                {},
                r"2 non-finite.*index \(1, 0\): nan; impute or drop",
            ),
            (torch.tensor([1.0, -torch.inf], requires_grad=True), {}, r"1 non-finite.*\(1,\): -inf"),
        ],
    )
    def test_refused(self, value, options, message):
        with pytest.raises(InvalidInputError, match=message):
            as_tensor(value, "x", **options)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (np.zeros(1, dtype=np.float32), 23),
        (np.zeros(1), 52),
        (np.zeros(1, dtype=int), 52),
        ([1, 2], 52),
        (torch.zeros(1), 23),
        (torch.zeros(1, dtype=torch.float64), 52),
        (torch.zeros(1, dtype=torch.int64), 52),
        (torch.zeros(1, dtype=torch.bfloat16), 7),
    ],
    ids=["float32", "float64", "int", "list", "t-float32", "t-float64", "t-int", "t-bfloat16"],
)
def test_storage_eps(value, bits):
    assert np.log2(storage_eps(value)) == pytest.approx(-bits, abs=1e-12)


def test_like_hands_back_the_kind():
    tensor = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert like(torch.zeros(1))(tensor) is tensor
    for reference in (np.zeros(1), [0.0]):
        array = like(reference)(tensor)
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, [1, 1])


class TestResolveDevice:
    def test_cpu_and_auto(self):
        assert resolve_device("cpu") == torch.device("cpu")
        assert resolve_device(torch.device("cpu")) == torch.device("cpu")
        expected = "cuda" if torch.cuda.is_available() else "cpu"
        assert resolve_device("auto").type == expected

    def test_a_device_that_is_not_there(self):
        with pytest.raises(DeviceError, match=r"'cuda:99' was asked for.*--device cpu"):
            resolve_device("cuda:99")

    def test_cuda_by_name_without_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(DeviceError, match="sees 0 CUDA"):
            resolve_device("cuda")
        assert resolve_device("auto") == torch.device("cpu")

    def test_cuda_when_there_is_one(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert resolve_device("auto") == torch.device("cuda")
        assert resolve_device("cuda:0") == torch.device("cuda:0")

    @pytest.mark.parametrize(("name", "message"), [("gpu", "unknown device 'gpu'"), ("mps", "not supported")])
    def test_bad_names(self, name, message):
        with pytest.raises(InvalidInputError, match=message):
            resolve_device(name)
