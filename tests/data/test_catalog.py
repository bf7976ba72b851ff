"""What the catalog says of data sets that are whole, unknown, broken or missing."""

from pathlib import Path

import pytest

from condnum.data import available, data_status, sha256_file

RAW = Path("data/MNIST/raw")


class TestCatalog:
    def test_nothing_here_but_what_comes_along(self):
        found = {status.name: status for status in available()}
        assert list(found) == ["house-prices", "mnist", "mnist-test", "digits-8x8", "diabetes"]
        assert [s.source for s in found.values()] == ["bundled data"] * 3 + ["embedded"] * 2
        assert [s.rows for s in found.values()] == [1460, 10_000, 10_000, 1797, 442]
        assert [s.status for s in found.values()] == ["ok"] * 5

    def test_unknown_and_broken_files_are_statuses(self, write_houses, write_mnist, monkeypatch):
        path = write_houses(Path("data/house_prices/train.csv"))
        houses = data_status("house-prices")
        assert (houses.status, houses.rows, houses.checksum) == ("unknown checksum", 5, sha256_file(path))
        write_houses(Path("data/house_prices/train.csv"), drop=("SalePrice",))
        assert data_status("house-prices").status == "broken"
        write_mnist(RAW)
        assert data_status("mnist").rows == 30
        monkeypatch.setenv("CONDNUM_DATA", "typo")
        mnist = data_status("mnist")
        assert (mnist.status, mnist.source, mnist.rows) == ("missing", "", None)
        assert "CONDNUM_DATA is 'typo'" in mnist.advice

    @pytest.mark.realdata
    def test_real_data_is_whole(self, real_data):
        assert [s.rows for s in available()] == [1460, 60_000, 10_000, 1797, 442]
        assert all(s.status == "ok" and s.advice == "" for s in available())
