"""What tests of several folders share: the real data, the command line, one kernel."""

import functools
import io
import os
import re
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from pictures import paint
from waiting import PATIENCE

# The same examples in every run, and no limit on their time: a failure is one for everybody.
slow = [HealthCheck.too_slow]
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=slow)
settings.load_profile("same")

#: What one worker makes for several files, and long files, the longest first: patterns of their tests' names.
LONGEST = {
    "site": "/test_site|test_notebooks",
    **{name: name for name in ("test_readme", "browser/test_")},
}


def group_of(nodeid: str) -> str:
    """Return what a test shares with others: a site, or its file."""
    found = (name for name, pattern in LONGEST.items() if re.search(pattern, nodeid))
    return next(found, nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Leave to one worker the tests of a group; under pytest 9.2 the marks of xdist 3.8 have no effect."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Trace no lines where that costs most: in what takes long, or tries a line with many examples."""
    plugin = item.config.pluginmanager.getplugin("_cov")
    traced = plugin and plugin.cov_controller
    many = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if not traced or not (many or any(map(item.get_closest_marker, ("slow", "long", "browser")))):
        return (yield)
    traced.pause()
    try:
        return (yield)
    finally:
        traced.resume()


def pytest_runtest_setup() -> None:
    """Let no test depend on luck: what torch draws without a generator is the same in every run."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the longest tests to CI; begin with what takes long, so that no worker is left with it."""
    if not os.environ.get("CONDNUM_LONG"):
        left = pytest.mark.skip(reason="takes long, and runs in CI: CONDNUM_LONG=1 make test")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(left)
    places = list(LONGEST)
    groups = {item: group_of(item.nodeid) for item in items}
    items.sort(key=lambda item: places.index(groups[item]) if groups[item] in places else len(places))


@pytest.fixture(scope="session", autouse=True)
def other_last_bits() -> Iterator[None]:
    """With CONDNUM_NOISE=1 the bundled data have other last bits, on which no result may depend."""
    if not os.environ.get("CONDNUM_NOISE"):
        yield
        return
    from condnum.data.digits import Digits
    from condnum.data.task_pair import TaskPair

    def noisy(values: Any) -> Any:
        """Change the last three bits, 1e-15 of a number at most; a second time changes nothing."""
        changed = values.copy()
        changed.view(np.int64)[values != 0] |= 7
        return changed

    made, pixels = TaskPair.__post_init__, Digits.pixels

    def other(pair: TaskPair) -> None:
        made(pair)
        for name in ("X_P", "X_H", "X_loss", "X_probe"):
            if (values := getattr(pair, name)) is not None and pair.name in ("house-prices", "diabetes"):
                object.__setattr__(pair, name, noisy(values))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskPair, "__post_init__", other)
        patch.setattr(Digits, "pixels", lambda *given, **options: noisy(pixels(*given, **options)))
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Make `ROOT/<prefix>/<class>/<i>.png` for each prefix, `count` images per class."""

    def make(
        prefixes: tuple[str, ...] = ("train", "test"),
        classes: tuple[str, ...] = ("cat", "dog"),
        count: int = 5,
        suffix: str = "png",
        root: Path = tmp_path / "data",
    ) -> Path:
        for p, prefix in enumerate(prefixes):
            for c, name in enumerate(classes):
                for i in range(count):
                    gray = 30 + 150 * c // max(1, len(classes) - 1)
                    paint(root / prefix / name / f"{i}.{suffix}", gray, seed=100 * p + i)
        return root

    return make


REPOSITORY = Path(__file__).resolve().parents[1]


Condnum = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start a process that Ctrl-C can stop, even where the tests themselves run in the background.

    A shell starts background jobs with SIGINT ignored, children inherit that, and Python then
    installs no handler.
    """

    def launch(command: list[str], **options: Any) -> subprocess.Popen[str]:
        heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen(command, preexec_fn=heed, text=True, **options)

    return launch


_PREPARE = """
get_ipython().run_line_magic("reset", "-f")
import os
os.environ.clear()
os.environ.update({environment!r})
os.chdir({folder!r})
"""


class SharedKernel:
    """A kernel that starts when it is first wanted and keeps its imports; each user finds it empty."""

    def __init__(self, folder: Path) -> None:
        from condnum.page.run import running_kernel

        self._folder = folder
        self._stack = ExitStack()
        self._manager: Any = None
        self._starter = running_kernel  # before any test stands in for it

    @contextmanager
    def running(self, *, cwd: Path, beside: Path) -> Generator[Any]:
        """Stand in for `condnum.page.run.running_kernel`: its folder, no new process."""
        if self._manager is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("OMP_NUM_THREADS", "1")  # read once, by the libraries
                self._manager = self._stack.enter_context(
                    self._starter(cwd=self._folder, beside=self._folder)
                )
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.execute(_PREPARE.format(environment=variables, folder=str(cwd)))
        yield self._manager

    def execute(self, code: str) -> None:
        """Run code in the kernel; an error there is one here."""
        client = self._manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE)
            reply = client.execute_interactive(code, timeout=PATIENCE, store_history=False)
        finally:
            client.stop_channels()
        assert reply["content"]["status"] == "ok", reply["content"]

    def stop(self) -> None:
        """End the kernel, if there is one."""
        self._stack.close()


@pytest.fixture(scope="session")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKernel]:
    """The kernel of this test process."""
    kernel = SharedKernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.stop()


@pytest.fixture
def on_shared_kernel(shared_kernel: SharedKernel, monkeypatch: pytest.MonkeyPatch) -> SharedKernel:
    """Whatever this test runs as a notebook runs on the shared kernel: its imports are there."""
    from condnum.page import run as runner

    monkeypatch.setattr(runner, "running_kernel", shared_kernel.running)
    return shared_kernel


@pytest.fixture(scope="session")
def condnum(shared_kernel: SharedKernel) -> Condnum:
    """The command line, run here, on one kernel for all: `condnum("data", cwd=folder)`.

    A process and a kernel of their own cost several seconds of imports per call. What needs them (signals,
    a kernel that ends with its command) is tested with real ones: `start`.
    """
    from condnum.cli import main
    from condnum.page import run as runner

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(runner, "running_kernel", shared_kernel.running)
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="session")
def lesson_run(
    shared_kernel: SharedKernel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`lesson_run("2_alignment")`: the folder of a lesson that ran without widgets; each runs once."""
    from lessons.test_notebooks import PARAMETERS

    from condnum.page import run as runner
    from condnum.page.notebook import ParameterNotebook

    @functools.cache
    def run(name: str) -> Path:
        book = ParameterNotebook.find(name)
        folder = tmp_path_factory.mktemp("lessons") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "running_kernel", shared_kernel.running)
            runner.run_notebook(book, PARAMETERS.get(name, {}), folder, quiet=True)
        return folder

    return run


@pytest.fixture(scope="session")
def site_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sites are built, with the lessons and recordings that one has made and another takes."""
    return tmp_path_factory.mktemp("site cache")


_REAL = os.environ.get("CONDNUM_DATA")
_SHARED = REPOSITORY.parent / "shared" / "data"


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data; the variable is set to it."""
    folder = Path(_REAL).resolve() if _REAL else _SHARED
    if not (folder / "house_prices" / "train.csv").is_file() or not (folder / "MNIST" / "raw").is_dir():
        pytest.skip(f"no real data in {folder}; set CONDNUM_DATA to the folder that holds it")
    monkeypatch.setenv("CONDNUM_DATA", str(folder))
    return folder
