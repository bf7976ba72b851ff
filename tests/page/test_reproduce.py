"""Reproductions: experiments one by one, what is reused, what failures and stops leave; and their command."""

import json
from pathlib import Path

import pytest

import condnum.site.build
from condnum.cli import main
from condnum.errors import InvalidInputError
from condnum.page import reproduce as module
from condnum.page.experiments import experiments, find_run, requested
from condnum.page.notebook import ParameterNotebook
from condnum.page.reproduce import reproduce

NAMES = [experiment.name for experiment in requested("quick")]


class FakeRun:
    """Leaves whole run folders; fails, or is stopped by Ctrl-C, where told."""

    def __init__(self, fails="", stops=""):
        self.fails, self.stops, self.ran = fails, stops, []

    def __call__(self, book: ParameterNotebook, given, folder: Path, *, quiet):
        if folder.name == self.stops:
            raise KeyboardInterrupt
        self.ran.append(folder.name)
        if folder.name == self.fails:
            raise InvalidInputError("no room on Mars; take fewer rows.")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "report.ipynb", "provenance.json"):
            (folder / name).write_text(json.dumps(given))
        return {"duration_seconds": 12.5, "failures": []}


@pytest.fixture
def runs_end(monkeypatch):
    """`runs_end(fails=…, stops=…)`: let runs end at once, or in trouble."""

    def put(**trouble):
        fake = FakeRun(**trouble)
        monkeypatch.setattr(module, "run_into_folder", fake)
        return fake

    put()
    return put


def by_name(runs):
    return {run.name: run for run in runs}


def test_all_run_and_a_failure_does_not_stop_the_others_and_keeps_an_older_result(tmp_path, runs_end, capsys):
    ran = runs_end().ran
    runs = reproduce("quick", tmp_path, jobs=3, quiet=False)
    assert ran == NAMES
    said = capsys.readouterr().err
    assert f"✓ [{len(NAMES)}/{len(NAMES)}] {NAMES[-1]}: " in said
    shown = [run for run in runs if run.name in NAMES]
    assert all(run.status == "finished" and run.folder == tmp_path / run.name for run in shown)
    assert {run.status for run in runs if run.name not in NAMES} == {"not run"}
    assert json.loads((tmp_path / "mnist/report.html").read_text())["jobs"] == 3
    runs_end(fails="deep")
    runs = by_name(reproduce("quick", tmp_path))
    failed = runs["deep"]
    assert (failed.status, failed.folder, failed.older) == ("failed", tmp_path / "deep", True)
    assert failed.error == "no room on Mars; take fewer rows."
    assert {runs[name].status for name in NAMES if name != "deep"} == {"finished"}


def test_ctrl_c_keeps_what_is_finished(tmp_path, runs_end):
    runs_end(stops=NAMES[3])
    with pytest.raises(KeyboardInterrupt):
        reproduce("quick", tmp_path)
    assert {one.name for one in experiments("quick") if find_run(one, tmp_path).folder} == set(NAMES[:3])


def test_only_some_leave_the_others_as_they_were(tmp_path, runs_end):
    reproduce("quick", tmp_path)
    (tmp_path / "deep" / "report.html").unlink()
    ran = runs_end().ran
    runs = by_name(reproduce("quick", tmp_path, only=["limits"]))
    assert ran == ["limits"]
    assert (runs["limits"].status, runs["mnist"].status) == ("finished", "finished")
    assert (runs["deep"].status, runs["deep"].folder) == ("not run", None)


def test_images_that_nobody_may_hand_on(tmp_path, runs_end, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path / "data"))

    def images():
        return by_name(reproduce("full", tmp_path / "out", only=["deep-vit-cars"]))["deep-vit-cars"]

    entry = images()
    assert entry.status == "not run"
    assert "needs the images of imagenet/ and cars/" in entry.error
    assert entry.error.endswith("--benign imagenet --harmful cars --preset vit-cars")
    for name in ("imagenet", "cars"):
        (tmp_path / "data" / name).mkdir(parents=True)
    assert images().status == "finished"
    given = json.loads((tmp_path / "out/deep-vit-cars/report.html").read_text())
    assert given["harmful"] == f"{tmp_path}/data/cars"


# The command.


@pytest.fixture
def experiments_end(monkeypatch, tmp_path, runs_end):
    """Let the site be one line that names the folders of the runs."""
    monkeypatch.chdir(tmp_path)

    def site(runs, target, **options):
        target.mkdir(exist_ok=True)
        (target / "index.html").write_text(" ".join(str(run.folder) for run in runs or () if run.folder))
        return target / "index.html"

    monkeypatch.setattr(condnum.site.build, "build_site", site)
    return runs_end


def test_the_command_runs_all_and_builds_the_site(experiments_end, tmp_path, capsys):
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == ""  # no reproduction: committed results
    assert main(["reproduce", "-j", "1"]) == 0
    assert capsys.readouterr().out == "s/index.html\nreports/index.html\n"
    assert (tmp_path / "reports/index.html").read_text().startswith("runs/reproduce/quick/corrections ")
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
