"""Lessons and an experiment in a real browser: keys, choices and files show what the library computes."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from browser.walking import LESSONS, report, walk
from waiting import wait_until

from condnum.lessons.condition_number import zigzag
from condnum.lessons.own_data import own_data
from condnum.report.notebook import read_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Where a cell of the heatmap of the pair browser is, from the corner of its figure.
_CELL = """(plot, [pretrain, harmful]) => {
    const {xaxis, yaxis} = plot._fullLayout;
    return {x: xaxis._offset + xaxis.d2p(harmful), y: yaxis._offset + yaxis.d2p(pretrain)};
}"""
#: JupyterLab draws cells that are in sight, unless it is asked for all.
_WHOLE = """() => {
    const { content } = window.jupyterapp.shell.currentWidget;
    content.notebookConfig = { ...content.notebookConfig, windowingMode: 'none' };
}"""
#: As in our template of Voilà: anywidget gives up on a model after two seconds, however slow the machine.
_PATIENT = """{
    const shortest = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = () => shortest(600000);
}"""
#: How many pictures for readers without a kernel are shown beside the live figures.
_DOUBLE = """() => [...document.querySelectorAll('.jp-OutputArea')].filter(area =>
    area.querySelector('.condnum-explorer') && [...area.querySelectorAll('.jp-RenderedPlotly')]
        .some(picture => picture.checkVisibility())).length"""


def explorers():
    """How many explorers the lessons show; the vectors of lesson 2 that a reader grabs are no explorer."""
    cells = [cell for path in LESSONS for cell in read_notebook(path).cells if cell.cell_type == "code"]
    return sum(".show(static=static" in cell.source and "Grab" not in cell.source for cell in cells)


def test_in_jupyterlab(lab, window, tmp_path):
    """Lessons as one notebook: every figure, then what a reader does with the first and with own data."""
    window.add_init_script(_PATIENT)
    notebook = lab("lessons", figures=explorers())
    notebook.page.evaluate(_WHOLE)
    found = walk(notebook.page, "JupyterLab", views=[(1400, "light")])
    assert not found, report(found)
    first_lesson(notebook)
    own_files(notebook, tmp_path)
    notebook.darken()
    found = walk(notebook.page, "JupyterLab", views=[(1400, "dark")])
    assert not found, report(found)
    lab("lessons", again=True)  # without a kernel that knows the widgets
    notebook.page.locator(".jp-RenderedPlotly .main-svg:visible").first.wait_for()
    assert notebook.problems == []


def first_lesson(notebook):
    """Keys, choices and exports of the two explorers of lesson 1."""
    page = notebook.page
    notebook.turn_to("step size")
    notebook.assert_shows(zigzag().figure())
    notebook.press("condition number κ", "ArrowRight")
    notebook.assert_shows(zigzag(kappa=10**1.1).figure())
    notebook.change(lambda: notebook.dropdown("step size").select_option(label="constant, 1/σ₁"))
    notebook.assert_shows(zigzag(kappa=10**1.1, rule="constant").figure())
    notebook.change(lambda: notebook.button("Reset").click())
    notebook.press("step t", "End")
    wanted = "GradientDescentExplorer(kappa=10.0, angle=45.0, rule='exact', step=40, axes='equal')"
    assert notebook.code() == wanted
    assert max(notebook.explorer(i).bounding_box()["height"] for i in range(2)) <= 640
    with page.expect_download() as caught:
        notebook.button("Figure as PNG").click()
    with open(caught.value.path(), "rb") as stream:
        assert stream.read(4) == b"\x89PNG"
    assert page.locator(".jp-RenderedPlotly").count() >= 2
    assert page.evaluate(_DOUBLE) == 0


#: Whether the panels of both figures lie below each other, in figures as wide as their place.
_STACKED = """() => Array.from(document.querySelectorAll(".js-plotly-plot")).slice(0, 2).every(plot =>
    plot._fullLayout.yaxis.domain[0] > plot._fullLayout.yaxis2.domain[1]
    && Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)"""


def test_as_a_page_on_a_phone_and_on_a_desk(voila):
    """Lessons as one page: every figure, then what a reader does with the first, and answers."""
    notebook = voila("lessons", figures=explorers(), width=390)
    page = notebook.page
    found = walk(page, "Voilà")
    assert not found, report(found)
    exercises(page)
    notebook.turn_to("step size")
    explorer = notebook.explorer()
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(_STACKED)
    box = explorer.get_by_role("textbox", name="condition number κ")
    box.fill("37")
    notebook.change(lambda: box.press("Enter"))
    assert "(kappa=37.0," in notebook.code()  # the slider has not rounded it
    box.fill("1e6")
    box.press("Enter")
    page.get_by_text("must be a number from 1 to 1,000, got '1e6'").wait_for()
    assert "(kappa=37.0," in notebook.code()
    notebook.change(lambda: notebook.button("Reset").click())
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function(f"() => !({_STACKED})()")
    notebook.press("condition number κ", "ArrowRight")
    notebook.assert_shows(zigzag(kappa=10**1.1).figure())
    assert notebook.problems == []
    kernel = json.loads(page.locator("#jupyter-config-data").text_content())["kernelId"]
    server, query = page.url.split("/voila")[0], page.url.split("?")[1]
    address = f"{server}/api/kernels/{kernel}?{query}"
    assert answers(address)
    page.goto("about:blank")  # opened by its address, without the list of notebooks: no _xsrf cookie
    wait_until(lambda: not answers(address))  # its kernel ends


def answers(address):
    """Tell whether something answers at an address other than 404."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError as error:
        return error.code != 404
    return True


