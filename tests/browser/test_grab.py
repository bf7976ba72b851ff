"""Grab the vectors in Chromium: the numbers are Python's, and every way to drag leads to them."""

import json

import numpy as np
import pytest
from waiting import wait_until

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.errors import InvalidInputError
from condnum.lessons.grab import AT_FIRST, LONGEST, SHORTEST, GrabTheVectors, standalone
from condnum.probing import linear_probe
from condnum.probing.quadratic import rate_steps
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio

pytestmark = pytest.mark.browser

ALIGNED = {"theta": (0.1, 1, 0), "benign": (1, 0.1, 0), "harmful": (1, 0.7071, 0)}
#: Circles, the same axes, axes exchanged, the same ellipse three times, and what the presets show.
SPECIAL = [
    AT_FIRST,
    ALIGNED,
    {"theta": (1, 1, 0), "benign": (1, 0.1, 30), "harmful": (0.3, 0.3, 10)},
    {"theta": (0.7, 0.7, 77), "benign": (0.5, 0.5, 0), "harmful": (1, 1, 45)},
    {"theta": (1, 0.2, 30.1), "benign": (0.1, 1, 120.1), "harmful": (1, 0.5, -59.9)},
    {"theta": (1, 0.1, 90), "benign": (1, 0.1, 0), "harmful": (0.2, 0.9, 90)},
    {"theta": (0.4, 1, 60), "benign": (1, 0.3, 30), "harmful": (0.6, 0.18, 30)},
    {"theta": (1, 0.1, 45), "benign": (1, 0.1, 0), "harmful": (0.1, 1, 0)},
]


#: Share of the initial loss at which the ball has arrived, and misalignment that is round-off of the angles.
LEFT, EXACT = 1e-3, 1e-12


def axes(ellipse):
    """The directions of both axes, as columns."""
    phi = np.deg2rad(ellipse[2])
    return np.array([[np.cos(phi), -np.sin(phi)], [np.sin(phi), np.cos(phi)]])


def matrix(ellipse):
    """The symmetric matrix that takes the circle to an ellipse: θ, or the root of K."""
    Q = axes(ellipse)
    return (Q * ellipse[:2]) @ Q.T


def aligned(theta, task):
    """Alignment in θ's own axes, so that a circle keeps those that are drawn."""
    U, K = axes(theta), matrix(task) @ matrix(task)
    return alignment(np.diag(theta[:2]), U.T @ K @ U)


def ratios_of(state):
    """The verdict of Definition 3.1 on θ, and the ceiling."""
    T, *roots = (matrix(state[name]) for name in ("theta", "benign", "harmful"))
    covariances = [root @ root for root in roots]
    return relative_immunization_ratio(T, *covariances), rir_ceiling(*covariances).value


def some_states():
    rng = np.random.default_rng(0)

    def draw():
        return (*rng.uniform(SHORTEST, LONGEST, 2), rng.uniform(-180, 180))

    return SPECIAL + [{name: draw() for name in AT_FIRST} for _ in range(20)]


class Page:
    """The standalone page, and what goes wrong on it."""

    def __init__(self, window, path):
        self.page, self.file = window, path
        self.open()

    def open(self, address=""):
        self.page.goto("about:blank")
        self.page.goto(self.file.as_uri() + address)
        self.page.locator(".cg-verdict b").wait_for()

    @property
    def state(self):
        """What the address carries."""
        parts = (part.split("=") for part in self.page.evaluate("location.hash.slice(1)").split("&"))
        return {name: tuple(map(float, values.split(","))) for name, values in parts}

    @property
    def verdict(self):
        return self.page.locator(".cg-verdict").inner_text()

    def says(self, text):
        self.page.locator(".cg-verdict", has_text=text).wait_for()

    def handle(self, ellipse, axis, picture=0):
        return self.page.locator(f'[data-ellipse="{ellipse}"][data-axis="{axis}"]').nth(picture)

    def centre(self, ellipse, axis, picture=0):
        box = self.handle(ellipse, axis, picture).locator(".dot").bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def target(self, picture, length, degrees):
        """Where the point at a distance and in a direction is on the screen."""
        box = self.page.locator(".cg-task").nth(picture).locator("svg").first.bounding_box()
        unit, phi = box["width"] / 240, np.deg2rad(degrees)
        x, y = (120 + 100 * length * np.cos(phi)) * unit, (120 - 100 * length * np.sin(phi)) * unit
        return float(box["x"] + x), float(box["y"] + y)

    def settled(self, **wanted):
        """Wait until the address has these ellipses, to the half of a pixel's worth; return them."""

        def found():
            state = self.state if self.page.evaluate("location.hash") else {}
            there = state and all(np.allclose(state[name], wanted[name], atol=0.02) for name in wanted)
            return state if there else None

        return wait_until(found)


