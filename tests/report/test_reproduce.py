"""Reproductions: experiments one by one, what is reused, what failures and stops leave; and their command."""

import io
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

import condnum.site.build
from condnum.cli import main
from condnum.errors import InvalidInputError
from condnum.machine import code_checksum
from condnum.report import reproduce as module
from condnum.report.experiments import experiments, find_run
from condnum.report.reproduce import reproduce, run_checksum

NAMES = [experiment.name for experiment in experiments("quick")]


class FakeRunner:
    """Leaves whole run folders; fails, or is stopped by Ctrl-C, where told."""

    def __init__(self, fails: str = "", stops: str = "") -> None:
        self.fails, self.stops, self.ran, self.jobs = fails, stops, [], set()

    def __call__(self, experiment, folder, *, jobs, progress) -> list[str]:
        if folder.name == self.stops:
            raise KeyboardInterrupt
        self.ran.append(folder.name)
        self.jobs.add(jobs)
        if folder.name == self.fails:
            raise InvalidInputError("no room on Mars; take fewer rows.")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "report.ipynb"):
            (folder / name).write_text(str(experiment.values))
        (folder / "provenance.json").write_text('{"duration_seconds": 12.5}')
        return []


def ran(folder, **options):
    """Run a quick reproduction whose experiments end at once; return which ran."""
    runner = FakeRunner()
    reproduce("quick", folder, runner=runner, **options)
    return runner.ran


def by_name(runs):
    return {run.name: run for run in runs}


def kept(folder):
    """Names of the experiments whose folders hold a whole run."""
    return {one.name for one in experiments("quick") if find_run(one, folder).folder}


@pytest.fixture
def known(monkeypatch):
    """Checksums that a test can change: of the code, and of every data set."""
    parts = {"code": "a" * 64, "data": "b" * 64}
    monkeypatch.setattr(module, "run_checksum", lambda: parts["code"])
    monkeypatch.setattr(module, "data_status", lambda name: SimpleNamespace(checksum=parts["data"]))
    return parts


def test_all_run_in_their_order_and_what_is_unchanged_is_reused(tmp_path, known):
    runner = FakeRunner()
    runs = reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == NAMES
    assert all(run.status == "finished" and run.folder == tmp_path / run.name for run in runs)
    assert {run.seconds for run in runs} == {12.5}
    again = reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == NAMES
    assert {run.status for run in again} == {"reused"}
    (tmp_path / "mnist" / "report.html").unlink()
    (tmp_path / "deep" / "provenance.json").write_text("{")
    assert set(ran(tmp_path)) == {"mnist", "deep"}  # were not whole


def test_the_plan_comes_first_and_every_experiment_has_all_cores(tmp_path, known):
    runner, told = FakeRunner(), io.StringIO()
    reproduce("quick", tmp_path, runner=runner, jobs=6, stream=told, only=NAMES[:3])
    assert (runner.ran, runner.jobs) == (NAMES[:3], {6})
    plan, *ends = told.getvalue().split("✓ ")
    assert plan.startswith("Plan: about ")
    assert [line.split()[0] for line in plan.splitlines()[1:]] == NAMES[:3]
    assert [end.partition(" ")[0] for end in ends] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "mnist finished in 1 s" in told.getvalue()


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
    runs = by_name(reproduce("quick", tmp_path, runner=runner))
    assert set(runner.ran) == set(NAMES)
    failed = runs.pop("deep")
    assert (failed.status, failed.folder, failed.older) == ("failed", tmp_path / "deep", True)
    assert failed.error == "no room on Mars; take fewer rows."
    assert failed.fingerprint == first["deep"].fingerprint  # the folder's, not this try's
    assert {run.status for run in runs.values()} == {"finished"}
    assert ran(tmp_path) == ["deep"]


def test_ctrl_c_keeps_what_is_finished(tmp_path, known):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            reproduce("quick", tmp_path, runner=FakeRunner(stops=NAMES[3]))
        assert kept(tmp_path) == set(NAMES[:3])
        (tmp_path / NAMES[0] / "report.html").unlink()
    assert set(ran(tmp_path)) == {NAMES[0], *NAMES[3:]}


def test_only_some_leave_the_others_as_they_were(tmp_path, known):
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
    assert images().status == "reused"
    (tmp_path / "data" / "cars" / "new.png").write_bytes(b"1")
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
    before = run_checksum(tmp_path)
    for name, changed in changes.items():
        run_checksum.cache_clear()
        code_checksum.cache_clear()
        (tmp_path / name).write_text("2")
        assert (run_checksum(tmp_path) != before) == changed, name
        before = run_checksum(tmp_path)


# The command.


@pytest.fixture
def experiments_end(monkeypatch, tmp_path, known):
    """Let experiments end at once, or in trouble, and the site be one line that names their folders."""
    monkeypatch.chdir(tmp_path)

    def site(runs, target, **options):
        target.mkdir(exist_ok=True)
        (target / "index.html").write_text(" ".join(str(run.folder) for run in runs or () if run.folder))
        return target / "index.html"

    def put(**trouble):
        monkeypatch.setattr(module, "reproduce", partial(reproduce, runner=FakeRunner(**trouble)))

    monkeypatch.setattr(condnum.site.build, "build_site", site)
    monkeypatch.setattr(condnum.site.build, "prepared", nullcontext)
    put()
    return put


def test_the_command_runs_all_and_then_reuses_all(experiments_end, tmp_path, capsys):
    assert main(["reproduce", "-j", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "reports/index.html\n"
    assert shown.err.startswith("Plan: about ")
    assert "[1/9] house-prices finished" in shown.err
    assert (tmp_path / "runs/reproduce/quick/deep/report.html").read_text() == "{'seeds': 1}"
    assert (tmp_path / "reports/index.html").read_text().startswith("runs/reproduce/quick/house-prices ")
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().err
    assert "[9/9] corrections reused: same parameters, data and code" in said
    assert "Plan" not in said


def test_the_command_names_a_failure_and_builds_the_site_nevertheless(experiments_end, tmp_path, capsys):
    experiments_end(fails="deep")
    assert main(["reproduce", "--quiet", "--out", "o", "--site", "s"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "s/index.html\n"
    assert "condnum: deep failed: no room on Mars; take fewer rows." in " ".join(shown.err.split())
    assert (tmp_path / "s/index.html").exists()


def test_the_site_alone_is_of_the_reproduction_that_is_there(experiments_end, capsys, tmp_path):
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == ""
    assert main(["reproduce", "--only", "corrections", "--quiet"]) == 0
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == "runs/reproduce/quick/corrections"
    assert capsys.readouterr().out.endswith("s/index.html\n")


def test_ctrl_c_says_how_to_go_on(experiments_end, capsys):
    experiments_end(stops="mnist")
    assert main(["reproduce"]) == 130
    assert "the same command continues there" in " ".join(capsys.readouterr().err.split())
