"""Reproductions: experiments one by one, what is reused, what failures and stops leave; and their command."""

import io
import json
import shlex
from functools import partial
from pathlib import Path

import pytest

import condnum.site.build
import condnum.site.parts
from condnum.cli import main
from condnum.report import notebook
from condnum.report import reproduce as module
from condnum.report.experiments import experiments, find_run, requested
from condnum.report.pool import Task
from condnum.report.reproduce import reproduce

NAMES = [experiment.name for experiment in sorted(requested("quick"), key=lambda one: not one.first)]


class FakeRunner:
    """Leaves whole run folders; fails, or is stopped by Ctrl-C, where told."""

    def __init__(self, fails: str = "", stops: str = "") -> None:
        self.fails, self.stops, self.ran, self.cores, self.alone = fails, stops, [], set(), set()

    def __call__(self, tasks, side_by_side, ended, *, threads, heard) -> None:
        self.cores.add(side_by_side * threads)
        for task in tasks:
            heard(task, {"stage": "running", "done": 1, "total": 3})
            if task.name == self.stops:
                raise KeyboardInterrupt
            self.ran.append(task.name)
            self.alone |= {task.name} if threads > 1 else set()
            if task.name != self.fails and "--out" in task.words:
                folder = Path(task.words[task.words.index("--out") + 1])
                folder.mkdir(parents=True, exist_ok=True)
                for name in ("report.html", "report.ipynb"):
                    (folder / name).write_text(shlex.join(task.words))
                flags = zip(task.words[3::2], task.words[4::2], strict=True)
                given = {flag[2:].replace("-", "_"): value for flag, value in flags}
                key = module.run_key(notebook.ParameterNotebook.find(task.words[1]), given)
                record = json.dumps({"duration_seconds": 12.5, "key": key})
                (folder / "provenance.json").write_text(record)
            ended(task, "no room on Mars; take fewer rows." if task.name == self.fails else "")


def ran(folder, **options):
    """Run a quick reproduction whose experiments end at once; return which ran."""
    runner = FakeRunner()
    reproduce("quick", folder, runner=runner, **options)
    return runner.ran


def by_name(runs):
    return {run.name: run for run in runs}


@pytest.fixture
def known(monkeypatch, tmp_path):
    """A checksum that a test can change, of the code, and a folder of data."""
    parts = {"code": "a" * 64, "data": tmp_path / "data" / "house_prices"}
    monkeypatch.setattr(notebook, "code_hash", lambda source: parts["code"])
    monkeypatch.setenv("CONDNUM_DATA", str(parts["data"].parent))
    parts["data"].mkdir(parents=True)
    return parts


def test_all_run_and_what_is_unchanged_is_reused(tmp_path, known):
    runner, written, lesson = FakeRunner(), io.StringIO(), Task("a lesson", ("part", "a"))
    options = {"runner": runner, "jobs": 2, "others": [lesson]}
    runs = reproduce("quick", tmp_path, stream=written, **options)
    assert (runner.ran, runner.cores, runner.alone) == ([*NAMES, "a lesson"], {2}, {"house-prices"})
    shown = [run for run in runs if run.name in NAMES]
    assert all(run.status == "finished" and run.folder == tmp_path / run.name for run in shown)
    assert {run.seconds for run in shown} == {12.5}
    assert {run.status for run in runs if run.name not in NAMES} == {"not run"}
    count = len(NAMES) + 1
    assert f"{count} tasks, about " in written.getvalue()
    assert f"✓ [{count}/{count}] a lesson" in written.getvalue()
    again = reproduce("quick", tmp_path, **options)
    assert runner.ran == [*NAMES, "a lesson", "a lesson"]
    assert {run.status for run in again} == {"reused", "not run"}
    (tmp_path / "mnist" / "report.html").unlink()
    (tmp_path / "deep" / "provenance.json").write_text("{")
    assert set(ran(tmp_path)) == {"mnist", "deep"}  # were not whole


