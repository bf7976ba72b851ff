"""The lessons in a real browser: sliders, choices and presets show what the library computes."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from condnum.lessons.aligned_tasks import aligned_tasks
from condnum.lessons.alignment import rotated_alignment
from condnum.lessons.ceiling import ceiling_demo
from condnum.lessons.condition_number import spectrum_descent, zigzag
from condnum.lessons.own_data import own_data
from condnum.lessons.regularizer_paths import (
    joint_steps,
    regularizer_path,
)
from condnum.lessons.regularizers import counter_example, regularizer_step
from condnum.lessons.ridge_ceiling import ridge_ceiling_demo

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]

BY_HAND = {"angle": 45.0, "dimension": 2, "data_kappa": 3.0, "theta_kappa": 2.0}
WELL, ILL = counter_example("well"), counter_example("ill")
NINE = regularizer_step(dimension=9)

#: Notebook, then what is done to which explorer: a key on a slider, a choice, a preset (or nothing yet), and
#: the figure that it leads to.
LESSONS = {
    "1_condition_number": [
        (0, None, lambda: zigzag(kappa=10.0).figure()),
        (0, ("condition number κ", "ArrowRight"), lambda: zigzag(kappa=10**1.1).figure()),
        (1, ("dimension D", "End"), lambda: spectrum_descent(dimension=256).figure()),
    ],
    "2_alignment": [
        (0, None, lambda: rotated_alignment(angle=45.0).figure()),
        (0, ("angle of U to Q", "ArrowRight"), lambda: rotated_alignment(angle=46.0).figure()),
        (0, "By hand: D = 2, Eq. 10 fails", lambda: rotated_alignment(**BY_HAND).figure()),
        (0, "Generic: a Haar draw", lambda: rotated_alignment(rotation="haar", angle=45.0).figure()),
        (1, "Counter-example to the remark", lambda: aligned_tasks(exponent=1.0).figure()),
    ],
    "3_regularizers": [
        (0, None, lambda: regularizer_step().figure()),
        (
            0,
            ("dimension k = D", "ArrowRight"),
            lambda: regularizer_step(dimension=9).figure(),
        ),
        (
            0,
            "Counter-example to printed bound (1)",
            lambda: regularizer_step(**WELL).figure(),
        ),
        (
            0,
            "Counter-example to printed bound (2)",
            lambda: regularizer_step(**ILL, scale="near").figure(),
        ),
        (
            1,
            {"step sizes": "constant η"},
            lambda: regularizer_path(sizes="constant").figure(),
        ),
        (2, ("angle of the tasks", "End"), lambda: joint_steps(angle=90.0).figure()),
    ],
    "4_ceiling": [
        (0, None, lambda: ceiling_demo().figure()),
        (0, ("angle of K_H to K_P", "ArrowRight"), lambda: ceiling_demo(angle=46.0).figure()),
        (
            0,
            {"last feature dead": "in pre-training"},
            lambda: ceiling_demo(angle=46.0, null="pretrain").figure(),
        ),
        (1, ("ridge ε", "End"), lambda: ridge_ceiling_demo(ridge=10.0).figure()),
    ],
}


@pytest.mark.parametrize("name", LESSONS)
def test_in_jupyterlab(lab, name):
    steps = LESSONS[name]
    notebook = lab(name, figures=steps[-1][0] + 1)
    notebook.page.set_viewport_size({"width": 1280, "height": 1200})  # a whole explorer in one picture
    for number, (index, action, figure) in enumerate(steps):
        before = notebook.figure_data(index)
        if isinstance(action, tuple):
            notebook.press(*action, index=index)
        elif action is not None:
            if isinstance(action, str):
                notebook.button(action, index).click()
            else:
                ((label, choice),) = action.items()
                notebook.dropdown(label, index).select_option(label=choice)
            notebook.changed(before, index)
        notebook.assert_shows(figure(), index)
        notebook.screenshot(f"{name[0]}_{number}", index)
    if name == "3_regularizers":
        assert f"step={ILL['step']!r}" in notebook.code()  # the sliders have not rounded it
    if name == "1_condition_number":
        use_the_tools(notebook)
        assert notebook.page.locator(".jp-RenderedPlotly").count() >= 2
        assert not notebook.page.locator(".jp-RenderedPlotly:visible").count()  # the live ones are there
    notebook.darken()
    notebook.screenshot(f"{name[0]}_dark", 0)
    assert notebook.problems == []


def use_the_tools(notebook):
    """Reset, copy the settings, download data and figures."""
    before = notebook.figure_data(0)
    notebook.button("Reset").click()
    notebook.changed(before)
    notebook.assert_shows(zigzag().figure())
    notebook.press("step t", "End")
    notebook.button("Copy settings as code").click()
    notebook.page.get_by_text("Copied the line below").wait_for()
    code = notebook.page.evaluate("navigator.clipboard.readText()")
    assert code == "GradientDescentExplorer(kappa=10.0, angle=45.0, rule='exact', step=40, axes='equal')"
    with notebook.page.expect_download() as caught:
        notebook.button("Data as CSV").click()
    table = np.genfromtxt(caught.value.path(), delimiter=",", names=True)
    np.testing.assert_allclose(table["norm_ratio"], zigzag().norm_ratio, rtol=1e-12)
    for label, start in (("Figure as HTML", b"<!doctype html>"), ("Figure as PNG", b"\x89png")):
        with notebook.page.expect_download() as caught:
            notebook.button(label).click()
        with open(caught.value.path(), "rb") as stream:
            assert stream.read(20).lower().startswith(start)


def test_a_notebook_that_is_opened_again_shows_pictures(lab_address, lab_folder, window, tmp_path):
    from condnum.report.notebook import run_notebook

    ran = run_notebook(lab_folder / "1_condition_number.ipynb", {}, tmp_path, quiet=True, timeout=600)
    (lab_folder / "ran.ipynb").write_bytes(ran.read_bytes())
    window.set_viewport_size({"width": 1280, "height": 3000})
    window.goto(f"{lab_address}/lab/tree/ran.ipynb?reset&token=test")
    window.locator(".jp-RenderedPlotly .main-svg:visible").first.wait_for()


def test_in_voila(voila):
    notebook = voila("1_condition_number", figures=2)
    assert notebook.figures_when_text_appeared == 0
    notebook.press("condition number κ", "ArrowRight")
    notebook.assert_shows(zigzag(kappa=10**1.1).figure())
    notebook.screenshot("1_voila")
    with notebook.page.expect_download() as caught:
        notebook.button("Data as CSV").click()
    assert caught.value.suggested_filename == "GradientDescentExplorer.csv"
    assert notebook.problems == []
    kernel = json.loads(notebook.page.locator("#jupyter-config-data").text_content())["kernelId"]
    server, query = notebook.page.url.split("/voila")[0], notebook.page.url.split("?")[1]
    address = f"{server}/api/kernels/{kernel}?{query}"
    assert answers(address)
    notebook.page.goto("about:blank")  # opened by its address, without the list of notebooks: no _xsrf cookie
    for _ in range(60):
        if not answers(address):
            return
        notebook.page.wait_for_timeout(500)
    raise AssertionError("the kernel of a page that is closed still runs after 30 s")


def answers(address):
    """Tell whether something answers at an address other than 404."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError as error:
        return error.code != 404
    return True