@pytest.fixture
def opened(watched, tmp_path):
    yield Page(watched, standalone(tmp_path / "grab.html"))
    assert watched.problems == []
    assert all(url.startswith(("file:", "about:")) for url in watched.fetched)


def test_numbers_are_those_of_python(opened):
    states = some_states()
    shown = opened.page.evaluate("states => states.map(condnum.grab.measure)", states)
    for state, numbers in zip(states, shown, strict=True):
        ratios, ceiling = ratios_of(state)
        for name, value in {
            "harmfulRatio": ratios.harmful_ratio,
            "pretrainRatio": ratios.pretrain_ratio,
            "rir": ratios.rir,
            "ceiling": ceiling,
        }.items():
            assert numbers[name] == pytest.approx(value, rel=1e-9), (state, name)
        assert numbers["success"] == ratios.success, state
        T = matrix(state["theta"])
        for name in ("benign", "harmful"):
            task, true = numbers[name], aligned(state["theta"], state[name])
            K = matrix(state[name]) @ matrix(state[name])
            assert task["before"] == pytest.approx(np.linalg.cond(K), rel=1e-9)
            assert task["condition"] == pytest.approx(true.true_condition, rel=1e-9)
            assert task["predictedCondition"] == pytest.approx(true.predicted_condition, rel=1e-9)
            np.testing.assert_allclose(task["spectrum"], true.spectrum, rtol=1e-9)
            np.testing.assert_allclose(np.sort(task["predicted"]), np.sort(true.predicted), rtol=1e-9)
            assert task["misalignment"] == pytest.approx(true.misalignment, abs=1e-9)
            assert task["exact"] == (true.misalignment <= EXACT), state
            rate = (true.true_condition - 1) / (true.true_condition + 1)
            assert task["steps"] == rate_steps(rate, LEFT), state
            phi = np.deg2rad(task["direction"])  # of the long axis of H
            along = np.array([np.cos(phi), np.sin(phi)])
            assert along @ T @ K @ T @ along == pytest.approx(task["spectrum"][0], rel=1e-9)


def test_the_ball_is_gradient_descent_from_its_slowest_start(opened):
    ball = "([kappa, t]) => condnum.grab.ballAt(kappa, t)"
    for kappa in (1.0, 3.0, 50.0, 500.0):
        half = kappa**-0.25  # κ is shared by θ and the data
        state = AT_FIRST | {"theta": (1, half, 0), "benign": (1, half, 0)}
        H, solution = np.diag([kappa, 1.0]), np.array([1 / kappa, 1.0])
        steps = opened.page.evaluate("state => condnum.grab.measure(state).benign.steps", state)
        curve = linear_probe(np.eye(2), H, H @ solution, steps=steps + 1)
        assert steps == np.flatnonzero(curve.excess_loss <= LEFT)[0]
        e = solution
        for t in range(6):
            np.testing.assert_allclose(opened.page.evaluate(ball, [kappa, t]), e, atol=1e-12)
            g = H @ e
            e = e - (g @ g) / (g @ H @ g) * g if g @ g > 0 else e


def test_python_refuses_what_the_page_refuses(opened):
    for value in ((1, 0.05, 0), (1.2, 1, 0), (1, 0.5), (1, 0.5, float("nan")), "wide"):
        with pytest.raises(InvalidInputError, match=r"theta must be two half axes from 0\.1 to 1"):
            GrabTheVectors(theta=value)
    with pytest.raises(InvalidInputError, match="unknown ellipse 'thetta'; did you mean 'theta'"):
        standalone("never.html", thetta=(1, 1, 0))
    opened.open("#theta=1,0.05,0")
    assert "The address has theta=1,0.05,0: it takes two half axes from 0.1 to 1" in opened.verdict
    opened.open("#a-section")  # of somebody else
    assert "Not immunized" in opened.verdict


def test_a_mouse_drags_theta_until_eq_10_is_exact(opened):
    page, said = opened.page, opened.page.locator(".eq10")
    assert said.all_inner_texts() == ["Eq. 10: 11.1, 7.9× too small", "Eq. 10: 11.1, 1.5× too small"]
    page.mouse.move(*opened.centre("theta", 0))
    page.mouse.down()
    for degrees in range(65, 19, -5):
        page.mouse.move(*opened.target(0, 0.8, degrees + 180 + 0.7))  # falls on the axis that is near
    page.mouse.up()
    found = opened.settled(theta=(0.8, 0.3, 20))
    assert found["theta"][2] == 20
    assert all(text.endswith("exact") for text in said.all_inner_texts())
    kappa = aligned(found["theta"], found["benign"]).true_condition
    assert page.locator(".kappa").first.inner_text() == f"κ 25 → {kappa:.3g}"


