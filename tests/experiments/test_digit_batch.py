"""Digit pairs in batches against the same cells one by one, with the device's part played by the CPU."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from condnum.errors import DeviceError
from condnum.studies import digit_cells as digit_batch
from condnum.studies import digit_pairs
from condnum.studies.digit_cells import DigitBatches, compute_cell
from condnum.studies.digit_pairs import DigitPairsConfig
from condnum.studies.executors import BatchExecutor

CPU = torch.device("cpu")
CONFIG = DigitPairsConfig(methods=("ours", "imma", "optimal"), seeds=2, epochs=5, pairs=((4, 7), (9, 0)))
#: What differs between two runs of one cell.
TIMES = "seconds"


@pytest.fixture(scope="module")
def plans():
    return digit_pairs.plans(CONFIG, digit_pairs.load(CONFIG)[1])


def test_a_cell_of_a_batch_is_the_cell_alone(plans):
    chosen = [plan for plan in plans if plan.payload["method"] == "ours"]
    for plan, (row, arrays) in zip(chosen, DigitBatches(CPU).compute(chosen), strict=True):
        expected_row, expected_arrays = compute_cell(plan)
        assert list(row) == list(expected_row)
        for name in row.keys() - {TIMES}:
            wanted = expected_row[name]
            if isinstance(wanted, float):
                assert row[name] == pytest.approx(wanted, rel=1e-8, abs=1e-12), name
            else:
                assert row[name] == wanted, name
        assert list(arrays) == list(expected_arrays)
        for name, values in arrays.items():
            np.testing.assert_allclose(values, expected_arrays[name], rtol=1e-7, atol=1e-14, err_msg=name)


def test_methods_and_settings_are_groups_and_closed_forms_are_alone(plans):
    batches = DigitBatches(CPU)
    groups = {plan.payload["method"]: batches.group(plan) for plan in plans}
    assert groups["optimal"] is None
    assert groups["ours"] != groups["imma"]
    assert len({batches.group(plan) for plan in plans}) == 3
    longer = dataclasses.replace(plans[0], settings=plans[0].settings | {"steps": 6})
    assert batches.group(longer) != batches.group(plans[0])


def test_a_run_in_batches_gives_the_tables_of_a_run_without(tmp_path):
    alone = digit_pairs.run(CONFIG, tmp_path / "alone")
    executor = BatchExecutor(DigitBatches(CPU, memory_bytes=3_000_000))
    batched = digit_pairs.run(CONFIG, tmp_path / "batched", executor=executor)
    keys = ["method", "seed", "pretrain_digit", "harmful_digit", "convention", "gauge"]
    columns = [*keys, "harmful_ratio", "pretrain_ratio", "rir", "success", "rir_ceiling", "stop_reason"]
    pd.testing.assert_frame_equal(batched.table[columns], alone.table[columns], rtol=1e-7)
    assert batched.failures.empty
    assert batched.note == executor.note
    assert "batches of at most" in batched.note
    assert int(batched.note.split()[0]) > 2  # the memory given does not hold all four cells of a method
    facts = batched.provenance_table.set_index("what")["value"]
    assert facts["workers"] == batched.note
    again = digit_pairs.run(CONFIG, tmp_path / "batched", executor=BatchExecutor(DigitBatches(CPU)))
    assert (again.computed, again.reused) == (0, len(alone.table) // 3)


def test_cells_with_other_loss_rows_have_tasks_of_their_own(plans):
    batches = DigitBatches(CPU)
    other = dataclasses.replace(plans[0], payload=plans[0].payload | {"loss_rows": 20})
    (many,), (few,) = batches.compute(plans[:1]), batches.compute([other])
    assert few.row["squared_norm"] != pytest.approx(many.row["squared_norm"], rel=1e-9)
    assert few.row["squared_norm"] == pytest.approx(compute_cell(other).row["squared_norm"], rel=1e-9)
    assert batches.group(other) != batches.group(plans[0])


def test_a_cell_that_cannot_be_measured_fails_alone(plans, monkeypatch):
    chosen = [plan for plan in plans if plan.payload["method"] == "imma"]
    measure = digit_batch.measure_cell

    def one_fails(plan, *rest):
        if plan.payload["seed"] == 1 and plan.payload["pretrain"] == 9:
            raise ValueError("no spectrum")
        return measure(plan, *rest)

    monkeypatch.setattr(digit_batch, "measure_cell", one_fails)
    outcomes = list(BatchExecutor(DigitBatches(CPU)).run(compute_cell, chosen))
    assert [str(o.error) for o in outcomes if o.error is not None] == ["ValueError: no spectrum"]
    assert len(outcomes) == 4


def test_cuda_asks_for_batches_and_a_cluster_does_not(monkeypatch):
    monkeypatch.setattr(digit_pairs, "resolve_device", torch.device)
    chosen = digit_pairs._default_executor(dataclasses.replace(CONFIG, device="cuda"), 12)
    assert isinstance(chosen, BatchExecutor)
    cluster = dataclasses.replace(CONFIG, device="cuda", scheduler="tcp://host:8786")
    assert not isinstance(digit_pairs._default_executor(cluster, 12), BatchExecutor)
    assert not isinstance(digit_pairs._default_executor(CONFIG, 12), BatchExecutor)


def test_the_device_has_a_name_in_the_provenance(monkeypatch, tmp_path):
    run = digit_pairs.run(dataclasses.replace(CONFIG, methods=("optimal",), seeds=1), tmp_path)
    run = dataclasses.replace(run, config=dataclasses.replace(CONFIG, device="cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Graphics 9000")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    facts = run.provenance_table.set_index("what")["value"]
    assert facts["where"] == "Graphics 9000 (cuda)"
    assert facts["peak device memory"] == "3,072 MiB"
    assert facts["seconds"] == f"{run.seconds:,.1f}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_message_says_so(tmp_path):
    with pytest.raises(DeviceError, match="sees 0 CUDA device"):
        digit_pairs.run(dataclasses.replace(CONFIG, device="cuda"), tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_tables_of_the_cpu(tmp_path):
    config = dataclasses.replace(CONFIG, methods=("ours", "r_ill_only", "opt_kappa", "imma"), epochs=30)
    cpu = digit_pairs.run(config, tmp_path / "cpu")
    gpu = digit_pairs.run(dataclasses.replace(config, device="cuda"), tmp_path / "gpu")
    columns = ["method", "seed", "pretrain_digit", "convention", "gauge", "rir"]
    pd.testing.assert_frame_equal(gpu.table[columns], cpu.table[columns], rtol=1e-6)
