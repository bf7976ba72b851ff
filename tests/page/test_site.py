"""Results and site: obtained beside published numbers, links that resolve, a site of its runs."""

import html
import itertools
import json
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

from condnum.errors import DataFormatError, DataNotFoundError
from condnum.lessons.explorers import EXPLORERS
from condnum.lessons.frame import recording
from condnum.machine import source_revision
from condnum.page.experiments import Experiment, ExperimentResult, experiments, find_runs
from condnum.page.html import figure_html
from condnum.site import build, parts
from condnum.site.build import build_site
from condnum.site.results import results_pages
from condnum.studies.frame import Cell

HERE = Path(__file__).resolve().parent
REPORTS = HERE.parents[1] / "reports"


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
    """A finished lesson, one failed experiment with an older result, one without, one not asked for."""
    base = tmp_path / "reproduction"
    return [
        entry("lesson", "lesson", make_run(base / "lesson", {"results": pd.DataFrame({"a": [1, 2]})})),
        entry("old", "limits", make_run(base / "old"), "failed", "it broke at <b>x</b>; mend it."),
        entry("gone", "deep --harmful cars", None, "failed", "no space left"),
        entry("unasked", "attackers", None, "not run", "was not requested"),
    ]


@pytest.fixture
def real(tmp_path):
    """A reproduction of committed results of real runs, and of small ones whose figures are drawn."""
    base = tmp_path / "real"
    keys = itertools.product(("ours", "identity", "imma"), (0, 1), ("benign", "harmful"), (0.0, 5.0))
    curves = pd.DataFrame(keys, columns=["method", "seed", "task", "x"])
    curves = curves.assign(quantity="norm_ratio", value=2.0 ** -curves["x"])
    words = dict.fromkeys(("key", "place", "claim", "setting", "claimed", "correction"), "words")
    corrections = pd.DataFrame([words | {"computed": "κ(H_P): 123 → 4", "refuted": True}])
    tables = {
        "deep": REPORTS / "deep" / "mnist", "house-prices": REPORTS / "house_prices",
        "mnist": REPORTS / "mnist", "digits": REPORTS / "digits",
        "attackers": REPORTS / "attackers" / "house_prices",
        "corrections": {"corrections": corrections, "results": pd.DataFrame({"x": [1]}),
                        "large": pd.DataFrame({"x": range(200_000)})},
    }  # fmt: skip
    for name, table in tables.items():
        make_run(base / name, table, "mnist, 10,000 test images, bundled data" if name == "mnist" else name)
    curves.to_csv(base / "house-prices" / "curves.csv", index=False)
    return [entry(name, name, base / name) for name in tables]


def results_of(runs, files):
    """The page of results as Sphinx gets it: Markdown, with HTML in it."""
    return results_pages(runs, (), files)["results/index.md"]


def test_the_results_say_what_ran_what_failed_and_what_it_means(runs, real, tmp_path):
    page = results_of(runs, tmp_path / "files")
    assert "Title of old failed: it broke at &lt;b&gt;x&lt;/b&gt;; mend it. An" in page
    assert "Title of gone failed: no space left" in page
    assert "a committed result, not of this run" in page  # Tables 1 to 3, which did not run
    page = results_of(real, tmp_path / "files")
    soup = BeautifulSoup(page, "html.parser")
    committed = ("deep-mnist", "deep-imagenette-cars")
    sections = ("deep", *committed, "house-prices", "mnist", "digits")
    links = {a["href"].partition(".")[0] for a in soup.find_all("a", string="What made these numbers")}
    assert links == set(sections)
    assert "356.2" in soup.get_text()  # the published RIR of Table 1
    assert {chip.get_text() for chip in soup.select(".claims .chip")} >= {"refuted"}
    assert "κ(H<sub>P</sub>): 123 → 4" in page
    assert (tmp_path / "files/corrections/results.csv").exists()
    assert not (tmp_path / "files/corrections/large.csv").exists()  # it stays with the run


def test_without_a_reproduction_the_committed_results_are_shown(tmp_path):
    pages = results_pages(None, (), tmp_path)
    assert "Not from this machine" in pages["results/index.md"]
    assert 'href="house-prices.html#what-made-this-page"' in pages["results/index.md"]
    assert "9,260" in pages["results/index.md"]
    assert "condnum run mnist" in pages["results/mnist.md"]
    assert (tmp_path / "mnist" / "heatmaps.png").exists()


