"""The digit-pair study on the embedded digits: cells, tables, batches against cells one by one, bad input."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from condnum.data import load_small_digits
from condnum.errors import CondnumError
from condnum.methods.problem import ImmunizationProblem
from condnum.studies import digit_cells, digit_pairs
from condnum.studies.digit_cells import DigitBatches, batch_size, digit_problem, problem_bytes
from condnum.studies.digit_pairs import DigitPairs, geometric_ridge_sweep, rank_tolerances
from condnum.studies.executors import BatchExecutor
from condnum.theory.spectra import PUBLISHED_RIDGE, covariance

CPU = torch.device("cpu")
STUDY = DigitPairs(methods=("ours", "imma", "max_rir"), seeds=2, epochs=5, pairs=((4, 7), (9, 0)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return STUDY.run(out=tmp_path_factory.mktemp("digits"), jobs=1)


@pytest.fixture(scope="module")
def digits():
    return load_small_digits()


@pytest.fixture(scope="module")
def planned(digits):
    return STUDY.planned(digits)


def test_tasks_of_a_pair(digits):
    problem = digit_problem(digits, 4, 7, loss_rows=100, labels="one_vs_rest")
    count = min(digits.counts[4], digits.counts[7])  # cut to the smaller class
    X = np.array(digits.pixels(np.flatnonzero(digits.labels == 4)[:count]))
    np.testing.assert_allclose(problem.pretrain.covariance, covariance(X), rtol=1e-12, atol=1e-9)
    B = problem.pretrain.factor
    torch.testing.assert_close(B.mT @ B, problem.pretrain.covariance, rtol=1e-9, atol=1e-9)
    assert problem.pretrain.supervised_rows.shape == (100, 64)
    assert float(problem.pretrain.targets.mean()) == pytest.approx(0.5)
    published = digit_problem(digits, 4, 7, loss_rows=50, labels="published")  # one class each
    assert set(published.pretrain.targets.flatten().tolist()) == {0.0}
    assert set(published.harmful.targets.flatten().tolist()) == {1.0}
    methods = [cell["method"] for cell in DigitPairs(pairs=((4, 7),), seeds=3).cells(digits)]
    assert (methods.count("max_rir"), methods.count("ours")) == (1, 3)  # a closed form once a pair
    assert len(DigitPairs(methods=("max_rir",)).cells(digits)) == 90


def test_summary_is_the_mean_over_pairs_then_over_seeds(run):
    summary = run.tables["summary"].set_index(["method", "convention", "theta_scale"])
    rows = run.tables["results"].query("method == 'ours' and convention == 'ridge' and theta_scale == 'unit'")
    per_seed = rows.groupby("seed")["rir"].mean()
    entry = summary.loc["ours", "ridge", "unit"]
    assert entry["rir_mean"] == pytest.approx(per_seed.mean())
    assert entry["rir_std"] == pytest.approx(per_seed.std(ddof=1))
    assert entry["pairs"] == 2
    assert pd.isna(entry["published_rir"])  # Table 2 is of MNIST


def test_sweeps_of_the_spectra_repeat_the_table_at_its_own_choices(run):
    results, spectra = run.tables["results"], run.tables["spectra"]
    sweep = geometric_ridge_sweep(spectra).set_index(["method", "ridge"])["rir"]
    table = results.query("convention == 'ridge' and theta_scale == 'unit'")
    for method, rows in table.groupby("method"):
        logs = np.log(rows.groupby("seed")["rir"].apply(lambda rir: np.exp(np.log(rir).mean())))
        np.testing.assert_allclose(np.log(sweep[method, PUBLISHED_RIDGE]), logs, rtol=1e-10)
    assert sweep["ceiling", PUBLISHED_RIDGE].item() == pytest.approx(
        np.exp(np.log(table.drop_duplicates(["pretrain_digit", "harmful_digit"])["rir_ceiling"]).mean())
    )
    for method in STUDY.methods:
        assert (sweep[method].groupby("ridge").max() <= sweep["ceiling"] * (1 + 1e-9)).all()
    tolerances = rank_tolerances(spectra)
    assert tolerances["rtol"].nunique() == 5
    default = tolerances[np.isclose(tolerances["rtol"], 64 * 2.0**-52, atol=0)]
    compact = results.query("convention == 'compact'")
    for name in ("rir", "rank_pretrain", "rank_harmful"):
        np.testing.assert_allclose(default[name], compact[name], rtol=1e-12)
    np.testing.assert_array_equal(default["success"], compact["success"])


class TestBatches:
    def test_methods_and_settings_are_groups_and_closed_forms_are_alone(self, digits, planned):
        batches = DigitBatches(digits, CPU)
        groups = {cell["method"]: batches.group(cell) for cell in planned}
        assert groups["max_rir"] is None
        assert groups["ours"] != groups["imma"]
        assert len({batches.group(cell) for cell in planned}) == 3
        longer = dataclasses.replace(planned[0], settings={**planned[0].settings, "steps": 6})
        few = dataclasses.replace(planned[0], at={**planned[0].at, "loss_rows": 20})
        assert len({batches.group(cell) for cell in (planned[0], longer, few)}) == 3
        (other,) = batches.compute([few])
        expected = STUDY.compute(digits, few).row["squared_norm"]
        assert other.row["squared_norm"] == pytest.approx(expected, rel=1e-9)

    def test_a_run_in_batches_gives_the_tables_of_a_run_without(self, run, digits, tmp_path):
        executor = BatchExecutor(DigitBatches(digits, CPU, memory_bytes=3_000_000))
        batched = STUDY.run(digits, out=tmp_path, executor=executor)
        keys = ["method", "seed", "pretrain_digit", "harmful_digit", "convention", "theta_scale"]
        columns = [*keys, "harmful_ratio", "pretrain_ratio", "rir", "success", "rir_ceiling", "stop_reason"]
        pd.testing.assert_frame_equal(*(of.tables["results"][columns] for of in (batched, run)), rtol=1e-7)
        assert batched.failures.empty
        assert int(executor.where.split()[2]) > 2  # the memory given does not hold all four cells of a method
        assert batched.provenance_table.set_index("what")["value"]["where"] == executor.where
        again = STUDY.run(digits, out=tmp_path, executor=BatchExecutor(DigitBatches(digits, CPU)))
        assert (again.report.computed, again.report.reused) == (0, len(run.cells))

    def test_a_cell_that_cannot_be_measured_fails_alone(self, digits, planned, monkeypatch):
        measure = digit_cells.measure_cell

        def one_fails(cell, *rest):
            if cell["seed"] == 1 and cell["pretrain"] == 9:
                raise ValueError("no spectrum")
            return measure(cell, *rest)

        monkeypatch.setattr(digit_cells, "measure_cell", one_fails)
        chosen = [cell for cell in planned if cell["method"] == "imma"]
        outcomes = list(BatchExecutor(DigitBatches(digits, CPU)).run(len, chosen))
        assert [o.error for o in outcomes if o.error] == ["ValueError: no spectrum"]
        assert len(outcomes) == 4

    def test_cuda_asks_for_batches_and_a_cluster_does_not(self, digits, monkeypatch):
        monkeypatch.setattr(digit_pairs, "resolve_device", torch.device)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Graphics 9000")
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
        study = dataclasses.replace(STUDY, device="cuda")
        assert isinstance(study.executor(digits, [], 1), BatchExecutor)
        assert not isinstance(study.executor(digits, [], 1, "tcp://host:8786"), BatchExecutor)
        assert not isinstance(STUDY.executor(digits, [], 1), BatchExecutor)
        facts = study.facts(digits)
        assert (facts["device"], facts["peak device memory"]) == ("Graphics 9000 (cuda)", "3,072 MiB")

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_cuda_gives_the_tables_of_the_cpu(self):
        study = dataclasses.replace(STUDY, methods=("ours", "r_ill_only", "opt_kappa", "imma"), epochs=30)
        cpu, gpu = study.run(jobs=1), dataclasses.replace(study, device="cuda").run()
        columns = ["method", "seed", "pretrain_digit", "convention", "theta_scale", "rir"]
        pd.testing.assert_frame_equal(*(of.tables["results"][columns] for of in (gpu, cpu)), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pairs": ((4, 4),)}, "two different digits"),
        ({"pairs": "4-7,4-x"}, "expected a pair of digits such as 4-7, .*got '4-x'"),
        ({"methods": ("our",)}, "did you mean 'ours'"),
        ({"epochs": -1}, "epochs must be an integer of at least 1"),
        ({"dataset": "svhn"}, "unknown dataset"),
        ({"dataset": "mnist", "data": "embedded"}, "condnum run digits"),
        ({"data": "/data"}, "need no file"),
    ],
    ids=str,
)
def test_bad_parameters(change, text):
    with pytest.raises(CondnumError, match=text):
        DigitPairs.from_parameters(**change)


def test_the_batch_size_fills_the_memory_and_is_never_zero(monkeypatch):
    problem = ImmunizationProblem.from_covariances(np.eye(140), np.eye(140))
    each = problem_bytes(problem)
    assert each >= 8 * 14 * 140**2
    assert batch_size(problem, CPU, 10 * each) == 10
    assert batch_size(problem, CPU, each // 2) == 1
    assert batch_size(problem, CPU) == 2 * 2**30 // each
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * each, 100 * each))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * each)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: each)
    assert batch_size(problem, torch.device("cuda")) == 8  # 0.8 × (8 + 3 − 1)
