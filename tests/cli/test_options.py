from pathlib import Path

import pytest

from condnum.cli.options import data_source, default_folder, method_list
from condnum.errors import DataNotFoundError, UnknownNameError


def never() -> list[str]:
    raise AssertionError("the registry was imported for nothing")


def test_default_methods_import_nothing() -> None:
    assert method_list(None, never) is None


@pytest.mark.parametrize("text", ["our", "ours,our", "", " , "])
def test_unknown_methods(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown method .*Choices: ours, imma"):
        method_list(text, lambda: ["ours", "imma"])


def test_data_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_source("~") == str(tmp_path)
    assert data_source("auto") == "auto"
    with pytest.raises(
        DataNotFoundError, match=r"--data .*none: there is no such file or folder; .*auto, embedded"
    ):
        data_source(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("auto", "x-auto"),
        ("embedded", "x-embedded"),
        ("a/My Houses (2).csv", "x-my-houses-2"),
        ("..", "x-data"),
    ],
)
def test_default_folder(data: str, folder: str) -> None:
    assert default_folder("x", data) == Path("runs") / folder
