"""`condnum reproduce`: options, exit status, messages."""

import functools
from contextlib import nullcontext

import pytest

import condnum.report.reproduce
import condnum.site.build
from condnum.cli import main
from condnum.errors import OutputError
from condnum.report.reproduce import reproduce


def leave(experiment, folder, *, fails=(), **options):
    if folder.name in fails:
        raise OutputError("the disk is a teapot; use a kettle.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "report.ipynb"):
        (folder / name).write_text(experiment.typed)
    (folder / "provenance.json").write_text("{}")
    return []


@pytest.fixture
def experiments_end(monkeypatch, tmp_path):
    """Let experiments end at once, and the site be one line that names its folder."""
    monkeypatch.chdir(tmp_path)

    def site(runs, target, **options):
        target.mkdir(exist_ok=True)
        (target / "index.html").write_text(" ".join(str(run.folder) for run in runs or () if run.folder))
        return target / "index.html"

    def put(**options):
        runner = functools.partial(leave, **options)
        monkeypatch.setattr(
            condnum.report.reproduce, "reproduce", functools.partial(reproduce, runner=runner)
        )
        monkeypatch.setattr(condnum.site.build, "build_site", site)
        monkeypatch.setattr(condnum.site.build, "prepared", nullcontext)

    return put


def test_all_is_well(experiments_end, tmp_path, capsys):
    experiments_end()
    assert main(["reproduce", "-j", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "reports/index.html\n"
    assert shown.err.startswith("Plan: about ")
    assert "[1/9] house-prices finished" in shown.err
    assert (tmp_path / "runs/reproduce/quick/deep/report.html").read_text() == "condnum run deep --seeds 1"
    assert (tmp_path / "reports/index.html").read_text().startswith("runs/reproduce/quick/house-prices ")
    experiments_end()
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().err
    assert "[9/9] corrections reused: same parameters, data and code" in said
    assert "Plan" not in said


def test_a_failure_is_named_and_the_site_is_built_nevertheless(experiments_end, tmp_path, capsys):
    experiments_end(fails=("deep",))
    assert main(["reproduce", "--quiet", "--out", "o", "--site", "s"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "s/index.html\n"
    assert "condnum: deep failed: the disk is a teapot; use a kettle." in " ".join(shown.err.split())
    assert (tmp_path / "s/index.html").exists()


def test_the_site_alone_is_of_the_reproduction_that_is_there(experiments_end, capsys, tmp_path):
    experiments_end()
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == ""
    assert main(["reproduce", "--only", "corrections", "--quiet"]) == 0
    assert main(["site", "--site", "s"]) == 0
    assert (tmp_path / "s/index.html").read_text() == "runs/reproduce/quick/corrections"
    assert capsys.readouterr().out.endswith("s/index.html\n")


def test_ctrl_c_says_how_to_go_on(experiments_end, monkeypatch, capsys):
    experiments_end()

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(condnum.report.reproduce, "reproduce", stop)
    assert main(["reproduce"]) == 130
    assert "the same command continues there" in " ".join(capsys.readouterr().err.split())
