from pathlib import Path

import pytest

from condnum.data import available, check, dataset_names, sha256_file
from condnum.errors import UnknownNameError

RAW = Path("data/MNIST/raw")


def by_name(records):
    return {record.name: record for record in records}


def test_nothing_here_but_what_comes_along():
    status = by_name(available())
    assert tuple(status) == dataset_names()
    assert [s.source for s in status.values()] == ["condnum's box"] * 3 + ["embedded"] * 2
    assert [s.rows for s in status.values()] == [1460, 10_000, 10_000, 1797, 442]
    assert [name for name, s in status.items() if s.advice] == ["mnist"]
    assert "these are the test images" in status["mnist"].advice
    results = by_name(check())
    assert all(result.ok for result in results.values())
    assert {name: r.checksum for name, r in results.items()} == {n: s.checksum for n, s in status.items()}
    assert results["diabetes"].shapes == (
        ("X_P", (235, 8)),
        ("y_P", (235,)),
        ("X_H", (207, 8)),
        ("y_H", (207,)),
    )


def test_files_with_an_unknown_sum(write_houses, write_mnist):
    path = write_houses(Path("data/house_prices/train.csv"))
    write_mnist(RAW)
    status = by_name(available())
    assert status["house-prices"].rows == 5
    assert status["house-prices"].checksum == sha256_file(path)
    assert status["house-prices"].short_checksum == sha256_file(path)[:8]
    assert status["house-prices"].known_checksum is False
    assert status["house-prices"].advice.startswith("The checksum is not a known one")
    assert status["mnist"].rows == 30
    assert status["mnist-test"].source == "condnum's box"
    results = by_name(check())
    assert results["house-prices"].status == results["mnist"].status == "unknown checksum"
    assert not results["mnist"].ok
    assert "images 30×28×28, labels 30; SHA-256" in results["mnist"].message


def test_known_sum_is_ok(write_houses, monkeypatch):
    path = write_houses(Path("data/house_prices/train.csv"))
    monkeypatch.setattr(
        "condnum.data.task_pair.KNOWN_CHECKSUMS", {"house_prices/train.csv": sha256_file(path)}
    )
    assert by_name(available())["house-prices"].advice == ""
    (result,) = check("house-prices")
    assert result.ok
    assert result.message.endswith("is known.")


def test_broken_files_are_results_not_exceptions(write_houses, write_mnist):
    write_houses(Path("data/house_prices/train.csv"), drop=("SalePrice",))
    write_mnist(RAW)
    (RAW / "train-images-idx3-ubyte").write_bytes(b"<html>")
    results = by_name(check())
    assert results["house-prices"].status == "broken"
    assert "lacks 1 of the 81 columns: SalePrice" in results["house-prices"].message
    assert results["house-prices"].location == "data/house_prices/train.csv"
    assert "not an IDX file" in results["mnist"].message
    status = by_name(available())["mnist"]
    assert status.found
    assert status.rows is None
    assert "not an IDX file" in status.advice


def test_a_variable_that_names_no_folder(monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", "typo")
    status = by_name(available())["mnist"]
    assert (status.found, status.source, status.rows) == (False, None, None)
    assert "CONDNUM_DATA is 'typo'" in status.advice
    assert by_name(check())["mnist"].status == "missing"


def test_unknown_name():
    with pytest.raises(UnknownNameError, match="unknown data set 'mnits'; did you mean 'mnist'"):
        check("mnits")


@pytest.mark.realdata
def test_real_data_is_whole(real_data):
    results = check()
    assert {r.name: r.status for r in results if not r.name.startswith("di")} == {
        "house-prices": "ok", "mnist": "ok", "mnist-test": "ok",
    }  # fmt: skip
    rows = {s.name: s.rows for s in available()}
    assert rows == {
        "house-prices": 1460, "mnist": 60_000, "mnist-test": 10_000, "digits-8x8": 1797, "diabetes": 442,
    }  # fmt: skip
    assert all(s.advice == "" for s in available() if not s.name.startswith("di"))
