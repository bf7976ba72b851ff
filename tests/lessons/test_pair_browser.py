"""The browser of pairs: clicks and dropdowns set its traits, traits draw, errors are seen."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

import traitlets

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.figures import PairDetail
from condnum.figures.pairs import PAIR_COLUMNS
from condnum.lessons.pair_browser import PairBrowser, digit_pair_detail
from condnum.studies.digit_pairs import DigitPairs

PLOTLY = "application/vnd.plotly.v1+json"


@pytest.fixture
def browser():
    """A browser whose `asked` are the pairs that it wanted details of; those of digit 7 fail."""
    rows = [
        [method, 0, p, h, "ridge", "unit", 2 * scale, 2.0, scale, scale > 1]
        for method, scale in (("ours", 5.0), ("r_ill_only", 0.01))
        for p, h in ((3, 8), (8, 3), (0, 1))
    ]
    asked = []

    def detail(pretrain, harmful):
        asked.append((pretrain, harmful))
        if pretrain == 7:
            raise ValueError("no images of <7>")
        frames = [
            pd.DataFrame({"quantity": [quantity] * 2, "x": [1.0, 2.0], "value": [2.0, 1.0]}).assign(task=task)
            for quantity in ("norm_ratio", "spectrum")
            for task in ("pretrain", "harmful")
        ]
        curves = pd.concat(frames).assign(method="ours", seed=0)
        return PairDetail(pretrain, harmful, curves, np.eye(8), np.eye(8), "toy")

    browser = PairBrowser(pd.DataFrame(rows, columns=PAIR_COLUMNS), detail, subtitle="toy")
    browser.asked = asked
    return browser


def click(browser, pretrain, harmful):
    """What the page does when its reader clicks on a cell."""
    browser.heatmap._on_message(None, {"kind": "click", "trace": 0, "data": [pretrain, harmful]}, [])


def drawn_digits(browser):
    """Titles of the panels of the first detail figure."""
    layout = browser.details.outputs[0]["data"][PLOTLY]["layout"]
    return [annotation["text"].rpartition(" ")[2] for annotation in layout["annotations"]]


def test_clicks_and_dropdowns_choose_a_pair_and_draw_it_once(browser):
    assert (browser.method, browser.pretrain, browser.harmful) == ("ours", 3, 8)
    assert drawn_digits(browser) == ["3", "8"]
    assert len(browser.details.outputs) == 3
    said = "Ours (Algorithm 1), digit 3 against digit 8: RIR 5; Definition 3.1 succeeds in 1 of 1"
    assert said in browser.status.value
    click(browser, 8, 3)
    click(browser, 4, 4)  # the diagonal changes nothing
    assert browser.asked == [(3, 8), (8, 3)]  # not (8, 8) on the way
    assert drawn_digits(browser) == ["8", "3"]
    method, pretrain, harmful = browser.choices
    assert (method.value, pretrain.value, harmful.value) == ("ours", 8, 3)
    (frame,) = browser.heatmap.figure.layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (2.5, 3.5, 7.5, 8.5)
    assert method.options[1] == ("Rᵢₗₗ only", "r_ill_only")
    pretrain.value, harmful.value = 0, 1
    assert browser.asked[-1] == (browser.pretrain, browser.harmful) == (0, 1)
    browser.harmful = 0
    assert "two different digits" in browser.status.value
    assert browser.details.outputs == ()


def test_an_error_of_detail_is_seen_and_passes(browser):
    click(browser, 5, 6)
    assert "no result" in browser.status.value
    click(browser, 7, 1)
    assert 'role="alert"' in browser.status.value
    assert "digit 7, harmful digit 1: ValueError: no images of &lt;7&gt;" in browser.status.value
    assert browser.details.outputs == ()
    click(browser, 0, 1)
    assert "alert" not in browser.status.value
    assert drawn_digits(browser) == ["0", "1"]
    with pytest.raises(UnknownNameError, match="did you mean 'ours'"):
        browser.method = "our"
    with pytest.raises(traitlets.TraitError):
        browser.pretrain = 10


def test_another_method_redraws_the_heatmap_in_the_same_colors(browser):
    before = browser.heatmap.figure.layout.coloraxis.cmax
    browser.choices[0].value = "r_ill_only"
    (colored,) = browser.heatmap.figure.data
    assert np.asarray(colored.z, dtype=float)[3, 8] == pytest.approx(np.log(0.01))
    assert sum("✕" in text for row in colored.text for text in row) == 3
    assert "R<sub>ill</sub> only" in browser.heatmap.figure.layout.annotations[0].text
    assert browser.heatmap.figure.layout.coloraxis.cmax == before == pytest.approx(-np.log(0.01))
    assert len(browser.heatmap.figure.layout.shapes) == 1
    assert browser.asked == [(3, 8)]  # details hold every method
    browser.method = "ours"
    assert not any("✕" in text for row in browser.heatmap.figure.data[0].text for text in row)


def test_details_hold_the_methods_of_a_run_and_both_controls(tmp_path):
    study = DigitPairs(methods=("imma",), seeds=1, epochs=3, pairs=((4, 7),))
    run = study.run(out=tmp_path, jobs=1)
    detail = digit_pair_detail(run, 4, 7, probe_steps=20)
    assert set(detail.curves["method"]) == {"imma", "identity", "initial"}
    chosen = run.data.images[run.data.labels == 4]
    np.testing.assert_allclose(detail.mean_pretrain, chosen.mean(axis=0))
    ratio = detail.curves[detail.curves["quantity"] == "norm_ratio"]
    assert ratio["x"].max() == 20
    for pair, text in (((4, 4), "two different digits"), ((1, 2), "no pair")):
        with pytest.raises(InvalidInputError, match=text):
            digit_pair_detail(run, *pair)
