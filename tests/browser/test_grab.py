"""Grab the vectors in Chromium: the numbers are Python's, and every way to drag leads to them."""

import numpy as np
import pytest
from waiting import wait_until

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.errors import InvalidInputError
from condnum.lessons.grab import AT_FIRST, LONGEST, SHORTEST, GrabTheVectors, standalone
from condnum.probing import linear_probe
from condnum.theory.alignment import alignment
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import rir_limit
from condnum.theory.task import Task

pytestmark = pytest.mark.browser

ALIGNED = {"theta": (0.1, 1, 0), "benign": (1, 0.1, 0), "harmful": (1, 0.7071, 0)}
#: What the presets show, circles, the same axes, axes exchanged.
SPECIAL = [
    AT_FIRST,
    ALIGNED,
    {"theta": (1, 1, 0), "benign": (1, 0.1, 30), "harmful": (0.3, 0.3, 10)},
    {"theta": (1, 0.2, 30.1), "benign": (0.1, 1, 120.1), "harmful": (1, 0.5, -59.9)},
    {"theta": (1, 0.1, 90), "benign": (1, 0.1, 0), "harmful": (0.2, 0.9, 90)},
]
#: Fraction of the initial loss at which the ball has arrived.
LEFT = 1e-3


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


def draw(rng):
    return (*rng.uniform(SHORTEST, LONGEST, 2), rng.uniform(-180, 180))


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
    def verdict(self):
        return self.page.locator(".cg-verdict").inner_text()

    def handle(self, ellipse, axis, picture=0):
        return self.page.locator(f'[data-ellipse="{ellipse}"][data-axis="{axis}"]').nth(picture)

    def center(self, ellipse, axis, picture=0):
        box = self.handle(ellipse, axis, picture).locator(".dot").bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def target(self, picture, length, degrees):
        """Where the point at a distance and in a direction is on the screen."""
        box = self.page.locator(".cg-task").nth(picture).locator("svg").first.bounding_box()
        unit, phi = box["width"] / 240, np.deg2rad(degrees)
        x, y = (120 + 100 * length * np.cos(phi)) * unit, (120 - 100 * length * np.sin(phi)) * unit
        return float(box["x"] + x), float(box["y"] + y)

    def settled(self, **wanted):
        """Wait until the address has these ellipses, to the half of a pixel's worth; return them all."""

        def found():
            words = self.page.evaluate("location.hash.slice(1)")
            parts = (part.split("=") for part in words.split("&")) if words else ()
            state = {name: tuple(map(float, values.split(","))) for name, values in parts}
            there = all(
                name in state and np.allclose(state[name], wanted[name], atol=0.02) for name in wanted
            )
            return state if state and there else None

        return wait_until(found)


@pytest.fixture
def opened(watched, tmp_path):
    yield Page(watched, standalone(tmp_path / "grab.html"))
    assert watched.problems == []
    assert all(url.startswith(("file:", "about:")) for url in watched.fetched)


def test_numbers_are_those_of_python(opened):
    rng = np.random.default_rng(0)
    states = SPECIAL + [{name: draw(rng) for name in AT_FIRST} for _ in range(20)]
    shown = opened.page.evaluate("states => states.map(condnum.grab.measure)", states)
    for state, numbers in zip(states, shown, strict=True):
        T, *roots = (matrix(state[name]) for name in ("theta", "benign", "harmful"))
        covariances = [root @ root for root in roots]
        ratios = relative_immunization_ratio(T, *covariances)
        wanted = [ratios.harmful_ratio, ratios.benign_ratio, ratios.rir, rir_limit(*covariances).value]
        found = [numbers[name] for name in ("harmfulRatio", "benignRatio", "rir", "limit")]
        assert found == pytest.approx(wanted, rel=1e-9), state
        assert numbers["success"] == ratios.success, state
        for name, K in zip(("benign", "harmful"), covariances, strict=True):
            task, true = numbers[name], aligned(state["theta"], state[name])
            assert task["before"] == pytest.approx(np.linalg.cond(K), rel=1e-9)
            assert task["condition"] == pytest.approx(true.true_condition, rel=1e-9)
            np.testing.assert_allclose(task["spectrum"], true.spectrum, rtol=1e-9)
            np.testing.assert_allclose(np.sort(task["predicted"]), np.sort(true.predicted), rtol=1e-9)
            assert task["misalignment"] == pytest.approx(true.misalignment, abs=1e-9)
            assert task["exact"] == (true.misalignment <= 1e-12), state
            phi = np.deg2rad(task["direction"])  # of the long axis of H
            along = np.array([np.cos(phi), np.sin(phi)])
            assert along @ T @ K @ T @ along == pytest.approx(task["spectrum"][0], rel=1e-9)


