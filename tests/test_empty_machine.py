"""Where nothing is prepared, no CONDNUM_DATA, no ./data, no cache: the notebooks run on the bundled data."""

import pytest

from condnum.errors import DataNotFoundError
from condnum.report.notebook import read_notebook, run_notebook


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch, on_shared_kernel):
    for name in ("CONDNUM_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "parameters", "title"),
    [
        ("house_prices", {"methods": "identity,max_rir"}, "house-prices, bundled data: 309 pre-training"),
        ("mnist_pairs", {"methods": "max_rir", "pairs": "4-9"}, "mnist, 10,000 test images, bundled data"),
    ],
    ids=["house-prices", "mnist"],
)
def test_a_notebook_says_what_it_took(tmp_path, name, parameters, title):
    static = {"static": True} if name == "mnist_pairs" else {}
    report = run_notebook(name, {**parameters, **static, "seeds": 1, "jobs": 1, "quiet": True}, tmp_path)
    outputs = [output for cell in read_notebook(report).cells for output in cell.get("outputs", [])]
    figures = [
        o.data["application/vnd.plotly.v1+json"] for o in outputs if "vnd.plotly" in str(o.get("data"))
    ]
    assert figures
    assert all(title in figure["layout"]["title"]["text"] for figure in figures)


def test_a_missing_file_is_one_paragraph_in_a_notebook(tmp_path):
    with pytest.raises(DataNotFoundError, match="house-prices: train"):
        run_notebook("house_prices", {"data": "nowhere"}, tmp_path)
    cells = read_notebook(tmp_path / "report.failed.ipynb").cells
    (error,) = [o for cell in cells for o in cell.get("outputs", []) if o.output_type == "error"]
    (paragraph,) = error.traceback
    assert paragraph.startswith("DataNotFoundError: house-prices: train.csv.gz or train.csv not found in: ")
    assert "or 'auto', which ends in the bundled data; got 'nowhere'" in paragraph
