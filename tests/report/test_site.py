"""Results and site: the scoreboard, kept as read in `site.txt`; links that resolve; the old site or the new.

`CONDNUM_GOLDEN=record pytest tests/report/test_site.py` writes `site.txt` anew.
"""

import base64
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sphinx.application import Sphinx

from condnum.errors import DataFormatError, DataNotFoundError, OutputError
from condnum.files import folder_lock
from condnum.lessons.corrections import aligned_remark, correction_table
from condnum.report.experiments import Experiment, experiments
from condnum.report.html import figure_html
from condnum.report.results import ExperimentResult, find_runs
from condnum.report.scoreboard import check_claims, compare_published, scoreboard, tally
from condnum.site import build
from condnum.site.build import build_site
from condnum.site.notebooks import figure_place
from condnum.site.results import results_pages
from condnum.studies.measure import Published
from condnum.studies.run_verdicts import RunFolder

HERE = Path(__file__).resolve().parent
REPORTS, GOLDEN, AS_READ = HERE.parents[1] / "reports", HERE.parent / "golden", HERE / "site.txt"


def entry(name, command, folder=None, status="finished", error=""):
    study, *options = command.split(" --")
    given = dict(option.split() for option in options)
    experiment = Experiment(name, f"Title of {name}", "One sentence.", study, given)
    return ExperimentResult(experiment, folder, status, error)


