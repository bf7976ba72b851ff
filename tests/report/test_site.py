"""The site: what its pages say, kept as read in `site.txt`; links that resolve; a build that is whole or not.

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

from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, OutputError
from condnum.files import folder_lock
from condnum.lessons.corrections import aligned_remark, correction_table
from condnum.report import site
from condnum.report.pages import figure_html
from condnum.report.reproduce import Experiment, ReproductionRecord
from condnum.report.results import read_result
from condnum.report.scoreboard import claims, compare, scoreboard, tally
from condnum.report.site import build_site
from condnum.studies.measure import Published

HERE = Path(__file__).resolve().parent
REPORTS, GOLDEN, AS_READ = HERE.parents[1] / "reports", HERE.parent / "golden", HERE / "site.txt"


def entry(name, command, status="finished", *, folder="", error=""):
    place = name if folder == "" and status != "not run" else folder
    title, told = f"Title of {name}", {"status": status, "folder": place or None, "error": error}
    return Experiment(name, title, "One sentence.", f"condnum run {command}", seconds=12.34, **told)


def save_record(folder, *entries):
    source, started = {"revision": "0123456789abcdef" * 2, "dirty": False}, "2030-01-02T03:04:05+00:00"
    versions, device = {"python": "3.11", "condnum": "0.1.0"}, {"name": "a processor"}
    ReproductionRecord("quick", started, 100.0, source, versions, device, entries).save(folder)


def make_run(folder, tables=(), data="diabetes"):
    """Write a run folder: notebook, provenance, and tables from a mapping or copied from a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = go.Figure(go.Scatter(x=np.arange(1.0, 4.0), y=np.array([1.0, 0.5, 1 / 3]), mode="lines"))
    figure.update_layout(title_text="A figure of κ", template="plotly_white")
    outputs = {
        "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
        "text/html": "<table><tr><td>1</td></tr></table>",
    }
    words = "# The title\n\nSome words on $\\kappa$.\n\n## The run\n\n## Run\n\nIs taken."
    cells = [
        new_code_cell("show()", outputs=[new_output("display_data", data={kind: value})])
        for kind, value in outputs.items()
    ]
    nbformat.write(new_notebook(cells=[new_markdown_cell(words), *cells]), folder / "report.ipynb")
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
def root(tmp_path):
    """A reproduction with a finished lesson, one failed experiment with an older result, one waiting."""
    base = tmp_path / "reproduction"
    make_run(base / "lesson", {"results": pd.DataFrame({"a": [1, 2]})})
    make_run(base / "old")
    save_record(
        base,
        entry("lesson", "notebook lesson"),
        entry("old", "limits", "failed", error="it broke at <b>x</b>; mend it."),
        entry("gone", "deep --harmful cars", "failed", folder=None, error="no space left"),
        entry("waiting", "mnist", "waiting", folder=None),
        entry("unasked", "attackers", "not run", error="was not asked for"),
    )
    return base


@pytest.fixture
def built(root, tmp_path):
    """The site of `root`."""
    return build_site(root, tmp_path / "reports").parent


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
        "mnist": REPORTS / "mnist", "digits": GOLDEN / "digits", "attackers": GOLDEN / "attackers",
        "corrections": {"corrections": corrections, "results": pd.DataFrame({"x": range(60_000)})},
    }  # fmt: skip
    for name, table in tables.items():
        make_run(base / name, table, "mnist, 10,000 test images, condnum's box" if name == "mnist" else name)
    curves.to_csv(base / "house-prices" / "curves.csv", index=False)
    save_record(base, *(entry(name, name) for name in tables))
    return base


def parsed(page):
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


def as_read(page):
    """What a page says, a line per heading, paragraph, row and entry, with the addresses that it has."""
    lines = []
    for element in parsed(page).select("h1, h2, h3, p, li, tr, summary"):
        if element.name != "li" or element.find(["p", "h3"]) is None:
            links = [a["href"] for a in element.select("a[href]")]
            name = f"{element.name}#{element['id']}" if element.has_attr("id") else element.name
            lines.append(" ".join([name, *element.get_text(" ").split(), *links]))
    return lines


