"""The page of `condnum audit` as a reader sees it, on a desk and on a phone."""

import numpy as np
import pandas as pd
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Pairs of tick labels of one axis that touch each other, in any figure.
OVERPRINTED = """() => Array.from(document.querySelectorAll(".js-plotly-plot")).flatMap(
    plot => ['xtick', 'ytick', 'x2tick', 'y2tick', 'cbaxis'].flatMap(axis => {
        const boxes = Array.from(plot.querySelectorAll(`.${axis} text`), text => [text.textContent,
            text.getBoundingClientRect()]).filter(([_, box]) => box.width);
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([_, q]) =>
            p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1
        ).map(([b]) => `${axis}: ${a} and ${b}`));
    }))"""


#: Of each table, the card's first: is it wider than its box?
WIDE = """() => Array.from(document.querySelectorAll("main table"),
    table => table.getBoundingClientRect().width > table.parentElement.getBoundingClientRect().width + 1)"""


@pytest.fixture(scope="module")
def page_file(condnum, tmp_path_factory):
    """An audit of two tables with a singular task, the answer among the features, and an extractor."""
    folder, rng = tmp_path_factory.mktemp("audit"), np.random.default_rng(0)
    X = rng.normal(size=(240, 12)) * np.geomspace(1, 1e-3, 12)
    X[:, 11] = 0
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(12)])
    frame["label"] = (X[:, 0] > 0).astype(int)
    frame[:120].to_csv(folder / "P.csv", index=False)
    frame[120:].to_csv(folder / "H.csv", index=False)
    np.save(folder / "theta.npy", np.diag([*np.geomspace(1, 1e3, 12), 1.0]))
    np.save(folder / "y.npy", frame["label"][120:].to_numpy())
    done = condnum(
        "audit", "--pretrain", "P.csv", "--harmful", "H.csv", "--theta", "theta.npy", "--targets", "y.npy",
        "--bootstrap", "20", "--out", "out", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "look like the answer (label: a function of the targets)" in " ".join(done.stderr.split())
    assert "RuntimeWarning" not in (folder / "out" / "report.ipynb").read_text()
    return folder / "out" / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_verdict_comes_first_and_nothing_is_overprinted(page_file, window, width):
    problems = []
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.set_viewport_size({"width": width, "height": 900})
    window.goto(page_file.as_uri())
    window.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 12")
    top = {
        name: window.locator(place).first.bounding_box()["y"]
        for name, place in (("card", "article.score"), ("chart", ".figure"), ("words", "#in-words"))
    }
    assert top["card"] < top["chart"] < top["words"]
    assert top["card"] < 300
    card = window.locator("article.score").inner_text()
    for part in ("immunized", "Weakest attacker", "of at most", "What to do next", "--drop label"):
        assert part in card
    links = window.locator("nav.contents a").all_text_contents()
    assert links[0] == "Verdict"
    assert {"How to read these numbers", "Columns", "Attackers"} <= set(links)
    text = window.locator("main").inner_text()
    for raw in ("D_P", "D_H", "K_P", "Without paths", "RuntimeWarning", " *\n"):
        assert raw not in text
    assert window.evaluate(OVERPRINTED) == []
    chip = window.locator("article.score .chip").first
    assert chip.evaluate("chip => getComputedStyle(chip).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert window.evaluate(WIDE).count(True) == 0 if width == 1280 else not window.evaluate(WIDE)[0]
    assert window.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert problems == []
