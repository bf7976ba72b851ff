"""One process a folder: the lock is refused, released, and survives being removed by its holder."""

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from condnum.errors import OutputError
from condnum.files import LOCK, folder_lock


def test_held_and_released(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "new" / "folder") as held:
        assert held == tmp_path / "new" / "folder"
        with (
            pytest.raises(OutputError, match="another run is writing to shown"),
            folder_lock(held, shown="shown"),
        ):
            pass
    assert os.listdir(held) == []
    with folder_lock(held):
        pass


def test_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boom"), folder_lock(tmp_path):
        raise ValueError("boom")
    with folder_lock(tmp_path):
        pass


def test_many_threads_never_hold_it_together(tmp_path: Path) -> None:
    inside, together, refused = [], [], []

    def work() -> None:
        for _ in range(50):
            try:
                with folder_lock(tmp_path):
                    inside.append(1)
                    together.append(len(inside))
                    inside.pop()
            except OutputError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) + len(refused) == 200
    assert max(together) == 1


def hold_and_die(folder: str) -> None:
    with folder_lock(folder):
        os._exit(9)


def test_a_killed_holder_leaves_a_file_but_no_lock(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=hold_and_die, args=(str(tmp_path),))
    process.start()
    process.join()
    assert (tmp_path / LOCK).exists()
    with folder_lock(tmp_path):
        pass