def test_every_page_reads_as_it_was_kept(built, real, tmp_path):
    index = build_site(real, tmp_path / "of real runs")
    pages = [built / "index.html", built / "site" / "lesson.html", built / "site" / "old.html", index]
    text = "\n".join(line for page in pages for line in [f"= {page.name}", *as_read(page)]) + "\n"
    text = re.sub(r"(?<=condnum )\d[^\s,]*|\b\d+ k?B\b", "…", text)  # versions and sizes
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        AS_READ.write_text(text, encoding="utf-8")
    assert text.splitlines() == AS_READ.read_text(encoding="utf-8").splitlines()
    drawn = ["norm-ratio-house-prices", "heatmaps-mnist", "heatmaps-digits", "attackers-attackers"]
    assert [frame["id"] for frame in parsed(index).select(".plot-frame")] == [f"plot-{key}" for key in drawn]
    large = pd.read_csv(index.parent / "site/runs/corrections/results.csv.gz")
    assert large["x"].tolist() == list(range(60_000))


def test_verdicts():
    nan = float("nan")
    given = [(0.1, 12.0), (0.1, 12.01), (2.0, 6.0), (2.0, 5.0), (nan, 8.5), (1.0, 0.0), (1.0, nan)]
    assert [compare(10.0, deviation, obtained).text for deviation, obtained in given] == [
        "agrees", "higher ×1.2", "agrees", "lower ×2", "agrees", "lower ×∞", "not finite",
    ]  # fmt: skip


def test_claims_are_counted_by_seed_and_cell_at_unit_scale():
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
        {"convention": ["ridge", "compact", "ridge"], "gauge": ["unit", "unit", "as_trained"]}
    )
    table = measured.merge(both, how="cross")
    table.loc[table["gauge"] == "as_trained", "success"] = False
    largest, imma, ours = claims(published, table)
    assert largest.answers["ridge"].startswith("1 of 2 seeds: RIR 3 against 2 (IMMA)")
    assert largest.standing == "does not hold"  # half of the cells of both
    assert (imma.answers["ridge"], imma.standing) == ("2 of 2 cells", "holds")
    assert (ours.answers["compact"], ours.standing) == ("1 of 2 cells", "does not hold")
    table.loc[table["convention"] == "ridge", "success"] = table["method"] == "ours"
    assert claims(published, table)[2].standing == "in part"
    (alone,) = claims(published, table[table["method"] == "ours"])
    assert alone.text.startswith("Ours")
    assert claims(published, table[:0]) == []


def test_a_part_of_the_pairs_says_that_it_is_a_part(real, monkeypatch):
    read = pd.read_csv

    def fewer(path, **options):
        table = read(path, **options)
        return table.assign(pairs=20, seeds=1) if "rir_mean" in table else table

    whole, other = ([read_result(entry(name, name), real)] for name in ("mnist", "digits"))
    part = "the 10 000 test images, where the paper takes the 60 000 training images"
    assert scoreboard(whole)[0].differs == part
    monkeypatch.setattr(pd, "read_csv", fewer)
    part += "; 20 of the 90 ordered pairs of digits; 1 seed instead of 3"
    assert scoreboard(whole)[0].differs == part
    assert tally(scoreboard(other)) == ""  # no number on the paper's data


def bytes_of(folder):
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_every_link_resolves_and_ids_are_unique(built):
    assert set(bytes_of(built)) == {
        "index.html",
        *(f"site/{name}" for name in ("site.css", "site.js", "templates.js", "plotly.min.js")),
        *(f"site/{name}.html" for name in ("glossary", "lesson", "old")),
        *(f"site/runs/{name}/report.ipynb" for name in ("lesson", "old")),
        *(f"site/runs/{name}/provenance.json" for name in ("lesson", "old")),
        "site/runs/lesson/results.csv",
    }  # fmt: skip
    pages = {page: parsed(page) for page in (built / "index.html", *(built / "site").glob("*.html"))}
    ids = {page: [element["id"] for element in soup.find_all(id=True)] for page, soup in pages.items()}
    for page, soup in pages.items():
        assert len(ids[page]) == len(set(ids[page])), page.name
        for element in soup.find_all(["a", "link", "script", "img"]):
            address = element.get("href") or element.get("src") or ""
            if address and not address.startswith("data:"):
                assert not re.match(r"[a-z]+:|/", address), f"{page.name}: {address} is not relative"
                path, _, anchor = address.partition("#")
                place = (page.parent / path).resolve() if path else page
                assert place.exists(), f"{page.name}: {address}"
                assert not anchor or anchor in ids[place], f"{page.name}: {address}"


