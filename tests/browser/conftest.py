"""A real browser: Chromium on pages from the disk, and on a JupyterLab of the lessons."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from browser.page_faults import NOTEBOOKS
from golden_runs import SHOWN
from lessons.test_notebooks import FASTER
from waiting import PATIENCE, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
]
TOKEN = "test"
#: Those with which a test does something in JupyterLab.
LESSONS = sorted(NOTEBOOKS.glob("[156]_*.ipynb"))
_STRANGER = re.compile(r"^https?://(?!127\.0\.0\.1:).*")  # on another host

_FIGURES = """() => Array.from(document.querySelectorAll('.js-plotly-plot'))
    .filter(g => g.data && g.data.length && g.closest('.condnum-explorer')).length"""
_READ = """index => {
    const plots = Array.from(document.querySelectorAll('.condnum-explorer .js-plotly-plot'));
    const list = v => v === undefined || v === null ? null : Array.from(v, e =>
        (typeof e === 'number' && !Number.isFinite(e)) ? null
        : (e !== null && typeof e === 'object' && 'length' in e) ? list(e) : e);
    return plots[index]._fullData.map(t => ({name: t.name, x: list(t.x), y: list(t.y), z: list(t.z)}));
}"""


class LivePage:
    """A page with explorers that a kernel computes, counted from `first`."""

    def __init__(self, page: Any) -> None:
        self.page, self.first = page, 0
        self.problems: list[str] = []  # errors of its scripts, requests to other hosts
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.problems.extend(_STRANGER.findall(request.url)))

    def wait_for_figures(self, count: int) -> None:
        self.page.wait_for_function(f"({_FIGURES})() >= {count}", timeout=PATIENCE * 1000)
        assert self.page.evaluate(_FIGURES) == count, self.problems

    def turn_to(self, label: str) -> None:
        """Count explorers from the first one that has these words."""
        texts = self.page.locator(".condnum-explorer").all_text_contents()
        self.first = next(i for i, text in enumerate(texts) if label in text)

    @property
    def explorer(self) -> Any:
        return self.page.locator(".condnum-explorer").nth(self.first)

    def button(self, label: str) -> Any:
        return self.explorer.get_by_role("button", name=label, exact=True)

    def code(self) -> str:
        """The line of Python that recreates the explorer as it is shown."""
        self.page.evaluate("navigator.clipboard.writeText('')")
        self.button("Copy settings as code").click()
        return self.page.wait_for_function("() => navigator.clipboard.readText()").json_value()

    def press(self, label: str, key: str) -> None:
        """Press a key on a slider, by the start of its label."""
        handle = self.explorer.get_by_role("slider", name=label).first
        handle.scroll_into_view_if_needed()
        handle.focus()
        self.change(lambda: handle.press(key))

    def change(self, act: Callable[[], Any]) -> None:
        """Do something, and wait until it is answered and the figure differs from before."""
        before, busy = self.figure_data(), self.page.locator(".condnum-explorer[aria-busy=true]")
        act()
        wait_until(lambda: not busy.count() and self.figure_data() != before)

    def figure_data(self) -> list[dict[str, Any]]:
        """Name, x, y and z of each trace of the figure; gaps (NaN) are None."""
        return self.page.evaluate(_READ, self.first)

    def assert_draws(self, figure: Any) -> None:
        """Assert that each trace is that of a plotly figure, up to the last digits."""
        drawn = self.figure_data()
        assert [trace["name"] for trace in drawn] == [trace.name for trace in figure.data]
        for trace, computed in zip(drawn, figure.data, strict=True):
            for axis in ("x", "y", "z"):
                values = computed.to_plotly_json().get(axis)
                wanted = np.asarray([] if values is None else values)
                got = np.asarray(trace[axis] or [])
                if wanted.dtype.kind in "fiub":  # JSON has no NaN: gaps are None there
                    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=1e-9)
                else:
                    assert got.tolist() == wanted.tolist()


@pytest.fixture(scope="session")
def needs_chromium() -> None:
    """Skip where there is no Chromium to drive."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium for the tests of pages; apt-get install chromium, or Google Chrome")