#: Renders a widget whose kernel has not computed yet, then fills it; the number of controls and of figures.
_LATE = """async ([script, state]) => {
    const heard = {}, shown = {declaration: {}, payload: "{}"};
    const on = (name, act) => (heard[name] ??= []).push(act);
    const model = {get: name => shown[name], on, send: () => {}};
    const widget = await import(URL.createObjectURL(new Blob([script], {type: "text/javascript"})));
    const el = document.body.appendChild(document.createElement("div"));
    const rendered = widget.default.render({model, el});
    await new Promise(done => setTimeout(done));
    Object.assign(shown, state);
    for (const act of heard["change:payload"] ?? []) act();
    await rendered;
    return [el.querySelectorAll(".condnum-row").length, el.querySelectorAll(".condnum-plot").length];
}"""


def test_a_page_that_is_faster_than_the_kernel_waits_for_what_it_shows(window):
    from plotly.offline import get_plotlyjs

    from condnum.lessons.condition_number import GradientDescentExplorer

    explorer = GradientDescentExplorer()
    state = {"declaration": explorer.declaration, "payload": explorer.payload}
    window.add_script_tag(content=get_plotlyjs())
    assert window.evaluate(_LATE, [explorer._esm, state]) == [len(explorer.controls), 1]


def test_idle_kernels_end():
    from condnum.lessons.serve import IDLE, Lessons

    app = Lessons()
    app.initialize(["notebooks"])
    assert (app.ip, app.auto_token) == ("127.0.0.1", True)
    app.init_settings()
    assert app.kernel_manager.cull_idle_timeout == IDLE
    assert not app.kernel_manager.cull_connected


def upload(notebook, label, path):
    """Press an upload button and choose a file."""
    with notebook.page.expect_file_chooser() as chooser:
        notebook.explorer().get_by_role("button", name=label).click()
    chooser.value.set_files(path)


def own_files(notebook, tmp_path):
    """Two files of a reader's own, and a third that holds words."""
    notebook.turn_to("Upload XP")
    page, explorer = notebook.page, notebook.explorer()
    notebook.assert_shows(own_data().figure())
    rng = np.random.default_rng(0)
    P, H = rng.normal(size=(60, 12)) * np.geomspace(1, 0.05, 12), rng.normal(size=(40, 12))
    np.save(tmp_path / "mine_P.npy", P)
    np.save(tmp_path / "mine_H.npy", H)
    (tmp_path / "bad.csv").write_text("name" + ",a,b,c,d,e,f,g,h,i,j,k\nx" + ",1" * 11 + "\n")
    upload(notebook, "Upload XP", tmp_path / "mine_P.npy")
    page.get_by_text("X_H is missing").wait_for()
    notebook.change(lambda: upload(notebook, "Upload XH", tmp_path / "mine_H.npy"))
    paths = {"pretrain": str(tmp_path / "mine_P.npy"), "harmful": str(tmp_path / "mine_H.npy")}
    notebook.assert_shows(own_data(**paths).figure())
    assert explorer.locator("[role=alert]:visible").count() == 0

    upload(notebook, "Upload XH", tmp_path / "bad.csv")
    message = page.get_by_role("alert").get_by_text("do not hold numbers: name")
    message.wait_for()
    field = explorer.locator(".condnum-row", has_text="XH from path")
    gap = message.bounding_box()["y"] - field.bounding_box()["y"]
    assert 0 < gap < 120  # beside the field at fault: right below its button
    assert not explorer.locator(".js-plotly-plot").is_visible()
    assert not notebook.button("Data as CSV").is_visible()
    notebook.button("Reset").click()
    explorer.get_by_text("RIR ≤").wait_for()
    assert explorer.locator(".js-plotly-plot").is_visible()


def test_a_class_starts_on_the_start_page_without_other_hosts(voila_address, watched):
    watched.goto(f"{voila_address}/?token=test", wait_until="commit")
    watched.get_by_role("heading", name="Start here").wait_for()
    assert [url for url in watched.fetched if not url.startswith((voila_address, "data:", "blob:"))] == []


def exercises(page):
    """A wrong answer, and right ones as numbers and as code."""
    check = page.get_by_role("button", name="Check")
    check.nth(10).wait_for()  # the boxes come one by one
    assert check.count() == 11
    for answer, said in (("7", "That is the ratio of the axes themselves."), ("7**2", "✔ right.")):
        page.get_by_label("kappa =").fill(answer)
        check.first.click()
        page.get_by_text(said).wait_for()
    page.get_by_label("whiten(H) =").fill("inv(sqrtm(H))")
    check.nth(7).click()
    page.get_by_text("so one step suffices").first.wait_for()


def test_a_click_in_the_pair_browser_shows_that_pair(lab):
    parameters = {"data": "digits", "methods": "ours,imma", "steps": 5, "pairs": "4-7,9-0", "jobs": 1}
    notebook = lab("experiments/mnist", figures=1, parameters=parameters)
    said, plot = notebook.explorer().get_by_role("status"), notebook.explorer().locator(".js-plotly-plot")
    assert "digit 4 against digit 7: RIR" in said.inner_text()
    plot.scroll_into_view_if_needed()
    plot.click(position=plot.evaluate(_CELL, [9, 0]))  # once it has come to rest
    said.get_by_text("digit 9 against digit 0: RIR").wait_for()
    assert notebook.problems == []
