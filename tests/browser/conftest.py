"""A real browser on real servers: JupyterLab and Voilà on a copy of the notebooks, Chromium to drive them.

`lab` and `voila` are functions: call one with a notebook's name to get an `OpenNotebook` whose cells have
run without an error. One server of each kind serves the whole session. Screenshots go to the folder
`CONDNUM_SCREENSHOTS`, or to a temporary one.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TOKEN = "test"
SECONDS = 120  # until a server answers, or a notebook has run

_RUN_ALL = """async () => {
    const app = window.jupyterapp, widget = app.shell.currentWidget;
    await app.restored;
    await widget.context.ready;
    await widget.sessionContext.ready;
    await widget.sessionContext.session.kernel.info;
    await app.commands.execute('notebook:run-all-cells');
    const errors = [];
    for (const cell of widget.content.model.cells)
        for (const output of cell.toJSON().outputs || [])
            if (output.output_type === 'error') errors.push(output.ename + ': ' + output.evalue);
    return errors;
}"""
_DRAWN = """async () => {
    const content = window.jupyterapp.shell.currentWidget.content, found = [];
    const plotly = 'application/vnd.plotly.v1+json';
    for (const [index, cell] of content.widgets.entries()) {
        const outputs = cell.model.toJSON().outputs || [];
        const wanted = outputs.filter(output => output.data && plotly in output.data).length;
        if (!wanted) continue;
        await content.scrollToItem(index, 'start');
        const drawn = () => Array.from(cell.node.querySelectorAll('.js-plotly-plot'))
            .filter(g => g._fullLayout && g.querySelector('.main-svg'));
        for (let wait = 0; wait < 100 && drawn().length < wanted; wait++)
            await new Promise(done => setTimeout(done, 100));
        found.push(...drawn().map(g => g._fullLayout.title.text));
    }
    return found;
}"""
_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
_DARK = """() => {
    const figures = Array.from(document.querySelectorAll('.condnum-explorer .js-plotly-plot'))
        .filter(g => g._fullLayout);
    return figures.length > 0 && figures.every(g => g._fullLayout.paper_bgcolor === 'rgb(17,17,17)');
}"""
_FIGURES = """() => Array.from(document.querySelectorAll('.js-plotly-plot'))
    .filter(g => g.data && g.data.length && g.closest('.condnum-explorer')).length"""
_TEXT = """() => document.querySelector("h1")?.offsetParent
    ? {figures: document.querySelectorAll(".js-plotly-plot").length} : null"""
_READ = """index => {
    const plots = Array.from(document.querySelectorAll('.js-plotly-plot'))
        .filter(g => g.data && g.closest('.condnum-explorer'));
    const list = v => v === undefined || v === null ? null : Array.from(v, e =>
        (typeof e === 'number' && !Number.isFinite(e)) ? null
        : (e !== null && typeof e === 'object' && 'length' in e) ? list(e) : e);
    return plots[index].data.map(t => ({name: t.name, x: list(t.x), y: list(t.y), z: list(t.z)}));
}"""


@dataclass
class OpenNotebook:
    """A notebook in the browser whose cells have run."""

    page: Any  # of playwright, for what is not here
    screenshots: Path
    problems: list[str] = field(default_factory=list)  # errors of its scripts, requests to other hosts
    figures_when_text_appeared: int = -1  # in Voilà

    def plots(self) -> int:
        """How many live figures (of explorers) the page has."""
        return self.page.evaluate(_FIGURES)

    def drawn_titles(self) -> list[str]:
        """Scroll through JupyterLab's notebook; return the titles of the plain figures drawn in it."""
        return self.page.evaluate(_DRAWN)

    def explorer(self, index: int = 0) -> Any:
        """The element of the explorer that holds live figure `index`."""
        inner = self.page.locator(".condnum-explorer")
        return inner.nth(index)

    def figure_data(self, index: int = 0) -> list[dict[str, Any]]:
        """Name, x, y and z of each trace of a live figure; gaps (NaN) are None."""
        return self.page.evaluate(_READ, index)

    def slider(self, label: str, index: int = 0) -> Any:
        """The handle of a slider by its label (or the start of it), of the index-th explorer."""
        row = self.explorer(index).locator(".widget-slider", has_text=label)
        handle = row.get_by_role("slider").first
        handle.scroll_into_view_if_needed()
        return handle

    def dropdown(self, label: str, index: int = 0) -> Any:
        """The select of a dropdown by its label; `.select_option(label=…)` chooses."""
        return self.explorer(index).locator(".widget-dropdown", has_text=label).locator("select").first

    def button(self, label: str, index: int = 0) -> Any:
        """A button of an explorer."""
        return self.explorer(index).get_by_role("button", name=label, exact=True)

    def code(self, index: int = 0) -> str:
        """The line of Python that recreates the explorer as it is shown."""
        return self.explorer(index).locator(".widget-text input").last.input_value()

    def press(self, label: str, key: str, *, times: int = 1, index: int = 0) -> list[dict[str, Any]]:
        """Press a key on a slider, wait until the figure has changed, return its new data."""
        before = self.figure_data(index)
        handle = self.slider(label, index)
        handle.focus()
        for _ in range(times):
            handle.press(key)
        return self.changed(before, index)

    def changed(self, before: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
        """Wait until a figure differs from `before` and has come to rest; return its data."""
        limit, last = time.monotonic() + SECONDS, before
        while time.monotonic() < limit:
            self.page.wait_for_timeout(250)
            now = self.figure_data(index)
            if now == last and now != before:
                return now
            last = now
        raise AssertionError(f"the figure did not change within {SECONDS} s")

    def assert_shows(self, figure: Any, index: int = 0) -> None:
        """Assert that each trace of a live figure is that of a plotly figure, up to the last digits."""
        shown = self.figure_data(index)
        assert [trace["name"] for trace in shown] == [trace.name for trace in figure.data]
        for trace, computed in zip(shown, figure.data, strict=True):
            for axis in ("x", "y", "z"):
                values = computed.to_plotly_json().get(axis)
                wanted = np.asarray([] if values is None else values)
                got = np.asarray(trace[axis] or [])
                if wanted.dtype.kind in "fiub":  # JSON has no NaN: gaps are None there
                    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=1e-9)
                else:
                    assert got.tolist() == wanted.tolist()

    def darken(self) -> None:
        """Change JupyterLab's theme to the dark one; wait until the explorers have followed."""
        assert not self.page.evaluate(_DARK)
        self.page.evaluate(_THEME, "JupyterLab Dark")
        self.assert_dark()

    def assert_dark(self) -> None:
        """Wait until every explorer's figure is drawn light on dark."""
        self.page.wait_for_function(_DARK)

    def screenshot(self, name: str, index: int | None = None) -> Path:
        """Save a PNG of the window, or of one explorer; return its path."""
        path = self.screenshots / f"{name}.png"
        self.page.wait_for_timeout(300)  # plotly draws in the next frame
        if index is None:
            self.page.screenshot(path=path)
        else:
            self.explorer(index).scroll_into_view_if_needed()
            self.page.wait_for_timeout(300)
            self.explorer(index).screenshot(path=path)
        return path


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of screenshots."""
    chosen = os.environ.get("CONDNUM_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def needs_chromium() -> None:
    """Skip where there is no Chromium to drive."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: browser tests are skipped")