#: How many titles and legends of the first figure lie upon each other.
_OVERLAPS = """() => {
    const titles = ".xtitle, .annotation-text, .gtitle, .legend";
    const plot = document.querySelector(".js-plotly-plot");
    const boxes = Array.from(plot.querySelectorAll(titles), element => element.getBoundingClientRect());
    const beside = (a, b) => a.left < b.right && b.left < a.right;
    const meet = (a, b) => beside(a, b) && a.top < b.bottom - 2 && b.top < a.bottom - 2;
    return boxes.filter((a, i) => a.width && boxes.some((b, j) => j > i && b.width && meet(a, b))).length;
}"""


@pytest.mark.parametrize(("name", "figures"), [("1_condition_number", 2), ("5_bring_your_own", 1)])
def test_on_a_phone(voila, name, figures):
    notebook = voila(name, figures=figures, width=390)
    page = notebook.page
    page.wait_for_function(
        """count => Array.from(document.querySelectorAll(".js-plotly-plot")).slice(0, count).every(plot =>
            plot._fullLayout.yaxis.domain[0] > plot._fullLayout.yaxis2.domain[1]
            && Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)""",
        arg=figures,
    )
    assert page.evaluate("document.body.scrollWidth") <= 390
    overlaps = page.evaluate(_OVERLAPS)
    assert overlaps == 0
    notebook.screenshot(f"{name[0]}_phone", 0)
    if name != "1_condition_number":
        return
    explorer = notebook.explorer()
    assert explorer.get_by_role("slider", name="condition number κ").count() == 1
    assert explorer.get_by_role("button", name="Play or pause").count() == 1
    assert explorer.get_by_title("How the step size is chosen.").count() >= 1
    box = explorer.get_by_role("textbox", name="condition number κ")
    for typed in ("37", "1e6"):
        box.fill(typed)
        box.press("Enter")
        page.wait_for_timeout(1000)
        assert "(kappa=37.0," in notebook.code()
    page.get_by_text("must be a number from 1 to 1,000, got '1e6'").wait_for()


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


