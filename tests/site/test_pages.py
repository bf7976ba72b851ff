"""What the pages say: the run behind each number, failures, older results, escaping, links that resolve."""

import re

import pandas as pd
import pytest


def test_every_link_of_every_page_resolves(built):
    from bs4 import BeautifulSoup

    pages = [built / "index.html", *(built / "site").glob("*.html")]
    ids = {
        p: {e["id"] for e in BeautifulSoup(p.read_text("utf-8"), "html.parser").find_all(id=True)}
        for p in pages
    }
    broken = []
    for page in pages:
        soup = BeautifulSoup(page.read_text("utf-8"), "html.parser")
        for element in soup.find_all(["a", "link", "script", "img"]):
            address = element.get("href") or element.get("src") or ""
            if not address or address.startswith("data:"):
                continue
            assert not re.match(r"[a-z]+:|/", address), f"{page.name}: {address} is not relative"
            path, _, anchor = address.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.exists() or (anchor and anchor not in ids.get(place, set())):
                broken.append(f"{page.name}: {address}")
    assert broken == []


def test_ids_are_unique(soup_of):
    for name in ("index.html", "site/lesson.html", "site/glossary.html"):
        ids = [element["id"] for element in soup_of(name).find_all(id=True)]
        assert len(ids) == len(set(ids)), name


def test_a_failure_is_told_with_its_reason_and_an_older_result_is_called_older(soup_of):
    page = soup_of("index.html")
    old, gone = page.find(id="failure-old"), page.find(id="failure-gone")
    assert "Title of old failed: it broke at <b>x</b>; mend it." in " ".join(old.get_text().split())
    assert old.find("a")["href"] == "site/old.html"
    assert "no space left" in gone.get_text()
    assert gone.find("a") is None
    assert "older result" in page.find(id="card-old").get_text()
    assert "An older result." in soup_of("site/old.html").find(class_="notice").get_text()
    assert soup_of("site/lesson.html").find(class_="notice") is None


def test_what_still_runs_and_what_was_not_asked_for_is_a_line_each(soup_of):
    page = soup_of("index.html")
    assert "Still to come: Title of waiting." in " ".join(page.find(id="waiting").get_text().split())
    line = " ".join(page.find(id="unrun-unasked").get_text().split())
    assert line == "Not run here: Title of unasked, which was not asked for. condnum run attackers"
    assert {card["id"] for card in page.select(".card")} == {"card-lesson", "card-old", "card-gone"}


def test_the_front_opens_with_the_papers_data_then_claims_and_ends_with_stand_ins(
    entry, record, write_run, tmp_path
):
    import shutil
    from pathlib import Path

    from bs4 import BeautifulSoup

    from condnum.report.site import build_site

    reports = Path(__file__).resolve().parents[2] / "reports"
    for name, folder in (("deep", "deep/mnist"), ("house-prices", "house_prices")):
        for table in (reports / folder).glob("*.csv"):
            shutil.copy(table, write_run(tmp_path / name))
    record(*(entry(name, f"condnum run {name}") for name in ("deep", "house-prices"))).save(tmp_path)
    page = BeautifulSoup(build_site(tmp_path, tmp_path / "reports").read_text("utf-8"), "html.parser")
    order = [h["id"] for h in page.select("main h2")]
    assert order[:2] == ["scoreboard", "claims"]
    assert order.index("stand-ins") > order.index("experiments") > order.index("corrections")
    first, *others = page.select(".score")
    assert first["id"] == "table-1"
    row = [" ".join(cell.get_text(" ").split()) for cell in first.select_one(".board tbody tr").select("td")]
    assert row[1:] == [
        "published 356.2 ± 5.491", "higher ×25.7 beyond ± 71.24",
        "12,000 full-batch steps; λ balanced at the first step, fixed in the paper",
    ]  # fmt: skip
    assert all(other.find_parent("section").h2["id"] == "stand-ins" for other in others)
    assert not any(other.select(".chip") for other in others)  # nothing to compare


def test_the_run_behind_a_page(soup_of):
    page = soup_of("site/lesson.html")
    facts = {row.th.get_text(): row.td.get_text() for row in page.select("section.run .facts tr")}
    assert facts["Seeds"] == "0, 1"
    assert facts["Data, SHA-256"] == f"diabetes: {'ab' * 32}"
    assert facts["Duration"] == "1 min 23 s"
    assert facts["Code"] == "revision ffffffffffff, with uncommitted changes"
    assert facts["Device"] == "a processor, cpu"
    assert facts["Parameters"] == "seeds = 2, note = <i>"
    assert [a["href"] for a in page.select(".files a")] == [
        f"runs/lesson/{name}" for name in ("report.ipynb", "provenance.json", "results.csv")
    ]
    assert page.find(id="run").name == "h2"
    assert [a["href"] for a in page.select(".source a")] == ["#run"]  # of its one table
    assert page.select_one(".command button")["data-text"] == "condnum run notebook lesson"


def test_contents_name_the_headings_in_order(soup_of):
    page = soup_of("site/lesson.html")
    entries = [a["href"][1:] for a in page.select(".contents a")]
    headings = [h["id"] for h in page.select("main h2[id], main h3[id]")]
    assert entries == headings
    assert headings == ["the-run", "run", "files", "again"]


def test_a_page_holds_figure_data_but_no_plotly(soup_of):
    page = soup_of("site/lesson.html")
    assert [s["src"] for s in page.select("script[src]")] == ["plotly.min.js", "templates.js", "site.js"]
    assert page.select_one("script[data-for=figure-0]") is not None
    assert "template" not in page.select_one("script[data-for=figure-0]").string
    assert page.select("script:not([src]):not([type='application/json'])") == []


def test_corrections_are_those_that_the_run_computed(entry, record, write_run, tmp_path):
    from bs4 import BeautifulSoup

    from condnum.lessons.corrections import aligned_remark, correction_table
    from condnum.report.site import build_site

    table = correction_table([aligned_remark()]).assign(computed="κ(H_P): 123 → 4")
    write_run(tmp_path / "corrections", corrections=table)
    record(entry("corrections", "condnum run notebook corrections", kind="lesson")).save(tmp_path)
    page = BeautifulSoup(build_site(tmp_path, tmp_path / "reports").read_text("utf-8"), "html.parser")
    (item,) = page.select(".corrections li")
    assert item.find("h3").get_text() == "Remark after Proposition 3.2"
    assert item.find("a").decode_contents() == "κ(H<sub>P</sub>): 123 → 4"
    assert item.find("a")["href"] == "site/corrections.html#run"
    assert item.find(class_="chip").get_text() == "refuted"


@pytest.mark.parametrize("rows", [10, 60_000], ids=["small", "large"])
def test_large_tables_are_published_compressed(entry, record, write_run, tmp_path, rows):
    from condnum.report.site import build_site

    table = pd.DataFrame({"x": range(rows)})
    write_run(tmp_path / "lesson", results=table)
    record(entry("lesson", "condnum run notebook lesson")).save(tmp_path)
    run = build_site(tmp_path, tmp_path / "reports").parent / "site" / "runs" / "lesson"
    name = "results.csv" if rows == 10 else "results.csv.gz"
    pd.testing.assert_frame_equal(pd.read_csv(run / name), table)
    assert not (run / ("results.csv.gz" if rows == 10 else "results.csv")).exists()
