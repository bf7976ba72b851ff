"""Lessons in JupyterLab and Voilà: keys, choices, files and answers show what the library computes."""

import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest
from browser.conftest import LESSONS, LivePage
from waiting import wait_until

from condnum.lessons.condition_number import zigzag
from condnum.lessons.own_data import own_data
from condnum.report.notebook import read_notebook

pytestmark = [pytest.mark.browser, pytest.mark.long]

#: A machine on which every widget is late: anywidget gives up on one that is not there after two seconds.
_SLOW = """{
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = time => (time === 2000 ? {addEventListener: (_, act) => act()} : timeout(time));
}"""
_GIVEN_UP = "[anywidget] Failed to initialize model."
_RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
_THEME = "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
#: Whether the panels of both figures of lesson 1 lie below each other, in figures as wide as their place.
_STACKED = """() => Array.from(document.querySelectorAll(".js-plotly-plot")).slice(0, 2).every(plot =>
    plot._fullLayout.yaxis.domain[0] > plot._fullLayout.yaxis2.domain[1]
    && Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)"""


def explorers(where):
    """How many explorers are shown; the vectors of lesson 2 that a reader grabs are no explorer."""
    cells = [
        cell for path in LESSONS[where] for cell in read_notebook(path).cells if cell.cell_type == "code"
    ]
    shown = r"(?m)^(?!Grab)[A-Z]\w+\.show\(static=static"  # a class, not what no control changes
    return sum(re.search(shown, cell.source) is not None for cell in cells)


def test_in_jupyterlab(lab, window):
    """Every figure, keys that are the slider's alone, both themes; no picture beside a live figure."""
    window.add_init_script(_SLOW)
    live = lab(explorers("lab"))
    live.turn_to("step size")
    live.press("condition number κ", "ArrowRight")
    live.assert_draws(zigzag(kappa=10**1.1).figure())
    box = live.explorer.get_by_role("textbox", name="condition number κ")
    box.fill("37")
    live.change(lambda: box.press("Enter"))
    live.assert_draws(zigzag(kappa=37.0).figure())
    live.page.evaluate(_THEME)
    assert live.page.locator(".jp-RenderedPlotly:visible, .condnum-kept:visible").count() == 0
    assert live.problems
    assert set(live.problems) == {_GIVEN_UP}
    live.page.evaluate(_RESTART)
    told = live.explorer.get_by_text("The kernel restarted: run this cell again.")
    told.wait_for()
    box.fill("40")
    box.press("Enter")
    live.page.wait_for_function("one => one.value === '37'", arg=box.element_handle())
    assert live.explorer.get_attribute("aria-busy") == "false"


def test_as_a_class_has_them(voila_address, watched, tmp_path):
    """Lessons as one page in Voilà, from the start page to the end of its kernel."""
    watched.goto(f"{voila_address}/?token=test", wait_until="commit")
    watched.get_by_role("heading", name="Start here").wait_for()
    live = LivePage(watched)
    watched.set_viewport_size({"width": 390, "height": 900})
    watched.goto(f"{voila_address}/voila/render/lessons.ipynb?token=test", wait_until="commit")
    live.wait_for_figures(explorers("voila"))
    errors = ".jp-RenderedText[data-mime-type='application/vnd.jupyter.error'], .voila-error, .traceback"
    assert watched.locator(errors).count() == 0
    assert not watched.get_by_role("heading", name="Settings").filter(visible=True).count()
    answer_exercises(watched)
    first_lesson(live)
    own_files(live, tmp_path)
    assert live.problems == []
    kernel = json.loads(watched.locator("#jupyter-config-data").text_content())["kernelId"]
    address = f"{voila_address}/api/kernels/{kernel}?token=test"
    assert answers(address)
    watched.goto("about:blank")  # opened by its address, without the list of notebooks: no _xsrf cookie
    wait_until(lambda: not answers(address))  # its kernel ends


def answers(address):
    """Tell whether something answers at an address other than 404."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError as error:
        return error.code != 404
    return True


def answer_exercises(page):
    """A wrong answer and the right one; an exercise that asks for code says where it is answered."""
    check = page.get_by_role("button", name="Check")
    check.nth(6).wait_for()  # the boxes come one by one
    assert check.count() == 7
    field = page.get_by_label("kappa =")
    for answer, said, act in (
        ("7", "That is the ratio of the axes themselves.", lambda: field.press("Enter")),
        ("49", "✔ right.", check.first.click),
    ):
        field.fill(answer)
        act()
        page.get_by_text(said).wait_for()
    assert page.get_by_text("This exercise asks for code").count() == 4


def first_lesson(live):
    """Keys, choices, typed numbers and exports of an explorer, on a phone and on a desk."""
    live.turn_to("step size")
    page, box = live.page, live.explorer.get_by_role("textbox", name="condition number κ")
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(_STACKED)
    box.fill("37")
    live.change(lambda: box.press("Enter"))
    assert "(kappa=37.0," in live.code()  # the slider has not rounded it
    live.change(lambda: live.button("Reset").click())
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function(f"() => !({_STACKED})()")
    rule = live.explorer.locator(".condnum-row", has_text="step size").locator("select")
    live.change(lambda: rule.select_option(label="constant, 1/σ₁"))
    live.assert_draws(zigzag(rule="constant").figure())
    with page.expect_download() as caught:
        live.button("Figure as PNG").click()
    with open(caught.value.path(), "rb") as stream:
        assert stream.read(4) == b"\x89PNG"


def own_files(live, folder):
    """Two files of a reader's own, and a third that holds words."""
    live.turn_to("Upload XP")
    page, explorer = live.page, live.explorer
    rng = np.random.default_rng(0)
    P, H = rng.normal(size=(60, 12)) * np.geomspace(1, 0.05, 12), rng.normal(size=(40, 12))
    np.save(folder / "mine_P.npy", P)
    np.save(folder / "mine_H.npy", H)
    (folder / "bad.csv").write_text("name" + ",a,b,c,d,e,f,g,h,i,j,k\nx" + ",1" * 11 + "\n")

    def upload(label, name):
        with page.expect_file_chooser() as chooser:
            explorer.get_by_role("button", name=label).click()
        chooser.value.set_files(folder / name)

    upload("Upload XP", "mine_P.npy")
    live.change(lambda: upload("Upload XH", "mine_H.npy"))
    paths = {"pretrain": str(folder / "mine_P.npy"), "harmful": str(folder / "mine_H.npy")}
    live.assert_draws(own_data(**paths).figure())
    upload("Upload XH", "bad.csv")
    message = page.get_by_role("alert").get_by_text("do not hold numbers: name")
    message.wait_for()
    field = explorer.locator(".condnum-row", has_text="XH from path")
    gap = message.bounding_box()["y"] - field.bounding_box()["y"]
    assert 0 < gap < 120  # beside the field at fault: right below its button
    assert not explorer.locator(".js-plotly-plot").is_visible()


def test_idle_kernels_end():
    from condnum.lessons.serve import IDLE, Lessons

    app = Lessons()
    app.initialize(["notebooks"])
    assert (app.ip, app.auto_token) == ("127.0.0.1", True)
    app.init_settings()
    assert app.kernel_manager.cull_idle_timeout == IDLE
    assert not app.kernel_manager.cull_connected
