"""An experiment's notebook in a real JupyterLab, with few epochs on the embedded data."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]

#: Where a cell of the pair browser's heatmap is on the page; brings it into sight first.
_CELL = """async ([pretrain, harmful]) => {
    const plot = Array.from(document.querySelectorAll('.jp-OutputArea-output .js-plotly-plot'))
        .filter(g => g.closest('.widget-vbox') && g.data.some(t => t.type === 'heatmap'))[0];
    plot.scrollIntoView({block: 'center'});
    await new Promise(done => setTimeout(done, 500));
    const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
    return [box.left + xaxis._offset + xaxis.d2p(harmful), box.top + yaxis._offset + yaxis.d2p(pretrain)];
}"""
#: Brings the first cell that names the pair browser into sight, at the top.
_SCROLL = """async () => {
    const content = window.jupyterapp.shell.currentWidget.content;
    const index = content.widgets.findIndex(cell => cell.model.sharedModel.source.includes('PairBrowser'));
    await content.scrollToItem(index, 'start');
}"""
_DETAILS = """() => Array.from(document.querySelectorAll('.widget-vbox .jp-OutputArea .js-plotly-plot'))
    .filter(g => g._fullLayout && g.querySelector('.main-svg')).length"""


def test_a_click_in_the_pair_browser_shows_that_pair(lab):
    parameters = {"dataset": "digits", "methods": "ours,imma", "epochs": 5, "pairs": "4-7,9-0", "jobs": 1}
    notebook = lab("experiments/mnist_pairs", figures=0, parameters=parameters)
    page = notebook.page
    page.set_viewport_size({"width": 1280, "height": 1300})
    titles = notebook.drawn_titles()
    assert len(titles) == 3  # ridge and compact heatmaps, the axis of ε
    assert all("digits-8x8" in title for title in titles), titles

    page.evaluate(_SCROLL)
    page.wait_for_function(f"({_DETAILS})() === 3", timeout=60_000)
    status = page.locator(".widget-vbox [role=status]")
    assert "Ours (Algorithm 1), digit 4 against digit 7: RIR" in status.inner_text()
    page.mouse.click(*page.evaluate(_CELL, [9, 0]))
    status.get_by_text("digit 9 against digit 0: RIR").wait_for()
    page.wait_for_function(f"({_DETAILS})() === 3", timeout=60_000)
    assert notebook.problems == []
