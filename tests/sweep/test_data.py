"""Data by reference: loaded once a process, and never taken for other data."""

import socket
import threading
import time

import numpy as np
import pytest

from condnum.data import load_diabetes_tasks, load_mnist_images, load_small_digits
from condnum.data.mnist import write_idx
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.studies import cell as module
from condnum.studies.cell import CellPlan, DataReference, cached
from condnum.studies.executors import ProcessExecutor


@pytest.fixture(autouse=True)
def empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


def write_mnist(folder, seed):
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    write_idx(raw / "train-images-idx3-ubyte.gz", rng.integers(0, 256, (5, 28, 28)).astype(np.uint8))
    write_idx(raw / "train-labels-idx1-ubyte.gz", np.arange(5, dtype=np.uint8))


def test_small_digits():
    digits = DataReference.of(load_small_digits(), "embedded").load()
    assert digits.images.shape == (1797, 8, 8)


def test_mnist_from_a_folder(tmp_path):
    write_mnist(tmp_path, 0)
    reference = DataReference.of(load_mnist_images(tmp_path), tmp_path)
    assert reference.name == "mnist"
    assert reference.load() is reference.load()


def test_other_data_are_refused_with_both_sums_and_the_host(tmp_path):
    write_mnist(tmp_path / "a", 0)
    write_mnist(tmp_path / "b", 1)
    wanted = load_mnist_images(tmp_path / "a").checksum
    found = load_mnist_images(tmp_path / "b").checksum
    reference = DataReference("mnist", str(tmp_path / "b"), wanted)
    with pytest.raises(DataFormatError, match=f"{socket.gethostname()} has SHA-256 {found}.* {wanted}"):
        reference.load()


def test_missing_data(tmp_path):
    with pytest.raises(DataNotFoundError, match="mnist"):
        DataReference("mnist", str(tmp_path), "ab" * 32).load()


def test_unknown_data_and_sources():
    with pytest.raises(UnknownNameError, match="unknown data set of a sweep 'minst'; did you mean 'mnist'"):
        DataReference("minst", "auto", "")
    with pytest.raises(InvalidInputError, match="must be 'embedded', got 'auto'"):
        DataReference("digits-8x8", "auto", "").load()
    with pytest.raises(InvalidInputError, match="must be 'embedded', got '/tmp'"):
        DataReference("diabetes", "/tmp", "").load(features="clean", rows=None)


def test_task_pairs_by_their_options():
    reference = DataReference.of(load_diabetes_tasks(), "embedded")
    clean, published, cut = (
        reference.load(features=features, rows=rows)
        for features, rows in (("clean", None), ("published", None), ("clean", 20))
    )
    assert (clean.dimension, published.dimension, cut.rows_pretrain) == (8, 9, 20)
    assert reference.load(rows=20, features="clean") is cut
    assert clean.rows_pretrain == 235


def test_house_prices_are_known(tmp_path):
    with pytest.raises(DataNotFoundError, match="house-prices"):
        DataReference("house-prices", str(tmp_path), "ab" * 32).load(features="clean", rows=None)


def test_the_cache_loads_once_even_for_threads():
    calls = []

    def load():
        calls.append(1)
        time.sleep(0.05)
        return object()

    found = []
    threads = [threading.Thread(target=lambda: found.append(cached("slow", load))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(set(map(id, found))) == 1


def test_the_cache_loads_different_things_side_by_side():
    both = threading.Barrier(2, timeout=10)
    threads = [threading.Thread(target=cached, args=(("beside", i), both.wait)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_an_error_reaches_all_threads_that_wait_for_it():
    begun, errors = threading.Event(), []

    def fail():
        begun.set()
        time.sleep(0.05)
        raise ValueError("no such file")

    def ask():
        try:
            cached("fails", fail)
        except ValueError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert errors == ["no such file"] * 2


def test_the_cache_forgets_the_oldest_and_keeps_no_errors():
    first = cached(0, object)
    for key in range(1, module.CACHE_SIZE):
        cached(key, object)
    assert cached(0, object) is first  # used again, so not the oldest
    cached("one more", object)
    assert 1 not in module._cache
    assert cached(0, object) is first
    with pytest.raises(ZeroDivisionError):
        cached("bad", lambda: 1 / 0)
    assert cached("bad", lambda: 3) == 3


def test_workers_load_their_own_data(cells):
    reference = DataReference.of(load_small_digits(), "embedded")
    good = CellPlan("digits", {"seed": 0}, {}, reference.checksum, "1", data=reference)
    wrong = DataReference("digits-8x8", "embedded", "0" * 64)
    bad = CellPlan("digits", {"seed": 0}, {}, wrong.checksum, "1", data=wrong)
    outcomes = {o.plan: o for o in ProcessExecutor(1, threads=1).run(cells.digits, [good, bad])}
    assert outcomes[good].row == {"rows": 1797, "again": True}
    assert outcomes[bad].error.type == "DataFormatError"
    assert reference.checksum in outcomes[bad].error.message