def test_keys_turn_and_stretch(opened):
    handle = opened.handle("benign", 1)
    assert handle.get_attribute("aria-label") == "benign data, second axis"
    assert handle.get_attribute("aria-valuetext") == "length 0.2, direction 110°"
    handle.focus()
    for key in ("ArrowLeft", "ArrowLeft", "Shift+ArrowRight", "ArrowUp", "Shift+ArrowDown"):
        handle.press(key)
    assert opened.settled(benign=(1, 0.218, 21.9))["benign"] == (1, 0.218, 21.9)
    assert opened.page.get_by_role("slider").count() == 8
    status = opened.page.get_by_role("status").inner_text()
    assert status.startswith("Not immunized")


def test_the_address_goes_there_and_back(opened):
    page = opened.page
    for label, ellipse in (("Aligned, yet immunized", ALIGNED["theta"]), ("No θ", (1, 1, 0))):
        page.get_by_role("button", name=label).click()
        opened.settled(theta=ellipse)
    page.get_by_role("button", name="Best θ").click()
    opened.settled(theta=ALIGNED["theta"])
    assert "Immunized ✔ benign κ ÷ 100, ✔ harmful κ × 25." in opened.verdict
    assert "RIR = 2,500, is the largest possible." in opened.verdict
    assert "the paper's remark that no θ can do this does not hold" in opened.verdict
    page.go_back()
    opened.says("✘ harmful κ as before")
    page.go_forward()
    opened.says("✔ harmful κ × 25")
    page.evaluate("location.hash = 'harmful=0.5,0.05,0'")
    opened.says("The address has harmful=0.5,0.05,0")
    page.evaluate("location.hash = 'harmful=0.5,0.25,0'")  # what it leaves out stays
    opened.says("✔ benign κ ÷ 100")


def test_presets_without_motion(opened):
    opened.page.emulate_media(reduced_motion="reduce")
    opened.page.get_by_role("button", name="Nothing possible").click()
    assert "no θ tells them apart. Here the paper is right" in opened.verdict  # at once


def test_a_finger_on_a_phone(chromium, tmp_path):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    opened = Page(context.new_page(), standalone(tmp_path / "grab.html"))
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    finger = context.new_cdp_session(page)

    def touch(kind, *points):
        places = [{"x": x, "y": y} for x, y in points]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", opened.centre("theta", 0, 1))
    for degrees in range(70, 111, 5):
        touch("touchMove", opened.target(1, 0.9, degrees + 180))
    touch("touchEnd")
    found = opened.settled(theta=(0.9, 0.3, 110))
    assert page.locator(".eq10").all_inner_texts() == ["Eq. 10: 2.78, exact", "Eq. 10: 29.2, exact"]
    assert ratios_of(found)[0].success
    assert opened.verdict.startswith("Immunized")
    assert page.evaluate("scrollY") == 0
    context.close()


#: Python answers a drag of θ with other harmful data, and writes down what it knows.
_CELL = """from condnum.files import write_json
from condnum.lessons.grab import GrabTheVectors

def answer(change):
    explorer.harmful = (0.1, 1, 0)
    write_json({path!r}, explorer.state)

explorer = GrabTheVectors()
explorer.observe(answer, "theta")
explorer"""


@pytest.mark.slow
def test_in_jupyterlab_python_and_the_page_share_one_state(lab, lab_server, tmp_path):
    import nbformat

    path = tmp_path / "state.txt"
    cells = [nbformat.v4.new_code_cell(_CELL.format(path=str(path))), nbformat.v4.new_markdown_cell("below")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab_server[1] / "grab.ipynb")
    notebook = lab("grab", figures=0)
    page = notebook.page
    page.locator(".cg").first.wait_for()
    assert page.locator(".cg:visible").count() == 1  # the one for readers without a kernel is hidden
    opened = Page.__new__(Page)
    opened.page = page
    page.mouse.move(*opened.centre("theta", 0))
    page.mouse.down()
    page.mouse.move(*opened.target(0, 0.8, 200), steps=10)
    page.mouse.up()
    page.wait_for_function("document.querySelectorAll('.kappa')[1].textContent.startsWith('κ 100 ')")

    def heard():
        return json.loads(path.read_text()) if path.exists() else AT_FIRST

    wait_until(lambda: np.allclose(heard()["theta"], (0.8, 0.3, 20), atol=0.02))  # the last of it
    assert heard()["harmful"] == [0.1, 1.0, 0.0]
    content = "window.jupyterapp.shell.currentWidget.content"
    page.evaluate(f"{content}.activeCellIndex = 0")
    opened.handle("benign", 0).focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('.kappa').textContent.startsWith('κ 24 ')")
    assert page.evaluate(f"{content}.activeCellIndex") == 0  # the key was the handle's alone
    assert notebook.problems == []
