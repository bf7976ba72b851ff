import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from condnum.cli import promotion
from condnum.cli.staging import staging
from condnum.errors import DataFormatError, OutputError
from condnum.files import write_json
from condnum.studies.store import ResultStore


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
    def full(source: Path, target: Path, move: Callable[..., None] = os.replace) -> None:
        if Path(target).name == "results.csv":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(source, target)

    with staging(tmp_path / "out") as stage:
        fill(stage.path, "results.csv")
        with monkeypatch.context() as patch:
            patch.setattr(promotion.os, "replace", full)
            with pytest.raises(OutputError, match=r"cannot move the results .*No space left.*still there"):
                stage.promote()
    assert (tmp_path / "out" / "INCOMPLETE.txt").exists()
    with staging(tmp_path / "out") as stage:
        assert stage.completed
        assert tree(tmp_path / "out") == [".partial/.lock", "results.csv"]


def test_what_a_killed_run_left_is_not_taken_for_a_result(tmp_path: Path) -> None:
    fill(tmp_path / "out" / ".partial", "old.csv", "figures/old.png", ".report-x.ipynb", "cells/x")
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "new.csv")
        stage.promote()
    assert tree(tmp_path / "out") == ["new.csv"]


def test_files_of_the_run_before_go_and_those_of_others_stay(tmp_path: Path) -> None:
    fill(tmp_path / "out", "notes.txt")
    for names in (("results.csv", "figures/a.png"), ("results.csv", "b.csv")):
        with staging(tmp_path / "out") as stage:
            fill(stage.path, *names)
            write_json(stage.path / "provenance.json", {"files": stage.checksums()})
            stage.promote()
    assert tree(tmp_path / "out") == ["b.csv", "notes.txt", "provenance.json", "results.csv"]
    assert not (tmp_path / "out" / "figures").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"move": ["../../x"], "remove": [], "keep_store": false}',
        '{"move": [], "remove": ["/etc/passwd"], "keep_store": false}',
        '{"move": [], "remove": [3], "keep_store": false}',
        '{"move": [], "remove": [], "keep_store": "no"}',
    ],
)
def test_a_foreign_journal_is_refused(tmp_path: Path, text: str) -> None:
    fill(tmp_path / "out" / ".partial", ".promotion.json", "results.csv")
    (tmp_path / "out" / ".partial" / ".promotion.json").write_text(text)
    with (
        pytest.raises(DataFormatError, match=r"is no journal of condnum; move the folder"),
        staging(tmp_path / "out"),
    ):
        pass
    assert (tmp_path / "out" / ".partial" / "results.csv").exists()


def keep(folder: Path, *keys: str) -> None:
    with ResultStore(folder) as store:
        for key in keys:
            store.put(key, {"rir": 2.0}, {"theta": [1.0]})


def test_abandoning_keeps_the_store(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "results.csv", "figures/a.png")
        keep(stage.cells, "a", "b")
        assert stage.abandon() == 2
        assert sorted(path.name for path in stage.path.iterdir()) == [".lock", "cells"]
        with ResultStore(stage.cells) as store:
            assert list(store.rows()) == ["a", "b"]


def test_a_store_without_finished_cells_goes(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        with ResultStore(stage.cells) as store:
            store.fail("a", "ValueError: singular")
        assert stage.abandon() == 0
    assert not (tmp_path / "out").exists()


def test_a_store_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "results.csv", "cells/results.sqlite", "cells/arrays/a.npz")
        assert stage.finished_cells() is None
        assert stage.abandon() == 0
    assert tree(stage.path) == ["cells/arrays/a.npz", "cells/results.sqlite"]
    assert (stage.cells / "results.sqlite").read_text() == "cells/results.sqlite"


def test_promotion_keeps_the_store_if_cells_failed_and_forgets_old_failures(tmp_path: Path) -> None:
    for name, left in (("failures.csv", ["failures.csv", "results.csv"]), ("other.csv", ["other.csv"])):
        with staging(tmp_path / "out") as stage:
            fill(stage.path, name, "results.csv")
            keep(stage.cells, "a")
            stage.promote()
        assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"results.csv", *left}
        assert (stage.cells / "results.sqlite").exists() is (name == "failures.csv")


def test_cells_of_an_earlier_version_are_seen(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        fill(stage.path, "cells/ours-0-0123456789abcdef.npz")
        keep(stage.cells, "a")
        assert [path.name for path in stage.old_cells()] == ["ours-0-0123456789abcdef.npz"]


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