@pytest.fixture
def chromium(needs_chromium: None) -> Iterator[Any]:
    """A headless Chromium of this test: Playwright runs an event loop, which no other test may find."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def window(chromium: Any) -> Iterator[Any]:
    """A page of 1280 pixels, with a clipboard."""
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@contextmanager
def _server(command: list[str], home: Path, probe: str) -> Generator[None]:
    """Run a server with a home of its own until the block ends; `probe` is an address that answers."""
    environment = os.environ | {
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "OMP_NUM_THREADS": "1",
        **{
            f"JUPYTER{name}_DIR": str(home / name.strip("_").lower())
            for name in ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES")
        },
    }
    settings = home / "lab_settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = '{"fetchNews": "false", "checkForUpdates": false}'
    (settings / "notification.jupyterlab-settings").write_text(quiet)
    log = home / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=stream, stderr=stream, cwd=home
        )
    try:
        _wait_for(probe, process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.3)
    raise RuntimeError(f"the server at {address} did not start:\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _copied_notebooks(base: Path) -> Path:
    """Copy the notebooks: a browser saves what it opens."""
    folder = base / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of JupyterLab's copy of the notebooks."""
    return _copied_notebooks(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def lab_address(needs_chromium: None, lab_folder: Path) -> Iterator[str]:
    """The address of a JupyterLab on a copy of the notebooks."""
    pytest.importorskip("jupyterlab", reason="the extra notebooks is not installed")
    port, folder, base = _free_port(), lab_folder, lab_folder.parent
    (base / "home").mkdir()
    command = [
        "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with _server(command, base / "home", f"{address}/api/status?token={TOKEN}"):
        yield address


@pytest.fixture(scope="session")
def voila_address(needs_chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Voilà on a copy of the notebooks; cells that fail show their traceback."""
    pytest.importorskip("voila", reason="the extra notebooks is not installed")
    base = tmp_path_factory.mktemp("voila")
    port, folder = _free_port(), _copied_notebooks(base)
    (base / "home").mkdir()
    command = [
        "condnum.lessons.serve", str(folder), "--no-browser", f"--port={port}",
        "--VoilaConfiguration.show_tracebacks=True", f"--Voila.token={TOKEN}",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with _server(command, base / "home", f"{address}/?token={TOKEN}"):
        yield address


def _opened(page: Any, screenshots: Path) -> OpenNotebook:
    """Listen to the page's errors from the first."""
    opened = OpenNotebook(page, screenshots)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("request", lambda request: _note_stranger(opened, request.url))
    return opened


def _note_stranger(opened: OpenNotebook, url: str) -> None:
    """Note a request to another host: the notebooks work offline."""
    if url.startswith("http") and not url.startswith("http://127.0.0.1:"):
        opened.problems.append(f"asks another host: {url}")


@pytest.fixture
def lab(
    lab_address: str, lab_folder: Path, window: Any, screenshots: Path
) -> Iterator[Callable[..., OpenNotebook]]:
    """`lab("1_condition_number", figures=2)`: open in JupyterLab, run all, no error, figures drawn.

    `parameters` are filled in as papermill does it, before the notebook is opened.
    """

    def open_notebook(
        name: str, *, figures: int = 1, dark: bool = False, parameters: dict[str, Any] | None = None
    ) -> OpenNotebook:
        opened = _opened(window, screenshots)
        if parameters:
            name = _with_parameters(lab_folder, name, parameters)
        window.goto(f"{lab_address}/lab/tree/{name}.ipynb?reset&token={TOKEN}")
        window.wait_for_function(
            "window.jupyterapp?.shell?.currentWidget?.sessionContext", timeout=SECONDS * 1000
        )
        # The server remembers the theme of the test before.
        window.evaluate(_THEME, "JupyterLab Dark" if dark else "JupyterLab Light")
        window.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        errors = window.evaluate(_RUN_ALL)
        assert errors == []
        for _ in range(400):  # Lab draws outputs only where they are in sight
            if opened.plots() >= figures:
                break
            window.evaluate(_SCROLL)
            window.wait_for_timeout(300)
        assert opened.plots() == figures, opened.problems
        return opened

    yield open_notebook
    _end_kernels(lab_address)


def _with_parameters(folder: Path, name: str, parameters: dict[str, Any]) -> str:
    """Write a notebook with other parameters beside it; return its name."""
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    node = load_notebook_node(str(folder / f"{name}.ipynb"))
    nbformat.write(parameterize_notebook(node, parameters), folder / f"{name}_small.ipynb")
    return f"{name}_small"


def _end_kernels(address: str) -> None:
    """End what the test's notebooks left running: each kernel holds 800 MB."""
    with urllib.request.urlopen(f"{address}/api/sessions?token={TOKEN}", timeout=10) as answer:
        sessions = json.load(answer)
    for session in sessions:
        location = f"{address}/api/sessions/{session['id']}?token={TOKEN}"
        urllib.request.urlopen(urllib.request.Request(location, method="DELETE"), timeout=20).close()


@pytest.fixture
def voila(voila_address: str, window: Any, screenshots: Path) -> Callable[..., OpenNotebook]:
    """`voila("1_condition_number", figures=2)`: open in Voilà, wait for the figures; no traceback."""

    def open_notebook(name: str, *, figures: int = 1, dark: bool = False, width: int = 1280) -> OpenNotebook:
        opened = _opened(window, screenshots)
        window.set_viewport_size({"width": width, "height": 900})
        theme = "&theme=dark" if dark else ""
        window.goto(f"{voila_address}/voila/render/{name}.ipynb?token={TOKEN}{theme}", wait_until="commit")
        seen = window.wait_for_function(_TEXT, timeout=SECONDS * 1000)
        opened.figures_when_text_appeared = seen.json_value()["figures"]
        window.wait_for_function(f"({_FIGURES})() >= {figures}", timeout=SECONDS * 1000)
        assert window.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
        assert window.locator(".voila-error, .traceback").count() == 0
        assert opened.plots() == figures
        return opened

    return open_notebook


_SCROLL = """() => {
    const scroller = document.querySelector('.jp-WindowedPanel-outer');
    if (!scroller) return;
    const end = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 5;
    scroller.scrollTop = end ? 0 : scroller.scrollTop + 400;
}"""