@pytest.mark.slow
def test_the_site_is_whole_and_follows_its_runs(runs, site_cache, tmp_path):
    """Links resolve, nothing is warned of, changes appear; it is put in place as the results of a run are."""
    target, said = tmp_path / "reports", []
    for name in ("digits/summary.csv", "README.md", "site/stale.html", "site.partial/half.html"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("kept")
    (target / "site" / "provenance.json").write_text('{"files": {"stale.html": ""}}')

    def again():
        return build_site(runs, target, cache=site_cache, lessons=(), explorers=(), say=said.append)

    assert again() == target / "index.html"
    assert said == []
    assert 'url=site/index.html"' in (target / "index.html").read_text("utf-8")
    assert (target / "digits" / "summary.csv").read_text() == "kept"
    kept = {".site.lock", "README.md", "digits", "index.html", "site"}
    assert {path.name for path in target.iterdir()} == kept
    pages = {path: path.read_text("utf-8") for path in (target / "site").rglob("*.html")}
    names = {str(path.relative_to(target / "site")) for path in pages}
    assert names >= {"index.html", "results/index.html", "results/lesson.html", "api/condnum.html"}
    assert not names & {"stale.html", "results/gone.html"}
    ids = {page: {*re.findall(r'<[^>]* id="([^"]+)"', text)} for page, text in pages.items()}
    for page, text in pages.items():
        links = re.findall(r'<(a|link|script|img)\b[^>]*? (?:href|src)="([^"]+)"', text)
        assert len(links) > 20, page
        for element, address in links:
            if re.match({"a": r"https?:", "img": "data:image/png;"}.get(element, "$^"), address):
                continue
            address = html.unescape(address)
            assert not re.match(r"[a-z]+:|/", address), f"{page.name}: {address} is not relative"
            path, _, anchor = address.partition("#")
            place = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert place.exists(), f"{page.name}: {address}"
            assert not anchor or place not in ids or anchor in ids[place], f"{page.name}: {address}"
    assert "An older result" in pages[target / "site/results/old.html"]
    lesson = pages[target / "site/results/lesson.html"]
    assert "K<sub>P</sub></td>" in lesson
    assert "of D<sub>P</sub>." in lesson

    del runs[1:]
    runs[0] = entry("lesson", "lesson", make_run(runs[0].folder, data="new"))
    again()
    assert not (target / "site/results/old.html").exists()
    assert (target / "site/runs/lesson/results.csv").exists()
    for text, data in (
        (lesson, "diabetes"),
        ((target / "site/results/lesson.html").read_text("utf-8"), "new"),
    ):
        assert re.findall(r"(\w+): abab", text) == [data]
    assert said == []


def test_a_part_that_fails_is_left_out_and_one_that_is_made_is_not_made_again(tmp_path, monkeypatch):
    values, said = recording.recorded_values, []
    few = {name: kept[:1] for name, kept in values(EXPLORERS["AlignmentExplorer"]).items()}
    monkeypatch.setattr(recording, "recorded_values", lambda _: few)
    parts.make_part(Cell({"stage": "AlignmentExplorer", "cache": str(tmp_path)}))
    wanted = ["AlignmentExplorer", "nothing"]
    assert parts.missing_parts(tmp_path, [], wanted) == ["nothing"]
    lessons, recorded = build._made(tmp_path, [], wanted, said.append, None)
    assert (lessons, list(recorded)) == ({}, ["AlignmentExplorer"])
    assert said[0].startswith("site: nothing is left out: UnknownNameError: unknown part of the site")


def drawn(figure):
    return json.loads(re.search(r'data-for="f">(.*?)</script>', figure_html(figure, "f"), re.DOTALL).group(1))


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
    with pytest.raises(DataNotFoundError, match="has no finished experiment"):
        find_runs(tmp_path)
    for experiment in experiments("full", ["house-prices", "limits", "mnist"]):
        folder = make_run(tmp_path / experiment.name)
        (folder / "report.html").touch()
        record = json.loads((folder / "provenance.json").read_text())
        known = record | {"reproduction": {"command": experiment.typed}}
        if experiment.name == "mnist":
            known["source"] = source_revision()
        (folder / "provenance.json").write_text(json.dumps(known))
    (tmp_path / "limits" / "provenance.json").write_text("{")
    runs = {run.name: run for run in find_runs(tmp_path)}
    assert list(runs) == [experiment.name for experiment in experiments("full")]
    assert {name for name, run in runs.items() if run.folder} == {"house-prices", "mnist"}
    assert (runs["mnist"].status, runs["limits"].status) == ("finished", "not run")
    assert int(runs["mnist"].seconds) == 83
    assert runs["house-prices"].older
    assert runs["house-prices"].error.startswith("It was computed at revision ffffffffffff, with uncommitted")
