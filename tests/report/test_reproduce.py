"""Reproductions: experiments side by side, what is reused, what failures and stops leave."""

import io
import os
import signal
from types import SimpleNamespace

import pytest
from waiting import wait_until

from condnum.errors import InvalidInputError
from condnum.report import reproduce as module
from condnum.report.experiments import Experiment, experiments
from condnum.report.reproduce import code_checksum, reproduce, run_fingerprint
from condnum.report.results import ExperimentResult, find_run

NAMES = [experiment.name for experiment in experiments("quick")]
#: One by one: house prices, then the longest first.
ORDER = [
    NAMES[0],
    *sorted(NAMES[1:], key=lambda name: -ExperimentResult(*experiments("quick", [name])).estimate(1)),
]


class FakeRunner:
    """Leaves whole run folders, fails or is stopped by Ctrl-C where told; kernels die at the last one."""

    def __init__(self, fails: str = "", stops: str = "", presses: int = 1) -> None:
        self.fails, self.stops, self.presses = fails, stops, presses
        self.ran, self.given, self.told = [], {}, []

    def stop_kernels(self, *, now: bool = False) -> None:
        self.told.append(now)

    def __call__(self, experiment, folder, *, jobs, threads, stopped, progress) -> list[str]:
        if folder.name == self.stops:
            for press in range(self.presses):
                os.kill(os.getpid(), signal.SIGINT)
                wait_until(lambda press=press: (press > 0) in self.told)
            assert stopped()
            raise KeyboardInterrupt
        self.ran.append(folder.name)
        self.given[folder.name] = (jobs if experiment.jobs else 0, threads)
        if folder.name == self.fails:
            raise InvalidInputError("no room on Mars; take fewer rows.")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "report.ipynb"):
            (folder / name).write_text(str(experiment.values))
        (folder / "provenance.json").write_text('{"duration_seconds": 12.5}')
        return []


def ran(folder, **options):
    """Run a quick reproduction on one core, whose experiments end at once; return which ran."""
    runner = FakeRunner()
    reproduce("quick", folder, runner=runner, jobs=1, **options)
    return runner.ran


def by_name(runs):
    return {run.name: run for run in runs}


def kept(folder):
    """Names of the experiments whose folders hold a whole run."""
    return {one.name for one in experiments("quick") if find_run(one, folder).folder}