@pytest.fixture(scope="module")
def chromium(request: pytest.FixtureRequest, needs_chromium: None) -> Iterator[Any]:
    """A headless Chromium of this file.

    Playwright runs an event loop, which nothing that starts a kernel here may find: that is made before.
    """
    from playwright import sync_api

    here = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    if any("site" in getattr(item, "fixturenames", ()) for item in here):
        request.getfixturevalue("site")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def window(chromium: Any) -> Iterator[Any]:
    """A page of 1280 pixels, with a clipboard."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    yield page
    context.close()


@pytest.fixture
def watched(window: Any) -> Any:
    """The window, with everything that a page complains of or fetches."""
    window.problems, window.fetched = [], []

    def note(message: Any) -> None:
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:  # of no page
            window.problems.append(message.text)

    window.on("console", note)
    window.on("pageerror", lambda error: window.problems.append(str(error)))
    window.on("request", lambda request: window.fetched.append(request.url))
    window.on("requestfailed", lambda request: window.problems.append(f"not loaded: {request.url}"))
    return window


def _write_lessons(path: Path, lessons: list[Path]) -> None:
    """Write lessons one after the other as one notebook, which one kernel serves."""
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    whole = nbformat.v4.new_notebook()
    for lesson in lessons:
        node = parameterize_notebook(load_notebook_node(str(lesson)), FASTER.get(lesson.stem, {}))
        whole.metadata = node.metadata
        whole.cells += [nbformat.from_dict({**cell, "id": f"{lesson.stem}-{cell.id}"}) for cell in node.cells]
    nbformat.write(whole, path)


@contextmanager
def _server(base: Path, command: list[str], probe: str) -> Generator[str]:
    """Serve `LESSONS` as one notebook, from a home of its own; yields the address, once `probe` answers."""
    home = base / "home"
    shutil.copytree(NOTEBOOKS, base / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    _write_lessons(base / "notebooks" / "lessons.ipynb", LESSONS)
    names = ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES")
    folders = {f"JUPYTER{name}_DIR": str(home / name.strip("_").lower()) for name in names}
    variables = {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1", **folders}
    news = home / "lab_settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    log = home / "server.log"
    with log.open("w") as stream:
        arguments = [sys.executable, "-m", *command]
        process = subprocess.Popen(
            arguments, env=os.environ | variables, stdout=stream, stderr=stream, cwd=home
        )

    def listens() -> list[int]:
        found = psutil.Process(process.pid).net_connections("tcp")
        return [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]

    try:
        try:
            address = f"http://127.0.0.1:{wait_until(listens, process)[0]}"
            urllib.request.urlopen(f"{address}{probe}?token={TOKEN}", timeout=PATIENCE).close()
        except (AssertionError, OSError) as error:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}") from error
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_RUN_ALL = """async () => {
    const app = window.jupyterapp, widget = app.shell.currentWidget, { content } = widget;
    await Promise.all([app.restored, widget.context.ready, widget.sessionContext.ready]);
    await widget.sessionContext.session.kernel.info;
    content.notebookConfig = { ...content.notebookConfig, windowingMode: 'none' }; // all are drawn
    await app.commands.execute('notebook:run-all-cells');
    return content.model.sharedModel.cells.flatMap(cell => cell.outputs ?? [])
        .filter(output => output.output_type === 'error').map(({ ename, evalue }) => `${ename}: ${evalue}`);
}"""


@pytest.fixture
def lab(needs_chromium: None, window: Any, tmp_path: Path) -> Iterator[Callable[[int], LivePage]]:
    """`lab(figures)`: the lessons in JupyterLab, all run without error, all figures drawn."""
    pytest.importorskip("jupyterlab", reason="the extra notebooks is not installed")
    command = [
        *("jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={tmp_path / 'notebooks'}"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
        *(f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"),
    ]
    with _server(tmp_path, command, "/api/status") as address:

        def open_lessons(figures: int) -> LivePage:
            opened = LivePage(window)
            window.goto(f"{address}/lab/tree/lessons.ipynb?reset&token={TOKEN}")
            window.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext")
            window.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
            assert window.evaluate(_RUN_ALL) == []
            opened.wait_for_figures(figures)
            return opened

        yield open_lessons


@pytest.fixture(scope="session")
def site(
    golden_run: Callable[..., Any],
    lesson_run: Callable[[str], Path],
    site_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The site of a small reproduction: three finished runs, one failure, every lesson and explorer.

    One explorer is recorded at a few values of its controls. Of the others each control has two, and all
    states look alike.
    """
    from condnum.lessons import explorers
    from condnum.lessons.frame import recording
    from condnum.report.experiments import Experiment, ExperimentResult
    from condnum.site import build, parts

    root, target = tmp_path_factory.mktemp("reproduction"), tmp_path_factory.mktemp("reports")
    for name in SHOWN:
        shutil.copytree(golden_run(name)[1], root / name)

    def run(name: str, *ended: Any) -> ExperimentResult:
        return ExperimentResult(Experiment(name, f"Title of {name}", "One sentence.", name), *ended)

    runs = [run(name, root / name, "finished", "") for name in SHOWN]
    runs.append(run("deep", None, "failed", "no memory"))
    few = {"kappa": [100.0, 1e6], "dimension": [32], "shape": ["geometric"], "start": ["random"]}
    messages, values, payload = list[str](), recording.recorded_values, recording.payload
    first = cache(lambda explorer: payload(explorer, recording.lattice(explorer)[0]))

    def two(explorer: type[Any]) -> dict[str, list[Any]]:
        return {name: kept[:2] for name, kept in values(explorer).items()}

    for name in parts.LESSONS:
        folder = parts.lesson(name, site_cache).parent
        if not folder.exists():
            shutil.copytree(lesson_run(name), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "recorded_values", lambda _: few)
        for name in sorted(explorers.EXPLORERS, key=lambda one: one != "SpectrumDescentExplorer"):
            if name != "SpectrumDescentExplorer":
                patch.setattr(recording, "recorded_values", two)
                patch.setattr(recording, "payload", lambda explorer, _: first(explorer))
            explorers.record_file(name, parts.recording(name, site_cache))
    made = {"cache": site_cache, "explorers": list(explorers.EXPLORERS)}
    build.build_site(runs, target, say=messages.append, **made)
    assert messages == []
    return target / "site"
