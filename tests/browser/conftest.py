"""A real browser: Chromium on pages from the disk."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
]


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
    """A page of 1280 pixels."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
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


@pytest.fixture(scope="session")
def site(
    condnum: Callable[..., Any],
    lesson_run: Callable[[str], Path],
    site_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The site of a small run, with every lesson."""
    from condnum.page import site as pages

    root, target = tmp_path_factory.mktemp("reproduction"), tmp_path_factory.mktemp("reports")
    words = "run house-prices --data embedded --seeds 2 --steps 60 -j 1 -q --out house-prices"
    assert condnum(*words.split(), cwd=root).returncode == 0
    for name in pages.LESSONS:
        folder = pages.lesson_path(name, site_cache).parent
        if not folder.exists():
            shutil.copytree(lesson_run(name), folder)
    pages.build_site(root, target, cache=site_cache)
    return target / "site"