def make_run(folder, tables=(), data="diabetes"):
    """Write a run folder: notebook, provenance, and tables from a mapping or copied from a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = go.Figure(go.Scatter(x=np.arange(1.0, 4.0), y=np.array([1.0, 0.5, 1 / 3]), mode="lines"))
    figure.update_layout(title_text="A figure of κ", template="plotly_white")
    outputs = {
        "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
        "text/html": "<table><tr><td>K_P</td></tr></table>",
    }
    words = "# The title\n\nSome words on $\\kappa$.\n\n## The run\n\n## Run\n\nIs taken, of D_P."
    cells = [
        new_code_cell("show()", outputs=[new_output("display_data", data={kind: value})])
        for kind, value in outputs.items()
    ]
    told = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    notebook = new_notebook(cells=[new_markdown_cell(words), *cells], metadata=told)
    nbformat.write(notebook, folder / "report.ipynb")
    provenance = {
        "versions": {"python": "3.11", "torch": "2.15"}, "platform": {"system": "Linux"}, "seeds": [0, 1],
        "device": {"device": "cpu", "name": "a processor", "threads": 2}, "duration_seconds": 83.0,
        "parameters": {"seeds": 2, "methods": "", "note": "<i>"}, "data": {data: "ab" * 32},
        "source": {"revision": "f" * 40, "dirty": True}, "started_utc": "2030-01-02T03:04:05+00:00",
    }  # fmt: skip
    (folder / "provenance.json").write_text(json.dumps(provenance))
    if isinstance(tables, Path):
        for path in tables.glob("*.csv*"):
            shutil.copy(path, folder)
    else:
        for name, table in dict(tables).items():
            table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def runs(tmp_path):
    """A finished lesson, one failed experiment with an older result, one without, one waiting."""
    base = tmp_path / "reproduction"
    return [
        entry("lesson", "lesson", make_run(base / "lesson", {"results": pd.DataFrame({"a": [1, 2]})})),
        entry("old", "limits", make_run(base / "old"), "failed", "it broke at <b>x</b>; mend it."),
        entry("gone", "deep --harmful cars", None, "failed", "no space left"),
        entry("waiting", "mnist", None, "waiting"),
        entry("unasked", "attackers", None, "not run", "was not asked for"),
    ]


@pytest.fixture
def real(tmp_path):
    """A reproduction of committed results of real runs, and of small ones whose figures are drawn."""
    base = tmp_path / "real"
    keys = itertools.product(("ours", "identity", "imma"), (0, 1), ("pretrain", "harmful"), (0.0, 5.0))
    curves = pd.DataFrame(keys, columns=["method", "seed", "task", "x"])
    curves = curves.assign(quantity="norm_ratio", value=2.0 ** -curves["x"])
    corrections = correction_table([aligned_remark()]).assign(computed="κ(H_P): 123 → 4")
    tables = {
        "deep": REPORTS / "deep" / "mnist", "house-prices": REPORTS / "house_prices",
        "mnist": REPORTS / "mnist", "digits": GOLDEN / "earlier/digits", "attackers": GOLDEN / "attackers",
        "corrections": {"corrections": corrections, "results": pd.DataFrame({"x": range(60_000)})},
    }  # fmt: skip
    for name, table in tables.items():
        make_run(base / name, table, "mnist, 10,000 test images, bundled data" if name == "mnist" else name)
    curves.to_csv(base / "house-prices" / "curves.csv", index=False)
    return [entry(name, name, base / name) for name in tables]


def results_of(runs, files):
    """The page of results as Sphinx gets it: Markdown, with HTML in it."""
    return results_pages(runs, (), files)["results/index.md"]


def as_read(text):
    """What the page says, a line per heading, paragraph, row and entry, with the addresses that it has."""
    lines = []
    for element in BeautifulSoup(re.sub(r"(?m)^```.*$", "", text), "html.parser").contents:
        if isinstance(element, str):
            lines += [" ".join(line.split()) for line in element.splitlines() if line.strip()]
            continue
        for part in element.select("p, li, tr, summary") or [element]:
            links = [a["href"] for a in part.select("a[href]")]
            lines.append(" ".join([part.name, *part.get_text(" ").split(), *links]))
    return lines


def test_the_results_read_as_they_were_kept(runs, real, tmp_path):
    text = (
        "\n".join("\n".join(as_read(results_of(shown, tmp_path / "files"))) for shown in (runs, real)) + "\n"
    )
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        AS_READ.write_text(text, encoding="utf-8")
    assert text.splitlines() == AS_READ.read_text(encoding="utf-8").splitlines()
    large = pd.read_csv(tmp_path / "files/corrections/results.csv.gz")
    assert large["x"].tolist() == list(range(60_000))


def test_without_a_reproduction_the_committed_results_are_shown(tmp_path):
    pages = results_pages(None, (), tmp_path)
    assert "Not from this machine" in pages["results/index.md"]
    assert 'href="house-prices.html#what-made-this-page">9,172' in pages["results/index.md"]
    assert "condnum run mnist" in pages["results/mnist.md"]
    assert (tmp_path / "house-prices" / "norm_ratio.png").exists()


def test_verdicts():
    nan = float("nan")
    given = [(0.1, 12.0), (0.1, 12.01), (2.0, 6.0), (2.0, 5.0), (nan, 8.5), (1.0, 0.0), (1.0, nan)]
    assert [compare_published(10.0, deviation, obtained).text for deviation, obtained in given] == [
        "agrees", "higher ×1.2", "agrees", "lower ×2", "agrees", "lower ×∞", "not finite",
    ]  # fmt: skip


def test_claims_are_counted_by_seed_and_cell_at_unit_scale(tmp_path):
    published = {
        "imma": Published(7.0, 1.0, 3.5, 0.9, 2.0, 0.2),
        "ours": Published(18.9, 2.0, 0.05, 0.002, 356.0, 5.0),
    }
    cells = [
        ("ours", 0, 5.0, True),
        ("ours", 1, 1.0, False),
        ("imma", 0, 2.0, False),
        ("imma", 1, 2.0, False),
    ]
    measured = pd.DataFrame(cells, columns=["method", "seed", "rir", "success"])
    both = pd.DataFrame(
        {"convention": ["ridge", "compact", "ridge"], "theta_scale": ["unit", "unit", "as_trained"]}
    )
    table = measured.merge(both, how="cross")
    table.loc[table["theta_scale"] == "as_trained", "success"] = False

    def checked():
        table.to_csv(tmp_path / "results.csv", index=False)
        return check_claims(RunFolder.read(tmp_path), published)

    largest, imma, ours = checked()
    assert largest.answers == {"ridge": "1 of 2 seeds", "compact": "1 of 2 seeds"}
    assert largest.standing == "does not hold"  # half of the cells of both
    assert (imma.answers["ridge"], imma.standing) == ("2 of 2 cells", "holds")
    assert (ours.answers["compact"], ours.standing) == ("1 of 2 cells", "does not hold")
    assert "% of 6 settings" in ours.stability
    table.loc[table["convention"] == "ridge", "success"] = table["method"] == "ours"
    assert checked()[2].standing == "in part"
    table = table[table["method"] == "ours"]
    (alone,) = checked()
    assert alone.text.startswith("Ours")


def test_a_part_of_the_pairs_says_that_it_is_a_part(real, monkeypatch):
    read = pd.read_csv

    def fewer(path, **options):
        table = read(path, **options)
        return table.assign(pairs=20, seeds=1) if "rir_mean" in table else table

    whole, other = ([run for run in real if run.name == name] for name in ("mnist", "digits"))
    part = "the 10 000 test images, where the paper takes the 60 000 training images"
    assert scoreboard(whole)[0].differs == part
    monkeypatch.setattr(pd, "read_csv", fewer)
    part += "; 20 of the 90 ordered pairs of digits; 1 seed instead of 3"
    assert scoreboard(whole)[0].differs == part
    assert tally(scoreboard(other)) == ""  # no number on the paper's data


def bytes_of(folder):
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_old_site_or_new(runs, site_cache, tmp_path, monkeypatch):
    """Links resolve and nothing is warned of; then, on what Sphinx remembers, changes and failures."""
    target, said = tmp_path / "reports", []
    for name in ("digits/summary.csv", "README.md", "site/stale.html", "site.partial/half.html"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("kept")
    (target / "site" / "provenance.json").write_text('{"files": {"stale.html": ""}}')

    def again():
        return build_site(runs, target, cache=site_cache, lessons=(), explorers=(), say=said.append)

    assert again() == target / "index.html"
    assert said == []
    assert 'url=site/results/index.html"' in (target / "index.html").read_text("utf-8")
    assert (target / "digits" / "summary.csv").read_text() == "kept"
    assert {path.name for path in target.iterdir()} == {
        ".site.lock",
        "README.md",
        "digits",
        "index.html",
        "site",
    }
    pages = {
        path: BeautifulSoup(path.read_bytes(), "html.parser") for path in (target / "site").rglob("*.html")
    }
    names = {str(path.relative_to(target / "site")) for path in pages}
    assert names >= {"index.html", "results/index.html", "results/lesson.html", "api/condnum.html"}
    assert not names & {"stale.html", "results/gone.html"}
    ids = {page: {element["id"] for element in soup.find_all(id=True)} for page, soup in pages.items()}
    for page, soup in pages.items():
        for element in soup.find_all(["a", "link", "script", "img"]):
            address = element.get("href") or element.get("src") or ""
            if not address or (element.name == "a" and re.match(r"https?:", address)):
                continue
            assert not re.match(r"[a-z]+:|/", address), f"{page.name}: {address} is not relative"
            path, _, anchor = address.partition("#")
            place = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert place.exists(), f"{page.name}: {address}"
            assert not anchor or place not in ids or anchor in ids[place], f"{page.name}: {address}"
    assert "An older result" in pages[target / "site/results/old.html"].get_text()
    lesson = (target / "site/results/lesson.html").read_text("utf-8")
    assert "K<sub>P</sub></td>" in lesson
    assert "of D<sub>P</sub>." in lesson
    excerpts = (target / "site/_static/excerpts.js").read_text("utf-8")
    assert "Is taken, of DP." in excerpts
    assert "Skip to content" not in excerpts

    del runs[1:]
    again()
    listed = set()
    for path in (target / "site").rglob("*.html"):  # also where Sphinx had made the page before
        links = BeautifulSoup(path.read_bytes(), "html.parser").select(".sidebar-tree a")
        targets = (link["href"].partition("#")[0] or path.name for link in links)
        listed.add(tuple((path.parent / name).resolve() for name in targets))
    (contents,) = listed
    assert {path.stem for path in contents} >= {"lesson", "condnum.probing", "teach"}
    assert not (target / "site/results/old.html").exists()
    assert (target / "site/runs/lesson/results.csv").exists()
    before, rename, copy = bytes_of(target), os.rename, shutil.copytree

    def full(source, place, **options):
        if Path(source) == target / "site.partial" or Path(place) == target / "site.partial":
            raise OSError(28, "No space left on device")
        return copy(source, place, **options) if options else rename(source, place)

    runs[0] = entry("lesson", "lesson", make_run(runs[0].folder, data="new"))
    for module, name in ((shutil, "copytree"), (os, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            patch.setattr(Sphinx, "build", lambda self, **options: None)  # the pages of before will do
            with pytest.raises(OutputError, match="No space left on device"):
                again()
        assert {
            name: content for name, content in bytes_of(target).items() if "partial" not in name
        } == before
    with folder_lock(target, name=".site.lock"), pytest.raises(OutputError, match="another run is writing"):
        again()
    again()
    after = bytes_of(target)
    assert after != before
    assert said == []
    with monkeypatch.context() as patch:
        patch.delattr(Sphinx, "build")
        assert again() == target / "index.html"  # made of the same: it stays
        assert bytes_of(target) == after
        (target / "site" / "results" / "lesson.html").write_text("damaged")
        with pytest.raises(AttributeError):
            again()


def test_a_lesson_that_fails_is_left_out_and_one_that_ran_is_not_run_again(tmp_path, monkeypatch):
    ran, said = [], []

    def run(name, parameters, folder, **options):
        ran.append(name)
        if name == "2_alignment":
            raise DataNotFoundError("nothing is there; look elsewhere.")
        folder.mkdir(parents=True)
        (folder / "report.ipynb").write_text("{}")

    monkeypatch.setattr(build, "run_notebook", run)
    names = ("1_condition_number", "2_alignment")
    for execute in (False, True, True):
        found = build._executed(names, tmp_path, execute, said.append)
        assert list(found) == (["1_condition_number"] if execute else [])
    assert sorted(ran) == ["1_condition_number", "2_alignment", "2_alignment"]
    assert said[0] == "site: the lesson 2_alignment is left out: nothing is there; look elsewhere."


def drawn(figure):
    return json.loads(re.search(r'data-for="f">(.*?)</script>', figure_html(figure, "f"), re.DOTALL).group(1))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.geomspace(1e-32, 1e30, 200), "f4"),
        (np.array([[1.0, 2.0], [0.1, np.nan]]), "f4"),
        (np.array([1.0, 1e-40]), "f8"),  # float32 does not hold these
        (np.array([1.0, 1e39]), "f8"),
    ],
)
def test_arrays_keep_seven_digits_and_their_shape(values, dtype):
    stored = json.loads(go.Figure(go.Heatmap(z=values)).to_json())
    again = go.Figure(drawn(stored), skip_invalid=False).to_plotly_json()["data"][0]["z"]
    assert again["dtype"] == dtype
    assert again.get("shape") == stored["data"][0]["z"].get("shape")
    found = np.frombuffer(base64.b64decode(again["bdata"]), dtype=dtype)
    np.testing.assert_allclose(found, values.ravel(), rtol=6e-8)  # half a unit in float32's last place


def test_a_figure_of_a_recorded_explorer_becomes_its_place():
    figure = {"layout": {"meta": {"explorer": "Angles", "settings": {"angle": 30, "kind": '"a"'}}}}
    place = BeautifulSoup(figure_place(figure, "f", ["Angles"]), "html.parser").div
    assert place["data-explorer"] == "Angles"
    assert json.loads(place["data-settings"]) == {"angle": 30, "kind": '"a"'}
    assert "plot-frame" in figure_place(figure, "f", ["Others"])


def test_a_figure_cannot_end_its_script_and_its_panels_stack_on_a_phone():
    name = "</script><script>alert(1)</script>"
    layout = {"title": {"text": '<b>"a<br><sup>b'}, "xaxis": {}, "height": 321}
    figure = {"data": [{"y": [1.0, None], "name": name}], "layout": layout}
    assert drawn(figure)["data"] == [{"y": [1.0, None], "name": name}]
    page = figure_html(figure, "f")
    assert page.count("</script>") == 1
    assert 'aria-label="&quot;a"' in page
    assert "min-height:321px;min-width:340px" in page
    panels = {"layout": {"xaxis": {}, "xaxis2": {}}}
    assert "min-width:340px" in figure_html(panels, "f")
    assert drawn(panels)["layout"]["meta"]["stack"]
    kinds = {kind: {"data": [{"type": kind}], "layout": {}} for kind in ("scatter", "heatmap")}
    assert drawn(kinds["scatter"])["layout"]["meta"]["stack"]
    assert "meta" not in drawn(kinds["heatmap"])["layout"]


@pytest.mark.parametrize("name", ["provenance.json", "summary.csv"])
def test_a_damaged_file_is_named(tmp_path, name):
    run = entry("lesson", "digits", make_run(tmp_path / "lesson"))
    (run.folder / name).write_bytes(b"\x00\xff")
    with pytest.raises(DataFormatError, match=f"{name} is damaged .* run the experiment again"):
        build_site([run], tmp_path / "reports", cache=tmp_path / "cache", lessons=(), explorers=())


def test_runs_are_found_by_their_commands(tmp_path):
    with pytest.raises(DataNotFoundError, match="holds no finished experiment"):
        find_runs(tmp_path)
    for experiment in experiments("full", ["house-prices", "limits", "mnist"]):
        folder = make_run(tmp_path / experiment.name)
        (folder / "report.html").touch()
        record = json.loads((folder / "provenance.json").read_text())
        known = record | {"reproduction": {"command": experiment.typed, "fingerprint": "ab"}}
        (folder / "provenance.json").write_text(json.dumps(known))
    (tmp_path / "limits" / "provenance.json").write_text("{")
    runs = {run.name: run for run in find_runs(tmp_path)}
    assert list(runs) == [experiment.name for experiment in experiments("full")]
    assert {name for name, run in runs.items() if run.folder} == {"house-prices", "mnist"}
    assert (runs["mnist"].status, runs["limits"].status) == ("finished", "not run")
    assert (runs["mnist"].seconds, runs["mnist"].fingerprint) == (83.0, "ab")
