import errno
import os
from pathlib import Path

import pytest

from condnum.cli import staging as module
from condnum.cli.staging import staging
from condnum.errors import OutputError


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def fill(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)


def test_promotion_moves_results_only(tmp_path: Path) -> None:
    fill(tmp_path / "out", "results.csv", "report.failed.ipynb", "notes.txt")
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "results.csv", "figures/a.png", "cells/ours-0.json", ".report-x.ipynb")
        assert stage.path == tmp_path / "out" / ".partial"
        stage.promote()
    assert tree(tmp_path / "out") == ["figures/a.png", "notes.txt", "results.csv"]
    assert not stage.path.exists()


def test_promotion_that_fails_says_where_things_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with staging(tmp_path / "out") as stage:
        fill(stage.path, "results.csv")
        monkeypatch.setattr(module.os, "replace", full)
        with pytest.raises(OutputError, match=r"cannot move the results from .*No space left.*still there"):
            stage.promote()


def test_abandoning_keeps_finished_cells(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        fill(
            stage.path,
            "results.csv",
            "cells/ours-0.json",
            "cells/ours/1.json",
            "cells/.half.json",
            "figures/a.png",
        )
        assert stage.abandon() == 2
    assert tree(tmp_path / "out") == [".partial/cells/ours-0.json", ".partial/cells/ours/1.json"]
    assert not (stage.path / "figures").exists()


def test_abandoning_nothing_removes_a_new_folder(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        assert stage.abandon() == 0
    assert not (tmp_path / "out").exists()


def test_abandoning_nothing_keeps_an_old_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staging(tmp_path / "out") as stage:
        stage.abandon()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_notebook_is_shown(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "report.failed.ipynb")
        stage.abandon()
    assert tree(tmp_path / "out") == ["report.failed.ipynb"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        staging(tmp_path / "out"),
        pytest.raises(OutputError, match=r"another run is writing to .*out; wait for it"),
        staging(tmp_path / "out"),
    ):
        pass
    with staging(tmp_path / "out"):
        pass


def test_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fcntl", None)
    with staging(tmp_path / "out"), staging(tmp_path / "out"):
        pass
