"""A spider started, and URLs added, in a real browser: the crawl runs in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console import Errors
from playwright.sync_api import Page, expect
from stage import Stage

pytestmark = pytest.mark.full

SPIDER = """
from shoal import Spider

class Quick(Spider):
    start = ["http://127.0.0.1:9/never"]
    city = "Bonn"

    def parse(self, page):
        return None
"""


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    spiders = stage.folder / "spiders"
    spiders.mkdir()
    (spiders / "quick.py").write_text(SPIDER)
    stage.crawl("shop-1", ["https://shop.test/1"], fed=False)
    with stage.serving("--spiders", str(spiders)) as url:
        yield url


def test_starts_a_spider_and_shows_its_crawl(server: str, page: Page, errors: Errors) -> None:
    errors.expect("422")
    page.goto(server)
    page.get_by_role("button", name="Start a spider").click()
    dialog = page.get_by_role("dialog", name="Start a spider")
    dialog.get_by_label("Settings").fill("nonsense")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_have_text('"nonsense" is not name=value')
    dialog.get_by_label("Settings").fill("max_attempts=1\nallow_private=true")
    dialog.get_by_label("Arguments").fill("ctiy=Ulm")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("did you mean city?")
    dialog.get_by_label("Arguments").fill("city=Ulm")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="quick-1")).to_be_visible()
    expect(page).to_have_url(f"{server}/crawls/quick-1")
    expect(page.get_by_role("button", name="Re-run quick-1")).to_be_visible()


def test_adds_urls(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/shop-1")
    page.get_by_role("button", name="Add URLs").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("URLs").fill("https://shop.test/2\nhttps://shop.test/1\nmailto:a@shop.test")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("3 URLs taken: 1 new, 1 known already, 1 kept out")).to_be_visible()
    expect(page.locator(".progress-text")).to_contain_text("0 of 2")