def test_own_data(lab, tmp_path):
    notebook = lab("5_bring_your_own")
    notebook.page.set_viewport_size({"width": 1280, "height": 1500})
    notebook.assert_shows(own_data().figure())
    notebook.press("ridge ε", "ArrowRight")
    before = notebook.figure_data()
    notebook.dropdown("example").select_option(label="digits 4 and 7")
    notebook.changed(before)
    notebook.assert_shows(own_data(ridge=10**-5.9, example="digits").figure())
    notebook.screenshot("5_own_data_digits", 0)

    rng = np.random.default_rng(0)
    P, H = rng.normal(size=(60, 12)) * np.geomspace(1, 0.05, 12), rng.normal(size=(40, 12))
    np.save(tmp_path / "mine_P.npy", P)
    np.save(tmp_path / "mine_H.npy", H)
    (tmp_path / "bad.csv").write_text("name" + ",a,b,c,d,e,f,g,h,i,j,k\nx" + ",1" * 11 + "\n")
    upload(notebook, "Upload X_P", tmp_path / "mine_P.npy")
    notebook.page.get_by_text("X_H is still missing").wait_for()
    before = notebook.figure_data()
    upload(notebook, "Upload X_H", tmp_path / "mine_H.npy")
    notebook.changed(before)
    paths = {"pretrain": str(tmp_path / "mine_P.npy"), "harmful": str(tmp_path / "mine_H.npy")}
    notebook.assert_shows(own_data(**paths, ridge=10**-5.9).figure())
    assert notebook.explorer().locator("[role=alert]").count() == 0

    upload(notebook, "Upload X_H", tmp_path / "bad.csv")
    message = notebook.page.get_by_role("alert").get_by_text("do not hold numbers: name")
    message.wait_for()
    field = notebook.explorer().locator(".widget-text", has_text="X_H from path")
    gap = message.bounding_box()["y"] - field.bounding_box()["y"]
    assert 0 < gap < 120  # beside the field at fault: right below its button
    assert not notebook.explorer().locator(".js-plotly-plot").is_visible()
    assert notebook.code() == ""
    assert notebook.button("Data as CSV").is_disabled()
    notebook.screenshot("5_own_data_bad_upload", 0)
    notebook.button("Reset").click()
    notebook.explorer().get_by_text("RIR ≤").wait_for()
    assert notebook.explorer().locator(".js-plotly-plot").is_visible()
    assert notebook.problems == []


def test_exercises(lab):
    notebook = lab("6_exercises", figures=0)
    texts = notebook.page.evaluate(
        """() => Array.from(window.jupyterapp.shell.currentWidget.content.model.cells)
            .flatMap(cell => cell.toJSON().outputs || [])
            .filter(output => output.output_type === 'execute_result')
            .map(output => String(output.data['text/plain']))"""
    )
    assert texts == ["not answered yet"] * 11
    hidden = notebook.page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter(cell => cell.model.type === 'code' && cell.inputHidden).length"""
    )
    assert hidden == 11
    assert notebook.page.locator("details").count() >= 1
    assert not notebook.page.locator("details[open]").count()
    assert notebook.problems == []


def test_answers_on_a_page(voila):
    notebook = voila("6_exercises", figures=0)
    page = notebook.page
    check = page.get_by_role("button", name="Check")
    check.nth(10).wait_for(timeout=120_000)  # the boxes come one by one
    assert check.count() == 11
    page.get_by_label("kappa =").fill("7")
    check.first.click()
    page.get_by_text("That is the ratio of the axes themselves.").wait_for()
    page.get_by_label("kappa =").fill("7**2")
    check.first.click()
    page.get_by_text("✔ right.").wait_for()
    page.get_by_label("whiten(H) =").fill("inv(sqrtm(H))")
    check.nth(7).click()
    page.get_by_text("one step arrives").wait_for()
    notebook.screenshot("6_answers")
    assert notebook.problems == []
