import pytest
from typer.testing import CliRunner

from condnum.cli import app
from condnum.cli.data import columns
from condnum.data import catalog
from condnum.data.catalog import CheckResult, DataStatus

HERE = DataStatus("houses", True, "CONDNUM_DATA", "/d/train.csv", 10, "a" * 64, True, "")
ODD = DataStatus("odd", True, "CONDNUM_DATA", "/d/odd.csv", None, "b" * 64, False, "Run a full check.")
GONE = DataStatus("gone", False, None, "", None, "", False, "gone: put a.csv into data/.")


def test_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda: [HERE, ODD, GONE])
    result = CliRunner().invoke(app, ["data"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["data", "set", "source", "rows", "SHA-256", "location"]
    assert lines[1].split() == ["houses", "CONDNUM_DATA", "10", "aaaaaaaa", "/d/train.csv"]
    assert "bbbbbbbb (unknown)" in lines[2]
    assert lines[3].split() == ["gone", "missing"]
    assert lines[4:] == ["", "Run a full check.", "", "gone: put a.csv into data/."]


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("missing", 1), ("unknown checksum", 1), ("broken", 1)]
)
def test_check(monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    def check(name: str | None) -> list[CheckResult]:
        assert name == "houses"
        return [CheckResult("houses", status, "why", "/d", "a" * 64, (("X_P", (3, 2)),))]  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "check", check)
    result = CliRunner().invoke(app, ["data", "check", "houses"])
    assert result.exit_code == code
    assert result.stdout == f"houses: {status}\n  why\n  X_P 3 x 2\n"


def test_embedded_data_are_whole() -> None:
    result = CliRunner().invoke(app, ["data", "check", "diabetes"])
    assert result.exit_code == 0
    assert "diabetes: ok" in result.stdout


def test_columns() -> None:
    assert columns([("a", "bb"), ("ccc", "")]) == "a    bb\nccc"