def test_what_would_outlast_all_others_has_all_cores(tmp_path, known):
    runner = FakeRunner()
    reproduce("quick", tmp_path, only=["house-prices", "corrections"], jobs=3, runner=runner)
    assert (runner.ran, runner.alone) == (["house-prices", "corrections"], {"house-prices"})
    assert "--jobs 3" in (tmp_path / "house-prices/report.html").read_text()


@pytest.mark.parametrize("part", ["code", "data"])
def test_changed_code_or_data_runs_again(tmp_path, known, part):
    ran(tmp_path)
    if part == "code":
        known["code"] = "c"
    else:
        (known["data"] / "train.csv").touch()
    assert set(ran(tmp_path)) == set(NAMES)
    (known["data"].parent / "others").mkdir()
    assert ran(tmp_path) == []  # nobody reads that


def test_a_failure_does_not_stop_the_others_and_keeps_an_older_result(tmp_path, known):
    first = by_name(reproduce("quick", tmp_path, runner=FakeRunner(fails="erasure")))
    assert (first["erasure"].status, first["erasure"].folder) == ("failed", None)
    known["code"] = "d" * 64
    runner = FakeRunner(fails="deep")
    runs = by_name(reproduce("quick", tmp_path, runner=runner))
    assert set(runner.ran) == set(NAMES)
    failed = runs.pop("deep")
    assert (failed.status, failed.folder, failed.older) == ("failed", tmp_path / "deep", True)
    assert failed.error == "no room on Mars; take fewer rows."
    assert failed.key == first["deep"].key  # the folder's, not this try's
    assert {runs[name].status for name in NAMES if name != "deep"} == {"finished"}
    assert ran(tmp_path) == ["deep"]


def test_ctrl_c_keeps_what_is_finished(tmp_path, known):
    with pytest.raises(KeyboardInterrupt):
        reproduce("quick", tmp_path, runner=FakeRunner(stops=NAMES[3]))
    assert {one.name for one in experiments("quick") if find_run(one, tmp_path).folder} == set(NAMES[:3])
    assert ran(tmp_path) == NAMES[3:]


def test_only_some_leave_the_others_as_they_were(tmp_path, known):
    ran(tmp_path)
    assert ran(tmp_path, only=["limits"]) == ["limits"]  # which else does not run
    (tmp_path / "deep" / "report.html").unlink()
    runs = by_name(reproduce("quick", tmp_path, only=["limits"], runner=FakeRunner(fails="limits")))
    assert (runs["limits"].status, runs["mnist"].status) == ("reused", "finished")
    assert (runs["deep"].status, runs["deep"].folder) == ("not run", None)


def test_images_that_nobody_may_hand_on(tmp_path, known, monkeypatch):
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
    assert f"--pretrain {tmp_path}/data/imagenet --harmful {tmp_path}/data/cars" in said


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
    monkeypatch.setattr(condnum.site.parts, "missing_parts", list)
    put()
    return put


def test_the_command_runs_all_reuses_all_and_builds_the_site(experiments_end, tmp_path, capsys):
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == ""  # no reproduction: committed results
    assert main(["reproduce", "-j", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "s/index.html\nreports/index.html\n"
    assert "--seeds 1" in (tmp_path / "runs/reproduce/quick/deep/report.html").read_text()
    assert (tmp_path / "reports/index.html").read_text().startswith("runs/reproduce/quick/corrections ")
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().err
    assert "corrections reused: same parameters, data and code" in said
    assert "tasks" not in said
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text().startswith("runs/reproduce/quick/corrections ")


def test_the_command_names_a_failure_and_builds_the_site_nevertheless(experiments_end, tmp_path, capsys):
    experiments_end(fails="deep")
    assert main(["reproduce", "--quiet", "--out", "o", "--site", "s"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "s/index.html\n"
    assert "condnum: deep failed: no room on Mars; take fewer rows." in " ".join(shown.err.split())
    assert (tmp_path / "s/index.html").exists()


def test_ctrl_c_says_how_to_go_on(experiments_end, capsys):
    experiments_end(stops="mnist")
    assert main(["reproduce"]) == 130
    assert "the same command continues there" in " ".join(capsys.readouterr().err.split())