def test_the_ball_is_gradient_descent_from_its_slowest_start(opened):
    for kappa in (1.0, 3.0, 500.0):
        half = kappa**-0.25  # κ is shared by θ and the data
        state = AT_FIRST | {"theta": (1, half, 0), "benign": (1, half, 0)}
        H, e = np.diag([kappa, 1.0]), np.array([1 / kappa, 1.0])
        steps = opened.page.evaluate("state => condnum.grab.measure(state).benign.steps", state)
        curve = linear_probe(None, Task.of_covariance(H, H @ e), steps=steps + 1)
        assert curve.excess_loss[steps] <= LEFT * (1 + 1e-9)
        assert steps == 0 or curve.excess_loss[steps - 1] >= LEFT * (1 - 1e-9)
        ball = opened.page.evaluate("kappa => [0, 1, 2, 3].map(t => condnum.grab.ballAt(kappa, t))", kappa)
        for at in ball:
            np.testing.assert_allclose(at, e, atol=1e-12)
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


def test_a_mouse_drags_theta_until_eq_10_is_exact_and_keys_turn_and_stretch(opened):
    page, said = opened.page, opened.page.locator(".eq10")
    assert said.all_inner_texts() == ["Eq. 10: 11.1, 7.9× too small", "Eq. 10: 11.1, 1.5× too small"]
    page.mouse.move(*opened.center("theta", 0))
    page.mouse.down()
    for degrees in range(65, 19, -5):
        page.mouse.move(*opened.target(0, 0.8, degrees + 180 + 0.7))  # falls on the axis that is near
    page.mouse.up()
    found = opened.settled(theta=(0.8, 0.3, 20))
    assert found["theta"][2] == 20
    assert all(text.endswith("exact") for text in said.all_inner_texts())
    kappa = aligned(found["theta"], found["benign"]).true_condition
    assert page.locator(".kappa").first.inner_text() == f"κ 25 → {kappa:.3g}"
    handle = opened.handle("benign", 1)
    assert handle.get_attribute("aria-label") == "benign data, second axis"
    handle.focus()
    for key in ("ArrowLeft", "ArrowLeft", "Shift+ArrowRight", "ArrowUp", "Shift+ArrowDown"):
        handle.press(key)
    assert opened.settled(benign=(1, 0.218, 21.9))["benign"] == (1, 0.218, 21.9)


def test_presets_and_the_address_go_there_and_back(opened):
    page = opened.page
    for label, ellipse in (("Aligned, yet immunized", ALIGNED["theta"]), ("No θ", (1, 1, 0))):
        page.get_by_role("button", name=label).click()
        opened.settled(theta=ellipse)
    page.get_by_role("button", name="Best θ").click()
    opened.settled(theta=ALIGNED["theta"])
    assert "RIR = 2,500, is the largest possible." in opened.verdict
    page.go_back()
    opened.settled(theta=(1, 1, 0))
    page.locator(".cg-verdict", has_text="✘ harmful κ as before").wait_for()
    page.evaluate("location.hash = 'harmful=0.5,0.25,0'")  # what it leaves out stays
    page.locator(".cg-verdict", has_text="harmful κ as before").wait_for()


def test_a_button_pressed_on_the_way_is_for_where_the_picture_goes(opened):
    """The state half-way gave another θ, which was called the best."""
    presses = """labels => {
        const named = text => [...document.querySelectorAll('button')].find(one => one.textContent === text);
        for (const label of labels) named(label).click();
    }"""
    opened.page.evaluate(presses, ["Aligned, yet immunized", "Best θ"])
    opened.settled(**ALIGNED)
    assert "is the largest possible." in opened.verdict


def test_a_finger_on_a_phone(chromium, tmp_path):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    opened = Page(context.new_page(), standalone(tmp_path / "grab.html"))
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    finger = context.new_cdp_session(page)

    def touch(kind, *points):
        places = [{"x": x, "y": y} for x, y in points]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", opened.center("theta", 0, 1))
    for degrees in range(70, 111, 5):
        touch("touchMove", opened.target(1, 0.9, degrees + 180))
    touch("touchEnd")
    opened.settled(theta=(0.9, 0.3, 110))
    assert page.locator(".eq10").all_inner_texts() == ["Eq. 10: 2.78, exact", "Eq. 10: 29.2, exact"]
    assert opened.verdict.startswith("Immunized")
    assert page.evaluate("scrollY") == 0
    context.close()


#: Renders the widget on a model without a kernel, which answers a key with other harmful data.
_WIDGET = """async script => {
    const heard = {}, state = {theta: [1, 0.3, 65], benign: [1, 0.2, 20], harmful: [0.5, 0.9, 20]};
    const model = {
        get: name => state[name], set: (name, value) => { state[name] = value; },
        on: (name, act) => { heard[name] = act; }, off: () => {},
        save_changes: () => { state.harmful = [0.1, 1, 0]; heard['change:harmful'](); },
    };
    const widget = await import(URL.createObjectURL(new Blob([script], {type: 'text/javascript'})));
    widget.default.render({model, el: document.body.appendChild(document.createElement('div'))});
    window.state = state;
}"""


def test_python_and_the_page_share_one_state(window):
    window.evaluate(_WIDGET, GrabTheVectors()._esm)
    window.locator('[data-ellipse="benign"][data-axis="0"]').first.press("ArrowDown")
    window.wait_for_function("document.querySelectorAll('.kappa')[1].textContent.startsWith('κ 100 ')")
    assert window.evaluate("state.benign") == [0.98, 0.2, 20]