def test_a_page_has_anchors_data_and_no_inline_script(built):
    page = parsed(built / "site/lesson.html")
    headings = [h["id"] for h in page.select("main h2[id], main h3[id]")]
    assert headings == ["the-run", "run-2", "run", "files", "again"]
    assert [a["href"][1:] for a in page.select(".contents a")] == headings
    assert page.select_one(".command button")["data-text"] == "condnum run notebook lesson"
    assert [s["src"] for s in page.select("script[src]")] == ["plotly.min.js", "templates.js", "site.js"]
    assert "template" not in page.select_one("script[data-for=figure-0]").string
    assert page.select("script:not([src]):not([type='application/json'])") == []


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


def test_a_figure_cannot_end_its_script_and_two_panels_are_wider():
    name = "</script><script>alert(1)</script>"
    layout = {"title": {"text": '<b>"a<br><sup>b'}, "xaxis": {}, "height": 321}
    figure = {"data": [{"y": [1.0, None], "name": name}], "layout": layout}
    assert drawn(figure)["data"] == [{"y": [1.0, None], "name": name}]
    page = figure_html(figure, "f")
    assert page.count("</script>") == 1
    assert 'aria-label="&quot;a"' in page
    assert "min-height:321px;min-width:340px" in page
    assert "min-width:900px" in figure_html({"layout": {"xaxis": {}, "xaxis2": {}}}, "f")


def test_other_files_of_the_target_stay_and_stale_pages_go(root, tmp_path):
    target = tmp_path / "reports"
    for name in ("digits/summary.csv", "README.md", "site/stale.html", ".site-killed/site/index.html"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("kept")
    build_site(root, target)
    assert (target / "digits" / "summary.csv").read_text() == "kept"
    assert not (target / "site" / "stale.html").exists()
    left = {path.name for path in target.iterdir()}
    assert left == {".lock", "README.md", "digits", "index.html", "site"}


@pytest.mark.parametrize("name", ["provenance.json", "results.csv"])
def test_a_damaged_file_is_named(root, tmp_path, name):
    save_record(root, entry("lesson", "digits"))
    (root / "lesson" / name).write_bytes(b"\x00\xff")
    with pytest.raises(DataFormatError, match=f"{name} is damaged .* run the experiment again"):
        build_site(root, tmp_path / "reports")


def test_a_build_that_fails_leaves_the_old_site(root, built, monkeypatch):
    before, replace = bytes_of(built), os.replace

    def full(source, target):
        if Path(target) == built / "index.html":  # half-way: the new folder is in its place already
            raise OSError(28, "No space left on device")
        replace(source, target)

    make_run(root / "lesson", data="new")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OutputError, match="No space left on device"):
            build_site(root, built)
    assert bytes_of(built) == before
    with monkeypatch.context() as patch:
        patch.setattr(site, "front_html", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_site(root, built)
    assert bytes_of(built) == before
    with folder_lock(built), pytest.raises(OutputError, match="another run is writing"):
        build_site(root, built)


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("lesson", "../outside", "must lie inside"),
        ("lesson", "/tmp", "must lie inside"),
        ("../../x", "x", "small letters, digits"),
        ("", "x", "small letters, digits"),
    ],
)
def test_a_record_that_leads_elsewhere_is_refused(tmp_path, name, folder, message):
    make_run(tmp_path / "outside")
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(DataNotFoundError, match=r"holds no reproduction\.json"):
        build_site(root, tmp_path / "reports")
    save_record(root, entry(name, "notebook lesson", folder=folder))
    with pytest.raises(InvalidInputError, match=message):
        build_site(root, tmp_path / "reports")
    assert not (tmp_path / "reports").exists()
