"""One Chromium and one server for a module of tests; each test has a page of its own, without errors on its console."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from console import Errors
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from stage import SECONDS, Stage

from shoal.testing.servers.programs import find_program


# Not for the session: Playwright's event loop runs in this thread, and tests of other modules have loops of their own.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium. Its sandbox cannot be set up by root, and needs none for pages of our own."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    started = playwright.chromium.launch(executable_path=find_program("chromium"), args=arguments)
    yield started
    started.close()


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
