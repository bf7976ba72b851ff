"""`condnum run house-prices` from end to end, on the embedded table: what it leaves, and how it fails."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest

from condnum.errors import CondnumError
from condnum.methods import method_names
from condnum.studies.measure import RESULT_COLUMNS
from condnum.studies.store import ResultStore

pytestmark = pytest.mark.xdist_group("embedded_run")
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"
FILES = {
    "results.csv",
    "summary.csv",
    "curves.parquet",
    "report.ipynb",
    "report.html",
    "provenance.json",
}


@pytest.fixture
def run(command):
    return lambda *arguments, cwd: command("run", "house-prices", *arguments, cwd=cwd)


class TestWhatARunLeaves:
    def test_exactly_the_promised_files(self, embedded_run):
        assert {path.name for path in embedded_run.folder.iterdir()} == FILES

    def test_last_line_is_the_report(self, embedded_run):
        assert embedded_run.stdout.splitlines()[-1] == "out/report.html"

    def test_results_have_a_row_per_method_seed_and_measure(self, embedded_run):
        results = pd.read_csv(embedded_run.folder / "results.csv")
        assert list(results.columns) == RESULT_COLUMNS
        assert len(results) == len(method_names()) * 2 * 3
        assert set(results["method"]) == set(method_names())
        identity = results[results["method"] == "identity"]
        # θ = I is the yardstick itself: exactly 1, and therefore no success.
        assert (identity[["harmful_ratio", "pretrain_ratio", "rir"]] == 1).all(axis=None)
        assert not identity["success"].any()
        np.testing.assert_allclose(results["rir"], results["harmful_ratio"] / results["pretrain_ratio"])
        compact = results[results["convention"] == "compact"]
        assert (compact["rir"] <= compact["rir_ceiling"] * (1 + 1e-9)).all()
        assert (results["loss_gap"].abs() < 1e-9).all()
        steps = results.set_index("method")["steps"]
        assert (steps.loc[["imma", "opt_kappa", "r_ill_only"]] == 60).all()
        assert (steps.loc["ours"] <= 60).all()  # on a table that is not the paper's it stops by itself

    def test_the_closed_form_attains_the_ceiling(self, embedded_run):
        results = pd.read_csv(embedded_run.folder / "results.csv")
        row = results[(results["method"] == "optimal") & (results["convention"] == "compact")].iloc[0]
        assert row["rir"] == pytest.approx(row["rir_ceiling"], rel=1e-8)

    def test_summary_averages_and_knows_no_published_numbers_for_this_table(self, embedded_run):
        results = pd.read_csv(embedded_run.folder / "results.csv")
        summary = pd.read_csv(embedded_run.folder / "summary.csv")
        chosen = {"method": "ours", "convention": "ridge", "gauge": "unit"}

        def pick(table):
            return table[np.logical_and.reduce([table[name] == value for name, value in chosen.items()])]

        assert pick(summary)["rir_mean"].item() == pytest.approx(pick(results)["rir"].mean())
        assert pick(summary)["rir_std"].item() == pytest.approx(pick(results)["rir"].std(ddof=1))
        assert summary["published_rir"].isna().all()

    def test_curves_hold_every_quantity(self, embedded_run):
        curves = pd.read_parquet(embedded_run.folder / "curves.parquet")
        assert set(curves["quantity"]) == {
            "norm_ratio",
            "excess_loss",
            "spectrum",
            "kappa",
            "loss",
            "r_well",
            "r_ill",
        }
        ratio = curves[curves["quantity"] == "norm_ratio"]
        assert ratio["x"].max() == 20_000
        assert (ratio[ratio["x"] == 0]["value"] == 1).all()

    def test_provenance_says_what_the_run_was(self, embedded_run):
        record = json.loads((embedded_run.folder / "provenance.json").read_text())
        assert record["seeds"] == [0, 1]
        assert record["parameters"]["data"] == "embedded"
        assert record["versions"]["condnum"]
        assert all(len(checksum) == 64 for checksum in record["data"].values())

    def test_report_is_whole_and_offline(self, embedded_run):
        page = (embedded_run.folder / "report.html").read_text(encoding="utf-8")
        assert "Table 1" in page
        assert page.count('class="plotly-graph-div"') == 4
        assert "cdn." not in page.split("<body", 1)[0]
        notebook = nbformat.read(embedded_run.folder / "report.ipynb", as_version=4)
        assert "widgets" not in notebook.metadata
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output["output_type"] == "error"]
        assert not [output for output in outputs if output.get("name") == "stderr"]


class TestOtherWaysIn:
    def test_plain_papermill_runs_the_same_notebook(self, tmp_path):
        papermill.execute_notebook(
            NOTEBOOK,
            tmp_path / "by-papermill.ipynb",
            parameters={
                "data": "embedded",
                "methods": "ours,identity",
                "seeds": 1,
                "epochs": 5,
                "out": str(tmp_path / "plain"),
            },
            kernel_name="python3",
            progress_bar=False,
            cwd=tmp_path,
        )
        results = pd.read_csv(tmp_path / "plain" / "results.csv")
        assert list(dict.fromkeys(results["method"])) == ["ours", "identity"]

    def test_the_real_table_is_read(self, run, real_data, tmp_path):
        done = run(
            "--methods", "ours", "--seeds", "1", "--epochs", "3", "--rows", "40", "--out", "o", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        results = pd.read_csv(tmp_path / "o" / "results.csv")
        assert set(results["dataset"]) == {"house-prices"}
        summary = pd.read_csv(tmp_path / "o" / "summary.csv")
        assert set(summary["published_rir"]) == {356.20}


class TestBadInput:
    """Status 2, one paragraph with the value and the fix, no traceback, nothing half-written."""

    def refused(self, done, folder, *words):
        assert done.returncode == 2, (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr
        paragraph = " ".join(done.stderr.split())
        for word in words:
            assert word in paragraph
        assert not (folder / "o" / "results.csv").exists()
        assert not (folder / "o" / "report.html").exists()

    def test_unknown_method(self, run, tmp_path):
        done = run("--data", "embedded", "--methods", "our", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "unknown method 'our'", "did you mean 'ours'?")

    def test_missing_path(self, run, tmp_path):
        done = run("--data", "nowhere.csv", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "nowhere.csv", "existing path")

    def test_no_cuda(self, run, tmp_path):
        done = run("--data", "embedded", "--device", "cuda:7", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "cuda:7", "--device cpu")

    def test_missing_columns(self, run, tmp_path):
        (tmp_path / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
        done = run("--data", "train.csv", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "train.csv lacks 79 of the 81 columns", "LotArea")

    def test_bad_option_value(self, run, tmp_path):
        done = run("--data", "embedded", "--seeds", "0", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "--seeds")

    def test_output_is_a_file(self, run, tmp_path):
        (tmp_path / "o").write_text("mine")
        done = run("--data", "embedded", "--epochs", "2", "--out", "o", cwd=tmp_path)
        self.refused(done, tmp_path, "o")
        assert (tmp_path / "o").read_text() == "mine"

    def test_debug_shows_the_traceback(self, run, tmp_path):
        done = run("--data", "embedded", "--methods", "our", "--out", "o", "--debug", cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_a_stopped_run_keeps_finished_cells_and_the_same_command_resumes(start, command, tmp_path, stop):
    words = ["run", "house-prices", "--data", "embedded", "--methods", "identity,ours", "--seeds", "2"]
    words += ["--epochs", "14000", "--jobs", "1", "--out", "o"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start([sys.executable, "-m", "condnum", *words], cwd=tmp_path, **pipes)
    cells = tmp_path / "o" / ".partial" / "cells"
    finished_before(process, cells, 2)
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (130 if stop == signal.SIGINT else -stop), stderr
    time.sleep(2)  # an orphaned kernel ends by itself
    with ResultStore(cells, mode="read") as store:
        kept = store.rows()
    assert [row["method"] for row in kept.values()][:2] == ["identity", "identity"]
    if stop == signal.SIGINT:
        assert f"{len(kept)} finished pieces kept" in " ".join(stderr.split())
        assert [path.name for path in (tmp_path / "o" / ".partial").iterdir()] == ["cells"]

    words[words.index("14000")] = "40"  # the identity cells do not depend on the epochs
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "o").iterdir()} == FILES
    assert "2 computed, 2 from the store, 0 failed" in (tmp_path / "o" / "report.html").read_text("utf-8")


def finished_before(process, cells, count):
    """Wait until so many cells are in the store of a running command."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (cells / "results.sqlite").exists():
            with contextlib.suppress(CondnumError), ResultStore(cells, mode="read") as store:
                if store.count() >= count:
                    return
        time.sleep(0.1)
    pytest.fail("the command did not get so far")
