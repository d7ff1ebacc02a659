"""Pictures of the page for the documents: `make screenshots` writes them to docs/images/."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from furnished import CRAWL, furnish
from playwright.sync_api import Browser, expect
from stage import Stage

pytestmark = pytest.mark.full

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DESKTOP = {"width": 1180, "height": 820}
PICTURES = {
    "dashboard-crawls": ("/", "light", DESKTOP),
    "dashboard-crawl": (f"/crawls/{CRAWL}", "light", {"width": 1180, "height": 1150}),
    "dashboard-crawl-dark": (f"/crawls/{CRAWL}", "dark", {"width": 1180, "height": 1150}),
    "dashboard-hosts": (f"/crawls/{CRAWL}?tab=hosts", "light", DESKTOP),
    "dashboard-dead-letters": (f"/crawls/{CRAWL}?tab=dead", "dark", DESKTOP),
    "dashboard-phone": (f"/crawls/{CRAWL}", "light", {"width": 360, "height": 740}),
}


@contextlib.contextmanager
def crawling(stage: Stage) -> Iterator[None]:
    """Two workers go on with the crawl meanwhile."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(1.0):
            for worker in ("m1-1", "m1-2"):
                stage.beat(CRAWL, worker)
            stage.work(CRAWL, 8)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(work)
        try:
            yield
        finally:
            ended.set()
    done.result()


@pytest.mark.skipif(not os.environ.get("SHOAL_SCREENSHOTS"), reason="make screenshots writes files of this repository")
def test_pictures_for_the_documents(stage: Stage, browser: Browser) -> None:
    furnish(stage)
    IMAGES.mkdir(exist_ok=True)
    with stage.serving() as url, crawling(stage):
        for name, (path, scheme, size) in PICTURES.items():
            context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
            page = context.new_page()
            page.goto(url + path)
            expect(page.locator("#connection")).to_have_text("live")
            expect(page.locator("main .canvas path, main tbody tr").first).to_be_visible()
            if CRAWL in path:
                expect(page.locator(".tiles")).not_to_contain_text("0/s")
            page.screenshot(path=IMAGES / f"{name}.png")
            context.close()
