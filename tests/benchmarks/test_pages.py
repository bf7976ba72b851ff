"""How long a reader of a page waits: from a key to the painted figure, a frame of a drag, the first figure.

It needs chromium. The promises are for a quiet machine, since a person's perception sets them: 100 ms feels
immediate.
"""

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.files import asset
from condnum.lessons.alignment import turned
from condnum.lessons.alignment_lab import AlignmentLab
from condnum.lessons.condition_number import spectrum_descent, zigzag
from condnum.lessons.grab import standalone
from condnum.lessons.limit import limit_explorer
from condnum.lessons.record import recording
from condnum.lessons.regularizers import many_steps, one_step
from condnum.page.html import figure_html
from condnum.page.site import build_site

pytestmark = pytest.mark.slow

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


def recorded_page(folder: Path, explorer: Any) -> Path:
    """Write a page that plays a recording, without a server."""
    from plotly.offline import get_plotlyjs

    scripts = asset("page/paint.js", "lessons/explore.js", "lessons/record.js")
    (folder / "all.js").write_text(f"{get_plotlyjs()}\n{scripts}")
    (folder / "page.html").write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('lessons/explore.css')}</style>"
        "<body data-theme=light>"
        f'{figure_html(recording(explorer, explorer.start, {}), "figure")}<script src="all.js"></script>'
    )
    return folder / "page.html"


def response(page, label, promised):
    """Print the milliseconds from a move to the painted figure."""
    times = page.evaluate(_RESPONSE, label)
    print(f"\n{label}: median {np.median(times):.0f} ms (promised: {promised}), slowest {max(times):.0f} ms")


def test_response_of_a_recording(window, tmp_path):
    window.goto(recorded_page(tmp_path, zigzag).as_uri())
    window.locator(".main-svg").first.wait_for()
    response(window, "condition number κ", 50)


_FRAMES = """() => {
    window.frames60 = [];
    let last = performance.now();
    const next = now => { frames60.push(now - last); last = now; requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""


def test_sixty_frames_a_second_while_dragging(window, tmp_path):
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

    frames = drag()
    print(f"\n{np.median(frames):.1f} ms per frame, 95 % below {np.quantile(frames, 0.95):.1f}")


def test_the_first_figure(window, tmp_path, seconds):
    build_site(tmp_path / "runs", tmp_path, cache=tmp_path / "cache", lessons=())
    page = tmp_path / "site" / "results" / "house-prices.html"

    def visit():
        window.goto(page.as_uri(), wait_until="commit")
        window.wait_for_function("document.querySelector('.plot-frame .main-svg') !== null")

    print(f"\nfirst figure of a page: {seconds(visit, 5):.2f} s (promised: 2)")


#: Explorer, what is set, the control that is moved, its values in turn, seconds promised.
CASES = [
    (zigzag, {}, "kappa", np.geomspace(2, 500, 40), 0.1),
    (spectrum_descent, {"D": 256}, "kappa", np.geomspace(2, 1e6, 40), 0.3),
    (turned, {"D": 64}, "angle", range(1, 90, 2), 0.1),
    (limit_explorer, {"D": 12}, "angle", range(1, 90, 2), 0.1),
    (one_step, {}, "step", np.geomspace(0.03, 30, 40), 0.1),
    (many_steps, {"constant": True}, "share", np.geomspace(0.02, 0.9, 40), 0.1),
]


@pytest.mark.parametrize(("explorer", "settings", "control", "values", "promised"), CASES)
def test_new_data_of_an_explorer(seconds, explorer, settings, control, values, promised):
    moved(seconds, explorer, explorer.show(**settings), control, values, promised)


@pytest.mark.parametrize("data", ["house-prices", "mnist:4-9"])
def test_new_data_of_the_lab(seconds, data):
    """Scrubbing through what is kept; one short training stands for all, which are kept alike."""
    lab = AlignmentLab(data, methods="r_ill_only,max_rir", steps=12)
    moved(seconds, lab.explorer, lab.show(extractor="r_ill_only"), "training", range(40), 0.1)


def moved(seconds, explorer, widget, control, values, promised):
    """Move a control through its values, and print the median seconds until the page has its new data."""
    turns = cycle([*values])
    median = seconds(lambda: widget.change(**{control: next(turns)}), 40)
    print(f"\n{explorer.name}, {control}: {1000 * median:.0f} ms (promised: {1000 * promised:.0f})")
    assert widget.error == ""