@pytest.fixture
def interruptible():
    """Let SIGINT raise, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def known(monkeypatch):
    """Checksums that a test can change: of the code, and of every data set."""
    parts = {"code": "a" * 64, "data": "b" * 64}
    monkeypatch.setattr(module, "code_checksum", lambda tree: parts["code"])
    monkeypatch.setattr(module, "data_status", lambda name: SimpleNamespace(checksum=parts["data"]))
    return parts


def test_all_run_the_longest_first_and_what_is_unchanged_is_reused(tmp_path, known):
    seen, runner = [], FakeRunner()
    runs = reproduce("quick", tmp_path, runner=runner, jobs=1, on_end=lambda name, runs: seen.append(name))
    assert runner.ran == seen == ORDER
    assert all(run.status == "finished" and run.folder == tmp_path / run.name for run in runs)
    assert {run.seconds for run in runs} == {12.5}
    again = reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == ORDER
    assert {run.status for run in again} == {"reused"}
    (tmp_path / "mnist" / "report.html").unlink()
    (tmp_path / "deep" / "provenance.json").write_text("{")
    assert set(ran(tmp_path)) == {"mnist", "deep"}  # were not whole


def test_the_first_has_all_cores_and_the_others_share_them(tmp_path, known):
    runner, told = FakeRunner(), io.StringIO()
    reproduce("quick", tmp_path, runner=runner, jobs=6, stream=told, only=NAMES[:3])
    assert runner.given == {NAMES[0]: (6, 0), NAMES[1]: (3, 3), NAMES[2]: (3, 3)}
    assert runner.ran[0] == NAMES[0]
    plan, *ends = told.getvalue().split("✓ ")
    assert plan.startswith("Plan: about ")
    assert [line.split()[0] for line in plan.splitlines()[1:]] == NAMES[:3]
    assert [end.partition(" ")[0] for end in ends] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "mnist finished in 1 s" in told.getvalue()
    full = FakeRunner()
    reproduce("full", tmp_path / "full", runner=full, jobs=6, only=["limits", "mnist", "corrections"])
    assert full.given == {"limits": (6, 0), "corrections": (0, 0), "mnist": (6, 0)}  # each has all cores


@pytest.mark.parametrize(("part", "value"), [("code", "c"), ("data", "c"), ("data", "")])
def test_changed_code_or_data_runs_again_and_unknown_data_always(tmp_path, known, part, value):
    ran(tmp_path)
    known[part] = value
    changed = {e.name for e in experiments("quick") if e.data or part == "code"}
    assert set(ran(tmp_path)) == changed


def test_a_failure_does_not_stop_the_others_and_keeps_an_older_result(tmp_path, known):
    first = by_name(reproduce("quick", tmp_path, runner=FakeRunner(fails="limits")))
    assert (first["limits"].status, first["limits"].folder) == ("failed", None)
    known["code"] = "d" * 64
    runner = FakeRunner(fails="deep")
    runs = by_name(reproduce("quick", tmp_path, runner=runner, jobs=1))
    assert set(runner.ran) == set(NAMES)
    failed = runs.pop("deep")
    assert (failed.status, failed.folder, failed.older) == ("failed", tmp_path / "deep", True)
    assert failed.error == "no room on Mars; take fewer rows."
    assert failed.fingerprint == first["deep"].fingerprint  # the folder's, not this try's
    assert {run.status for run in runs.values()} == {"finished"}
    assert ran(tmp_path) == ["deep"]


@pytest.mark.parametrize("presses", [1, 2], ids=["once", "twice"])
def test_ctrl_c_keeps_what_is_finished(tmp_path, known, interruptible, monkeypatch, presses):
    for _ in range(2):
        runner = FakeRunner(stops=ORDER[3], presses=presses)
        monkeypatch.setattr(module, "stop_kernels", runner.stop_kernels)
        with pytest.raises(KeyboardInterrupt):
            reproduce("quick", tmp_path, runner=runner, jobs=1)
        assert kept(tmp_path) == set(ORDER[:3])
        (tmp_path / ORDER[0] / "report.html").unlink()
    assert set(ran(tmp_path)) == {ORDER[0], *ORDER[3:]}


def test_only_some_leave_the_others_as_they_were(tmp_path, known):
    seen = []
    ran(tmp_path, only=NAMES[:2], on_end=lambda name, runs: seen.append([run.status for run in runs]))
    rest = ["not run"] * (len(NAMES) - 2)
    assert seen == [["finished", "waiting", *rest], ["finished", "finished", *rest]]
    ran(tmp_path)
    (tmp_path / "deep" / "report.html").unlink()
    runner = FakeRunner()
    runs = by_name(reproduce("quick", tmp_path, only=["limits"], runner=runner))
    assert runner.ran == []
    assert (runs["limits"].status, runs["mnist"].status) == ("reused", "finished")
    assert (runs["deep"].status, runs["deep"].folder) == ("not run", None)


def test_images_that_nobody_may_hand_on(tmp_path, known, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def images():
        runs = reproduce("full", tmp_path / "out", only=["deep-vit-cars"], runner=FakeRunner())
        return by_name(runs)["deep-vit-cars"]

    entry = images()
    assert entry.status == "not run"
    assert "needs the images of imagenet/ and cars/" in entry.error
    assert entry.error.endswith("--pretrain imagenet --harmful cars --preset vit-cars")
    for name in ("imagenet", "cars"):
        (tmp_path / "data" / name).mkdir(parents=True)
    assert images().status == "finished"
    said = (tmp_path / "out" / "deep-vit-cars" / "report.html").read_text()
    assert f"'pretrain': '{tmp_path}/data/imagenet', 'harmful': '{tmp_path}/data/cars'" in said


def test_the_code_checksum_sees_code_and_experiments_only(tmp_path):
    lesson, experiment = "notebooks/4_ceiling.ipynb", "notebooks/experiments/limits.ipynb"
    changes = {
        "README.md": False, "condnum/site/build.py": False, "condnum/spectra.py": True, lesson: False,
        experiment: True, f"condnum/{lesson}": False, f"condnum/{experiment}": True,
    }  # fmt: skip
    for name in changes:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = code_checksum(tmp_path)
    for name, changed in changes.items():
        code_checksum.cache_clear()
        (tmp_path / name).write_text("2")
        assert (code_checksum(tmp_path) != before) == changed, name
        before = code_checksum(tmp_path)


def test_a_fingerprint_knows_its_words_and_its_data():
    of = [Experiment("a", "", "", "limits", {"seeds": seeds}) for seeds in (1, 2)]
    marks = {run_fingerprint(experiment, data) for experiment in of for data in ({}, {"mnist": "0"})}
    assert len(marks) == 4
    assert {len(mark) for mark in marks} == {64}
    assert run_fingerprint(of[0], {"mnist": ""}) == ""
