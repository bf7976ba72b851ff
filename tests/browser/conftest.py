"""A real browser on real servers: JupyterLab and Voilà on a copy of the notebooks, Chromium to drive them.

`lab` and `voila` are functions: call one with a notebook's name to get an `OpenNotebook` whose cells have
run without an error. One server of each kind serves the whole session.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from browser.walking import LESSONS
from golden_runs import SHOWN
from waiting import PATIENCE, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TOKEN = "test"
_STRANGER = re.compile(r"^https?://(?!127\.0\.0\.1:).*")  # on another host

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
_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
_DARK = """() => {
    const figures = Array.from(document.querySelectorAll('.condnum-explorer .js-plotly-plot'))
        .filter(g => g._fullLayout);
    return figures.length > 0 && figures.every(g => g._fullLayout.paper_bgcolor === '#14181e');
}"""
_FIGURES = """() => Array.from(document.querySelectorAll('.js-plotly-plot'))
    .filter(g => g.data && g.data.length && g.closest('.condnum-explorer')).length"""
_READ = """index => {
    const plots = Array.from(document.querySelectorAll('.condnum-explorer .js-plotly-plot'));
    const list = v => v === undefined || v === null ? null : Array.from(v, e =>
        (typeof e === 'number' && !Number.isFinite(e)) ? null
        : (e !== null && typeof e === 'object' && 'length' in e) ? list(e) : e);
    return plots[index]._fullData.map(t => ({name: t.name, x: list(t.x), y: list(t.y), z: list(t.z)}));
}"""
#: Scrolls on by 400 pixels, unless all figures are drawn: Lab draws outputs only where they are in sight.
_SEEN = f"""wanted => {{
    const scroller = document.querySelector('.jp-WindowedPanel-outer');
    if (({_FIGURES})() >= wanted) return true;
    if (!scroller) return false;
    const end = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 5;
    scroller.scrollTop = end ? 0 : scroller.scrollTop + 400;
}}"""


class OpenNotebook:
    """A notebook in the browser whose cells have run; its explorers are counted from `first`."""

    def __init__(self, page: Any) -> None:
        self.page, self.first = page, 0
        self.problems: list[str] = []  # errors of its scripts, requests to other hosts
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.problems.extend(_STRANGER.findall(request.url)))

    def plots(self) -> int:
        """How many live figures (of explorers) the page has."""
        return self.page.evaluate(_FIGURES)

    def explorer(self, index: int = 0) -> Any:
        return self.page.locator(".condnum-explorer").nth(self.first + index)

    def turn_to(self, label: str) -> None:
        """Count explorers from the first one that has these words."""
        texts = self.page.locator(".condnum-explorer").all_text_contents()
        self.first = next(i for i, text in enumerate(texts) if label in text)

    def dropdown(self, label: str, index: int = 0) -> Any:
        return self.explorer(index).locator(".condnum-row", has_text=label).locator("select").first

    def button(self, label: str, index: int = 0) -> Any:
        return self.explorer(index).get_by_role("button", name=label, exact=True)

    def code(self, index: int = 0) -> str:
        """The line of Python that recreates the explorer as it is shown."""
        self.page.evaluate("navigator.clipboard.writeText('')")
        self.button("Copy settings as code", index).click()
        return self.page.wait_for_function("() => navigator.clipboard.readText()").json_value()

    def press(self, label: str, key: str, index: int = 0) -> None:
        """Press a key on a slider, by the start of its label."""
        handle = self.explorer(index).get_by_role("slider", name=label).first
        handle.scroll_into_view_if_needed()
        handle.focus()
        self.change(lambda: handle.press(key), index)

    def change(self, act: Callable[[], Any], index: int = 0) -> None:
        """Do something, and wait until it is answered and a figure differs from before."""
        before, busy = self.figure_data(index), self.page.locator(".condnum-explorer[aria-busy=true]")
        act()
        wait_until(lambda: not busy.count() and self.figure_data(index) != before)

    def figure_data(self, index: int = 0) -> list[dict[str, Any]]:
        """Name, x, y and z of each trace of a live figure; gaps (NaN) are None."""
        return self.page.evaluate(_READ, self.first + index)

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
        """Change JupyterLab's theme to the dark one; wait until the explorers' figures have followed."""
        assert not self.page.evaluate(_DARK)
        self.page.evaluate(_THEME, "JupyterLab Dark")
        self.page.wait_for_function(_DARK)


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
    for name in ("site", "audit_page"):
        if any(name in getattr(item, "fixturenames", ()) for item in here):
            request.getfixturevalue(name)
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

    def told(message: Any) -> None:
        if message.type in ("error", "warning") and "GL Driver Message" not in message.text:  # of no page
            window.problems.append(message.text)

    window.on("console", told)
    window.on("pageerror", lambda error: window.problems.append(str(error)))
    window.on("request", lambda request: window.fetched.append(request.url))
    window.on("requestfailed", lambda request: window.problems.append(f"not loaded: {request.url}"))
    return window


def _write(path: Path, notebooks: Mapping[Path, dict[str, Any]]) -> None:
    """Write notebooks, each with its parameters, one after the other as one, which one kernel serves."""
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    whole = nbformat.v4.new_notebook()
    for notebook, parameters in notebooks.items():
        node = load_notebook_node(str(notebook))
        whole.metadata = node.metadata
        for cell in parameterize_notebook(node, parameters).cells:
            whole.cells.append(nbformat.from_dict({**cell, "id": f"cell-{len(whole.cells)}"}))
    nbformat.write(whole, path)


@contextmanager
def _server(base: Path, command: Callable[[Path], list[str]], probe: str) -> Generator[tuple[str, Path]]:
    """Serve a copy of the notebooks, as a browser saves what it opens, from a home of its own.

    `command` takes their folder and lets the system choose the port; `probe` is a path that answers once the
    server is up. Yields the address and the folder.
    """
    from lessons.test_notebooks import FASTER

    folder, home = base / "notebooks", base / "home"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    _write(folder / "lessons.ipynb", {lesson: FASTER.get(lesson.stem, {}) for lesson in LESSONS})
    names = ("_CONFIG", "_DATA", "_RUNTIME", "LAB_SETTINGS", "LAB_WORKSPACES")
    folders = {f"JUPYTER{name}_DIR": str(home / name.strip("_").lower()) for name in names}
    variables = {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1", **folders}
    quiet = {
        "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
        # a save that meets one by itself would ask which of both is to be kept
        "docmanager-extension/plugin": '{"autosave": false}',
    }
    for name, settings in quiet.items():
        path = home / "lab_settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(settings)
    log, environment = home / "server.log", os.environ | variables
    with log.open("w") as stream:
        whole = [sys.executable, "-m", *command(folder)]
        process = subprocess.Popen(whole, env=environment, stdout=stream, stderr=stream, cwd=home)

    def listens() -> list[int]:
        found = psutil.Process(process.pid).net_connections("tcp")
        return [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN]

    try:
        try:
            address = f"http://127.0.0.1:{wait_until(listens, process)[0]}"
            urllib.request.urlopen(f"{address}{probe}token={TOKEN}", timeout=PATIENCE).close()
        except (AssertionError, OSError) as error:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}") from error
        yield address, folder
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def lab_server(needs_chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a JupyterLab, and the folder of its copy of the notebooks."""
    pytest.importorskip("jupyterlab", reason="the extra notebooks is not installed")

    def command(folder: Path) -> list[str]:
        return [
            *("jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"),
            *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
            *(f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"),
        ]

    with _server(tmp_path_factory.mktemp("lab"), command, "/api/status?") as served:
        yield served


@pytest.fixture(scope="session")
def voila_address(needs_chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Voilà on a copy of the notebooks; cells that fail show their traceback."""
    pytest.importorskip("voila", reason="the extra notebooks is not installed")

    def command(folder: Path) -> list[str]:
        serve = ["condnum.lessons.serve", str(folder), "--no-browser"]
        return [*serve, "--port=0", f"--Voila.token={TOKEN}"]

    with _server(tmp_path_factory.mktemp("voila"), command, "/voila/tree?") as (address, _):
        yield address


@pytest.fixture
def lab(lab_server: tuple[str, Path], window: Any) -> Iterator[Callable[..., OpenNotebook]]:
    """`lab("1_condition_number", figures=2)`: open in JupyterLab, run all, no error, figures drawn.

    `parameters` are filled in as papermill does it, before the notebook is opened. With `again` it is saved,
    its kernel ends, and it is opened again without a run.
    """
    address, folder = lab_server

    def visit(name: str) -> None:
        window.goto(f"{address}/lab/tree/{name}.ipynb?reset&token={TOKEN}")
        window.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext")

    def open_notebook(
        name: str, *, figures: int = 1, parameters: dict[str, Any] | None = None, again: bool = False
    ) -> OpenNotebook:
        opened = OpenNotebook(window)
        if again:
            window.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
            _end_kernels(address)
            visit(name)
            return opened
        if parameters:
            source, name = folder / f"{name}.ipynb", f"{name}_small"
            _write(folder / f"{name}.ipynb", {source: parameters})
        visit(name)
        window.evaluate(_THEME, "JupyterLab Light")  # the server remembers that of the test before
        window.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        assert window.evaluate(_RUN_ALL) == []
        window.wait_for_function(_SEEN, arg=figures, polling=300, timeout=PATIENCE * 1000)
        assert opened.plots() == figures, opened.problems
        return opened

    yield open_notebook
    _end_kernels(address)


def _end_kernels(address: str) -> None:
    """End what a test's notebooks left running: each kernel holds 800 MB."""
    with urllib.request.urlopen(f"{address}/api/sessions?token={TOKEN}", timeout=PATIENCE) as answer:
        sessions = json.load(answer)
    for session in sessions:
        location = f"{address}/api/sessions/{session['id']}?token={TOKEN}"
        urllib.request.urlopen(urllib.request.Request(location, method="DELETE"), timeout=PATIENCE).close()


@pytest.fixture
def voila(voila_address: str, window: Any) -> Callable[..., OpenNotebook]:
    """`voila("1_condition_number", figures=2)`: open in Voilà, wait for the figures; no traceback."""

    def open_notebook(name: str, *, figures: int = 1, width: int = 1280) -> OpenNotebook:
        opened = OpenNotebook(window)
        window.set_viewport_size({"width": width, "height": 900})
        window.goto(f"{voila_address}/voila/render/{name}.ipynb?token={TOKEN}", wait_until="commit")
        window.wait_for_function(f"({_FIGURES})() >= {figures}", timeout=PATIENCE * 1000)
        errors = ".jp-RenderedText[data-mime-type='application/vnd.jupyter.error'], .voila-error, .traceback"
        assert window.locator(errors).count() == 0
        assert opened.plots() == figures
        return opened

    return open_notebook


# Pages without a server.


@pytest.fixture(scope="session")
def audit_page(condnum: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an audit: two tables with a singular task, the answer among the features, an extractor."""
    folder, rng = tmp_path_factory.mktemp("audit"), np.random.default_rng(0)
    X = rng.normal(size=(240, 12)) * np.geomspace(1, 1e-3, 12)
    X[:, 11] = 0
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(12)])
    frame["label"] = (X[:, 0] > 0).astype(int)
    frame[:120].to_csv(folder / "P.csv", index=False)
    frame[120:].to_csv(folder / "H.csv", index=False)
    np.save(folder / "theta.npy", np.diag([*np.geomspace(1, 1e3, 12), 1.0]))
    np.save(folder / "y.npy", frame["label"][120:].to_numpy())
    done = condnum(
        "audit", "--pretrain", "P.csv", "--harmful", "H.csv", "--theta", "theta.npy", "--targets", "y.npy",
        "--bootstrap", "20", "--out", "out", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "look like the answer (label: a function of the targets)" in " ".join(done.stderr.split())
    return folder / "out" / "report.html"


@pytest.fixture(scope="session")
def site(
    golden_run: Callable[..., Any],
    shared_kernel: Any,
    site_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The site of a small reproduction: three finished runs, one failure, every lesson and explorer.

    One explorer is recorded at a few values of its controls. Of the others each control has two, and all
    states look alike.
    """
    from lessons.test_notebooks import FASTER

    from condnum.lessons import explorers
    from condnum.lessons.frame import recording
    from condnum.report import run as runner
    from condnum.report.experiments import Experiment, ExperimentResult
    from condnum.site import build

    root, target = tmp_path_factory.mktemp("reproduction"), tmp_path_factory.mktemp("reports")
    for name in SHOWN:
        shutil.copytree(golden_run(name)[1], root / name)

    def run(name: str, *ended: Any) -> ExperimentResult:
        return ExperimentResult(Experiment(name, f"Title of {name}", "One sentence.", name), *ended)

    runs = [run(name, root / name, "finished", "") for name in SHOWN]
    runs.append(run("deep", None, "failed", "no memory"))
    few = {"exponent": [0.0, 0.5, 1.0], "pretrain_kappa": [10.0, 100.0], "harmful_kappa": [2.0, 10.0]}
    said, values, payload = list[str](), recording.recorded_values, recording.payload
    first = cache(lambda explorer: payload(explorer, recording.lattice(explorer)[0]))

    def two(explorer: type[Any]) -> dict[str, list[Any]]:
        return {name: kept[:2] for name, kept in values(explorer).items()}

    def faster(book: Any, _: Any, folder: Path, **options: Any) -> Path:
        return runner.run_notebook(book, FASTER.get(book.path.stem, {}), folder, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "recorded_values", lambda _: few)
        explorers.record_all(site_cache / "recorded", ["AlignedTasksExplorer"], jobs=1)
        patch.setattr(recording, "recorded_values", two)
        patch.setattr(recording, "payload", lambda explorer, _: first(explorer))
        explorers.record_all(site_cache / "recorded", jobs=1)
        patch.setattr(runner, "running_kernel", shared_kernel.running)
        patch.setattr(build.os, "cpu_count", lambda: 1)  # one kernel: one lesson after the other
        patch.setattr(build, "run_notebook", faster)
        made = {"cache": site_cache, "explorers": list(explorers.EXPLORERS)}
        build.build_site(runs, target, say=said.append, **made)
    assert said == []
    return target / "site"
