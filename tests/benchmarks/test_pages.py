"""How long a reader of a page waits: from a key to the painted figure, a frame of a drag, the first figure.

Run with `make bench`; it needs chromium. The promises are for a quiet machine, since a person's perception
sets them.
"""

import numpy as np
import pytest
from browser.test_recording import PLAY, recorded_page

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.explorers import EXPLORERS
from condnum.lessons.frame import recording
from condnum.lessons.grab import standalone
from condnum.site.build import build_site

#: Milliseconds from each of fifteen moves of a slider to the painted figure.
_RESPONSE = """async (label) => {
    const slide = document.querySelector(`input[type=range][aria-label="${label}"]`), times = [];
    const plot = slide.closest('.condnum-explorer').querySelector('.js-plotly-plot');
    for (let move = 0; move < 15; move++) {
        const start = performance.now();
        const painted = new Promise(done => plot.once('plotly_afterplot',
            () => requestAnimationFrame(() => setTimeout(done))));
        slide.stepUp(slide.max === slide.value ? -10 : 1);
        slide.dispatchEvent(new Event('input'));
        await painted;
        times.push(performance.now() - start);
    }
    return times;
}"""


def response(benchmark, page, label):
    """Return the median milliseconds from a move to the painted figure."""
    times = benchmark.pedantic(page.evaluate, (_RESPONSE, label), rounds=1)
    print(f"\n{label}: median {np.median(times):.0f} ms, slowest {max(times):.0f} ms")
    return np.median(times)


def test_response_in_jupyterlab(benchmark, lab):
    page = lab("1_condition_number", figures=2).page
    page.locator(".condnum-explorer").first.scroll_into_view_if_needed()
    assert response(benchmark, page, "condition number κ") <= 120


def test_response_of_a_recording(benchmark, window, tmp_path, monkeypatch):
    few = {"pretrain_kappa": [10.0, 100.0], "harmful_kappa": [2.0, 100.0]}
    few["exponent"] = np.linspace(0, 1, 11).tolist()
    monkeypatch.setattr(recording, "recorded_values", lambda _: few)
    window.goto(recorded_page(tmp_path, EXPLORERS["AlignedTasksExplorer"]).as_uri())
    window.evaluate(PLAY)
    window.locator(".main-svg").first.wait_for()
    assert response(benchmark, window, "exponent s") <= 50


_FRAMES = """() => {
    window.frames60 = [];
    let last = performance.now();
    const next = now => { frames60.push(now - last); last = now; requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""


def test_sixty_frames_a_second_while_dragging(benchmark, window, tmp_path):
    window.goto(standalone(tmp_path / "grab.html").as_uri())
    box = window.locator('[data-ellipse="theta"][data-axis="0"] .dot').first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def drag():
        window.mouse.move(x, y)
        window.mouse.down()
        window.evaluate(_FRAMES)
        moves = 0
        while window.evaluate("frames60.length") < 64:
            moves += 1
            window.mouse.move(x + 20 * np.cos(moves / 10), y + 20 * np.sin(moves / 10))
        window.mouse.up()
        return np.array(window.evaluate("frames60"))[4:]

    frames = benchmark.pedantic(drag, rounds=1)
    print(f"\n{np.median(frames):.1f} ms per frame, 95 % below {np.quantile(frames, 0.95):.1f}")
    assert np.median(frames) <= 20


def test_the_first_figure_is_there_in_two_seconds(benchmark, window, tmp_path):
    build_site(None, tmp_path, cache=tmp_path / "cache", lessons=(), explorers=())
    page = tmp_path / "site" / "results" / "deep-attackers-mnist.html"

    def visit():
        window.goto(page.as_uri(), wait_until="commit")
        window.wait_for_function("document.querySelector('.plot-frame .main-svg') !== null")

    benchmark.pedantic(visit, rounds=5)
    assert benchmark.stats.stats.median <= 2
