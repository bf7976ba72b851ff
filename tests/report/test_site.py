"""The site: scoreboard and verdicts, what pages say, links that resolve, a build that is whole or not."""

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
from condnum.studies.measure import TABLE_1, TABLE_2, Published

REPORTS = Path(__file__).resolve().parents[2] / "reports"
PLOTLY = "application/vnd.plotly.v1+json"


def make_entry(name, command, status="finished", *, folder="", error=""):
    title, place = f"Title of {name}", name if folder == "" and status != "not run" else folder
    return Experiment(
        name, title, "One sentence.", command, status=status, folder=place or None, error=error, seconds=12.34
    )


def save_record(folder, *entries):
    source, started = {"revision": "0123456789abcdef" * 2, "dirty": False}, "2030-01-02T03:04:05+00:00"
    versions, device = {"python": "3.11", "condnum": "0.1.0"}, {"name": "a processor"}
    ReproductionRecord("quick", started, 100.0, source, versions, device, entries).save(folder)


def make_run(folder, data="diabetes", **tables):
    """Write a run folder: notebook, provenance, tables."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = go.Figure(go.Scatter(x=np.arange(1.0, 4.0), y=np.array([1.0, 0.5, 1 / 3]), mode="lines"))
    figure.update_layout(title_text="A figure of κ", template="plotly_white")
    outputs = {PLOTLY: json.loads(figure.to_json()), "text/html": "<table><tr><td>1</td></tr></table>"}
    words = "# The title\n\nSome words on $\\kappa$.\n\n## The run\n\n## Run\n\nIs taken."
    cells = [
        new_code_cell("show()", outputs=[new_output("display_data", data={kind: value})])
        for kind, value in outputs.items()
    ]
    nbformat.write(new_notebook(cells=[new_markdown_cell(words), *cells]), folder / "report.ipynb")
    provenance = {
        "versions": {"python": "3.11", "torch": "2.15"},
        "platform": {"system": "Linux"},
        "device": {"device": "cpu", "name": "a processor", "threads": 2},
        "parameters": {"seeds": 2, "methods": "", "note": "<i>"},
        "seeds": [0, 1],
        "data": {data: "ab" * 32},
        "source": {"revision": "f" * 40, "dirty": True},
        "started_utc": "2030-01-02T03:04:05+00:00",
        "duration_seconds": 83.0,
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def root(tmp_path):
    """A reproduction with a finished lesson, one failed experiment with an older result, one waiting."""
    base = tmp_path / "reproduction"
    make_run(base / "lesson", results=pd.DataFrame({"a": [1, 2]}))
    make_run(base / "old")
    save_record(
        base,
        make_entry("lesson", "condnum run notebook lesson"),
        make_entry("old", "condnum run limits", "failed", error="it broke at <b>x</b>; mend it."),
        make_entry("gone", "condnum run deep --harmful cars", "failed", folder=None, error="no space left"),
        make_entry("waiting", "condnum run mnist", "waiting", folder=None),
        make_entry("unasked", "condnum run attackers", "not run", error="was not asked for"),
    )
    return base


@pytest.fixture
def built(root, tmp_path):
    """The site of `root`."""
    return build_site(root, tmp_path / "reports").parent


@pytest.fixture
def site_of(tmp_path):
    """`site_of(lesson=("condnum run …", {"results": table}))`: the parsed front page of these runs."""

    def make(**runs):
        for name, (_, tables) in runs.items():
            make_run(tmp_path / name, **tables)
        save_record(tmp_path, *(make_entry(name, command) for name, (command, _) in runs.items()))
        return parsed(build_site(tmp_path, tmp_path / "reports"))

    return make


def parsed(page):
    return BeautifulSoup(page.read_text("utf-8"), "html.parser")


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


@pytest.fixture
def board(tmp_path):
    """`board(("house-prices", "house_prices"))`: the scoreboard of committed results of real runs."""

    def make(*runs, data="diabetes"):
        results = []
        for study, folder in runs:
            target = make_run(tmp_path / study, data)
            for path in (REPORTS / folder).glob("*.csv*"):
                shutil.copy(path, target)
            results.append(read_result(make_entry(study, f"condnum run {study}"), tmp_path))
        return {section.key: section for section in scoreboard(results)}

    return make


def scores(section, method):
    return next(line.scores for line in section.lines if line.method.startswith(method))


def test_house_prices_against_table_1(board):
    section = board(("house-prices", "house_prices"))["table-1"]
    rir = scores(section, "Ours")["rir"]
    assert (rir.published, rir.obtained) == ("356.2\u00a0±\u00a05.491", "9,172\u00a0±\u00a01,100")
    assert rir.verdict.text == f"higher ×{9172 / TABLE_1['ours'].rir:.3g}"
    r_ill = scores(section, "R")["rir"].verdict
    assert (r_ill.kind, r_ill.reason) == ("agrees", "within ± 0.249")
    assert section.claims[0].standing == "holds"
    assert (section.comparable, section.differs) == (True, "")  # the same table, five seeds
    budgets = [line.budget.partition(";")[0] for line in section.lines]  # ours first
    assert budgets == [f"{steps} full-batch steps" for steps in ("12,000", "100", "1,000", "1,000")]


def test_a_part_of_the_pairs_is_compared_and_says_that_it_is_a_part(board, monkeypatch):
    real = pd.read_csv

    def fewer(path, **options):
        table = real(path, **options)
        return table.assign(pairs=20, seeds=1) if "rir_mean" in table else table

    assert board(("mnist", "mnist"))["table-2"].differs == ""
    monkeypatch.setattr(pd, "read_csv", fewer)
    section = board(("mnist", "mnist"), data="mnist, 10,000 test images, condnum's box")["table-2"]
    assert section.differs == (
        "the 10 000 test images, where the paper takes the 60 000 training images; "
        "20 of the 90 ordered pairs of digits; 1 seed instead of 3"
    )
    assert scores(section, "Ours")["rir"].verdict.text == f"higher ×{99.4429 / TABLE_2['ours'].rir:.3g}"


def test_other_data_stand_last_nets_beside_the_nearer_architecture(board):
    runs = {"deep": "deep/mnist", "house-prices": "house_prices", "mnist": "mnist", "digits": "digits"}
    sections = board(*runs.items())
    assert [section.title for section in sections.values()] == [
        "Table 1, house prices, linear extractor",
        "Table 2, MNIST, linear extractor",
        "Table 2, MNIST, linear extractor",
        "Table 3, resnet18 beside the published ResNet18, ImageNet–Cars",
        "Table 3, vit_tiny_patch16_224 beside the published ViT, ImageNet–Cars",
    ]
    embedded, net = sections["table-2-digits"], sections["table-3-deep-1"]
    for other in (embedded, net):
        assert not other.comparable
        assert other.differs.startswith("other data than the paper's")
        assert {score.verdict for line in other.lines for score in line.scores.values()} == {None}
    assert len(embedded.claims) == 5
    ours = scores(net, "Ours")
    assert ours["rir"].published == "3.467\u00a0±\u00a00.358"
    assert ours["accuracy"].obtained.startswith("98.")
    assert net.lines[0].budget == "300 steps"
    text = tally(list(sections.values()))  # of every number on the paper's data
    counted = [int(word) for word in text.split(". ")[0].replace(",", "").split() if word.isdigit()]
    assert counted[0] == sum(counted[1:]) == 12 + 12
    assert "Of 10 claims" in text
    assert tally(scoreboard([])) == ""


def bytes_of(folder):
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def words(element) -> str:
    return " ".join(element.get_text(" ").split())


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


def test_what_failed_is_older_waits_or_was_not_asked_for_is_told(built):
    page = parsed(built / "index.html")
    old, gone = page.find(id="failure-old"), page.find(id="failure-gone")
    assert "Title of old failed: it broke at <b>x</b>; mend it." in words(old)
    assert old.find("a")["href"] == "site/old.html"
    assert "no space left" in words(gone)
    assert gone.find("a") is None
    assert "older result" in words(page.find(id="card-old"))
    assert "An older result." in words(parsed(built / "site/old.html").find(class_="notice"))
    assert parsed(built / "site/lesson.html").find(class_="notice") is None
    assert "Still to come: Title of waiting." in words(page.find(id="waiting"))
    line = words(page.find(id="unrun-unasked"))
    assert line == "Not run here: Title of unasked, which was not asked for. condnum run attackers"
    assert {card["id"] for card in page.select(".card")} == {"card-lesson", "card-old", "card-gone"}


def test_the_front_opens_with_the_papers_data_then_claims_and_ends_with_stand_ins(site_of):
    folders = {"deep": "deep/mnist", "house-prices": "house_prices"}
    runs = {
        name: (f"condnum run {name}", {p.stem: pd.read_csv(p) for p in (REPORTS / folder).glob("*.csv")})
        for name, folder in folders.items()
    }
    page = site_of(**runs)
    order = [h["id"] for h in page.select("main h2")]
    assert order[:2] == ["scoreboard", "claims"]
    assert order.index("stand-ins") > order.index("experiments") > order.index("corrections")
    first, *others = page.select(".score")
    assert first.h3["id"] == "table-1"
    assert [words(cell) for cell in first.select_one(".board tbody tr").select("td")][1:] == [
        "published 356.2 ± 5.491", "higher ×25.7 beyond ± 71.24",
        "12,000 full-batch steps; λ balanced at the first step, fixed in the paper",
    ]  # fmt: skip
    assert len(others) == 2
    assert all(other.find_parent("section").h2["id"] == "stand-ins" for other in others)
    assert not any(other.select(".chip") for other in others)  # nothing to compare
    contents = [(a["href"], words(a)) for a in page.select(".contents a")]
    assert contents[:3] == [
        ("#scoreboard", "Obtained against published"),
        ("#table-1", "Table 1: diabetes"),
        ("#claims", "Claims about the methods"),
    ]


def test_the_run_behind_a_page(built):
    page = parsed(built / "site/lesson.html")
    facts = {row.th.get_text(): row.td.get_text() for row in page.select("section.run .facts tr")}
    assert facts == {
        "Started": "2030-01-02 03:04:05 UTC", "Duration": "1 min 23 s", "Seeds": "0, 1",
        "Data, SHA-256": f"diabetes: {'ab' * 32}", "Code": "revision ffffffffffff, with uncommitted changes",
        "Device": "a processor, cpu", "Threads": "2", "System": "Linux",
        "Versions": "python 3.11, torch 2.15", "Parameters": "seeds = 2, note = <i>",
    }  # fmt: skip
    files = [a["href"] for a in page.select(".files a")]
    assert files == [f"runs/lesson/{name}" for name in ("report.ipynb", "provenance.json", "results.csv")]
    assert [a["href"] for a in page.select(".source a")] == ["#run"]  # of its one table
    assert page.select_one(".command button")["data-text"] == "condnum run notebook lesson"
    headings = [h["id"] for h in page.select("main h2[id], main h3[id]")]
    assert headings == ["the-run", "run-2", "run", "files", "again"]
    assert [a["href"][1:] for a in page.select(".contents a")] == headings
    assert [s["src"] for s in page.select("script[src]")] == ["plotly.min.js", "templates.js", "site.js"]
    assert "template" not in page.select_one("script[data-for=figure-0]").string
    assert page.select("script:not([src]):not([type='application/json'])") == []


def test_figures_of_the_front_say_what_their_runs_found(site_of):
    def golden(name):
        return {p.stem: pd.read_csv(p) for p in (REPORTS.parent / "tests/golden" / name).glob("*.csv")}

    keys = itertools.product(("ours", "identity", "imma"), (0, 1), ("pretrain", "harmful"), (0.0, 5.0))
    curves = pd.DataFrame(keys, columns=["method", "seed", "task", "x"])
    curves = curves.assign(quantity="norm_ratio", value=2.0 ** -curves["x"])
    page = site_of(
        houses=("condnum run house-prices", golden("house-prices") | {"curves": curves}),
        digits=("condnum run digits", golden("digits")),
        attackers=("condnum run attackers", golden("attackers")),
    )
    figures = {figure.h3["id"]: words(figure.p) for figure in page.select(".front-figure")}
    assert list(figures) == ["norm-ratio-houses", "heatmaps-digits", "attackers-attackers"]
    assert "after 5 steps of exact line search" in figures["norm-ratio-houses"]
    assert "Identity (θ = I): 0.031 on D P , 0.031 on D H" in figures["norm-ratio-houses"]
    assert "θ at unit scale: Ours (Algorithm 1) 0 of 2, Opt κ" in figures["heatmaps-digits"]
    assert "slows least: ours: " in figures["attackers-attackers"]
    assert {frame["id"] for frame in page.select(".plot-frame")} == {f"plot-{key}" for key in figures}


def test_corrections_and_tables_of_a_run(site_of, tmp_path):
    table = correction_table([aligned_remark()]).assign(computed="κ(H_P): 123 → 4")
    large = pd.DataFrame({"x": range(60_000)})
    page = site_of(corrections=("condnum run corrections", {"corrections": table, "results": large}))
    (item,) = page.select(".corrections li")
    assert item.find("h3").get_text() == "Remark after Proposition 3.2"
    assert item.find("a").decode_contents() == "κ(H<sub>P</sub>): 123 → 4"
    assert item.find("a")["href"] == "site/corrections.html#run"
    assert item.find(class_="chip").get_text() == "refuted"
    published = tmp_path / "reports/site/runs/corrections"
    assert {path.name for path in published.glob("*.csv*")} == {"corrections.csv", "results.csv.gz"}
    pd.testing.assert_frame_equal(pd.read_csv(published / "results.csv.gz"), large)


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
    save_record(root, make_entry("lesson", "condnum run digits"))
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
    save_record(root, make_entry(name, "condnum run notebook lesson", folder=folder))
    with pytest.raises(InvalidInputError, match=message):
        build_site(root, tmp_path / "reports")
    assert not (tmp_path / "reports").exists()
