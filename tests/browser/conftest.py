"""One Chromium for all modules, a server for each; each test has a page of its own, without errors on its console."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from console import Errors
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from stage import SECONDS, Stage

from shoal.testing.servers.programs import find_program

HERE = Path(__file__).parent


class Chromium:
    """Debian's Chromium, started for the first test of this folder."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def started(self) -> Browser:
        if self._browser is None:
            expect.set_options(timeout=SECONDS * 1000)
            self._playwright = sync_playwright().start()
            # Its sandbox cannot be set up by root, and needs none for pages of our own.
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            path = find_program("chromium")
            self._browser = self._playwright.chromium.launch(executable_path=path, args=arguments)
        return self._browser

    def stop(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._playwright = self._browser = None


CHROMIUM = Chromium()


# Playwright's event loop runs in this thread, and tests of other folders have loops of their own.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Stop Chromium before a test of another folder begins."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            CHROMIUM.stop()


@pytest.fixture(scope="module")
def browser() -> Browser:
    return CHROMIUM.started()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A visitor with no history."""
    made = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", reduced_motion="reduce")
    made.set_default_timeout(SECONDS * 1000)
    yield made
    made.close()


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def page(context: BrowserContext, errors: Errors) -> Iterator[Page]:
    """A page whose console must stay empty, and that may ask nobody but its own server."""
    made = context.new_page()
    made.on("console", errors.heard)
    made.on("pageerror", lambda error: errors.lines.append(str(error)))
    made.on(
        "request",
        lambda request: None if request.url.startswith("http://127.0.0.1:") else errors.lines.append(request.url),
    )
    yield made
    made.close()
    assert errors.unexpected == []
