"""The site: links that resolve, the runs of this machine and the committed ones, parts that are left out."""

import html
import re
import shutil

import pytest
from page.test_reproduce import executed

from condnum.errors import InvalidInputError
from condnum.page import site as module
from condnum.page.run import REPORT
from condnum.page.site import build_site


@pytest.mark.slow
def test_the_site_is_whole_and_follows_its_runs(site_cache, tmp_path, capfd):
    """Links resolve, nothing is warned of, changes appear, and other files of the folder stay."""
    target, root = tmp_path / "reports", tmp_path / "runs"
    executed(root / "turned")
    for name in ("digits/summary.csv", "index.html", "site/stale.html"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("kept")

    def again():
        return build_site(root, target, cache=site_cache, lessons=())

    assert again() == target / "site/index.html"
    warned = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert not [line for line in warned if "learn/" not in line]  # no lesson was made
    assert {path.name for path in target.iterdir()} == {"digits", "index.html", "site"}
    pages = {path: path.read_text("utf-8") for path in (target / "site").rglob("*.html")}
    names = {str(path.relative_to(target / "site")) for path in pages}
    assert names >= {"index.html", "results/index.html", "results/turned.html", "api/condnum.html"}
    assert names >= {f"results/earlier-{name}.html" for name in ("mnist", "deep", "erasure")}
    assert (
        "Deep nets: earlier results" in pages[target / "site/results/earlier-deep.html"]
    )  # in a file beside
    assert "stale.html" not in names
    ids = {page: {*re.findall(r'<[^>]* id="([^"]+)"', text)} for page, text in pages.items()}
    for page, text in pages.items():
        for element, found in re.findall(r'<(a|link|script|img)\b[^>]*? (?:href|src)="([^"]+)"', text):
            if re.match({"a": r"https?:", "img": "data:image/png;"}.get(element, "$^"), found):
                continue
            address = html.unescape(found)
            assert not re.match(r"[a-z]+:|/", address), f"{page.name}: {address} is not relative"
            path, _, anchor = address.partition("#")
            place = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert place.exists(), f"{page.name}: {address}"
            assert not anchor or place not in ids or anchor in ids[place], f"{page.name}: {address}"
    assert "Title of turned" in pages[target / "site/results/index.html"]
    assert "Title of turned" in pages[target / "site/results/turned.html"]

    shutil.rmtree(root / "turned")
    again()
    assert "Title of turned" not in (target / "site/results/index.html").read_text("utf-8")


def test_a_lesson_that_fails_is_left_out_and_one_that_is_made_is_not_made_again(tmp_path, monkeypatch):
    made, said = [], []

    def run(book, given, folder, quiet):
        made.append(book)
        if book == "broken":
            raise InvalidInputError("it is.")
        folder.mkdir(parents=True)
        (folder / REPORT).write_text("{}")

    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    monkeypatch.setattr(module, "lesson_path", lambda name, cache: cache / "lessons" / name / REPORT)
    monkeypatch.setattr(module.ParameterNotebook, "find", lambda name: name)
    monkeypatch.setattr(module, "run_notebook", run)
    for _ in range(2):
        lessons = module._executed(tmp_path, ["good", "broken"], said.append)
    assert list(lessons) == ["good"]
    assert made == ["broken", "good", "broken"]
    assert "broken is left out: it is." in said
