"""Building, swapping, refusing: the old site stays whole, whatever happens."""

from pathlib import Path

import pytest

from condnum.errors import DataNotFoundError, InvalidInputError, OutputError
from condnum.files import folder_lock
from condnum.report import site as build
from condnum.report.site import build_site


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files_of_the_site(built):
    assert files_of(built) == {
        "index.html",
        *(f"site/{name}" for name in ("site.css", "site.js", "templates.js", "plotly.min.js")),
        *(f"site/{name}.html" for name in ("glossary", "lesson", "old")),
        *(f"site/runs/{name}/report.ipynb" for name in ("lesson", "old")),
        *(f"site/runs/{name}/provenance.json" for name in ("lesson", "old")),
        "site/runs/lesson/results.csv",
    }  # fmt: skip


def test_other_files_of_the_target_stay_and_stale_pages_go(root, tmp_path):
    target = tmp_path / "reports"
    (target / "digits").mkdir(parents=True)
    (target / "digits" / "summary.csv").write_text("kept")
    (target / "README.md").write_text("kept")
    (target / "site").mkdir()
    (target / "site" / "stale.html").write_text("old")
    build_site(root, target)
    assert (target / "digits" / "summary.csv").read_text() == "kept"
    assert (target / "README.md").read_text() == "kept"
    assert not (target / "site" / "stale.html").exists()
    assert sorted(path.name for path in target.iterdir()) == ["README.md", "digits", "index.html", "site"]


def test_a_failed_build_leaves_the_old_site(root, built, monkeypatch):
    before = {name: (built / name).read_bytes() for name in files_of(built)}
    monkeypatch.setattr(build, "front_html", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_site(root, built)
    assert {name: (built / name).read_bytes() for name in files_of(built)} == before


def test_a_swap_that_fails_half_way_puts_the_old_site_back(root, built, write_run, monkeypatch):
    before = {name: (built / name).read_bytes() for name in files_of(built)}
    write_run(root / "lesson")  # something new to write
    real = build.os.replace

    def failing(source, target):
        if Path(target).name == "index.html" and Path(target).parent == built:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(build.os, "replace", failing)
    with pytest.raises(OutputError, match="No space left on device"):
        build_site(root, built)
    monkeypatch.undo()
    assert {name: (built / name).read_bytes() for name in files_of(built)} == before


def test_what_a_killed_build_left_is_removed(root, built):
    (built / ".site-killed" / "site").mkdir(parents=True)
    build_site(root, built)
    assert sorted(path.name for path in built.iterdir()) == ["index.html", "site"]


def test_one_build_at_a_time(root, built):
    before = files_of(built)
    with folder_lock(built), pytest.raises(OutputError, match="another run is writing"):
        build_site(root, built)
    assert files_of(built) == before


def test_no_reproduction(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"holds no reproduction\.json"):
        build_site(tmp_path, tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("folder", ["../outside", "/tmp"])
def test_a_folder_outside_the_reproduction_is_refused(entry, record, write_run, tmp_path, folder):
    write_run(tmp_path / "outside")
    (tmp_path / "root").mkdir()
    record(entry("lesson", "condnum run notebook lesson", folder=folder)).save(tmp_path / "root")
    with pytest.raises(InvalidInputError, match="must lie inside"):
        build_site(tmp_path / "root", tmp_path / "reports")


@pytest.mark.parametrize("name", ["../../x", "A b", ""])
def test_a_name_that_is_no_file_name_is_refused(entry, record, tmp_path, name):
    record(entry(name, "condnum run notebook lesson")).save(tmp_path)
    with pytest.raises(InvalidInputError, match="small letters, digits"):
        build_site(tmp_path, tmp_path / "reports")
