"""Scraped text can never become markup or a script: hostile strings in every place, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console import Errors
from playwright.sync_api import Page, expect
from stage import Stage

CRAWL = "shop-1"
MARKUP = "<img src=x onerror=\"window.hit='markup'\"><script>window.hit='script'</script>"
SCRIPT_LINK = "javascript:window.hit='link'"
DATA_LINK = "data:text/html,<script>window.hit='data'</script>"
QUOTES = "\"'><svg onload=\"window.hit='svg'\">"
URL = "https://shop.test/?q=%22%3E%3Cscript%3Ewindow.hit=1%3C/script%3E"
HOSTILE = (MARKUP, SCRIPT_LINK, DATA_LINK, QUOTES, "‮gnp.exe", "{{7*7}}", "]]>", "\x00\x1b[31m")


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    stage.crawl(CRAWL, [URL, *(f"https://shop.test/{n}" for n in range(20))])
    samples = [(reason, text) for reason in ("scheme", MARKUP) for text in HOSTILE]
    stage.work(CRAWL, 3, outcome=MARKUP, rejected={"scheme": 9, MARKUP: 1}, samples=samples, notes={MARKUP: 3})
    for text in HOSTILE:
        stage.work(CRAWL, 1, dead=text, detail=text)
    rows = [
        (f"{n} {text}", url, {"title": text, text: text, "nested": {text: [text]}})
        for n, (text, url) in enumerate(zip(HOSTILE, [SCRIPT_LINK, DATA_LINK, URL, *HOSTILE], strict=False))
    ]
    stage.store(CRAWL, rows)
    stage.beat(CRAWL, f"w{MARKUP}", host=MARKUP, troubles=(MARKUP, SCRIPT_LINK))
    with stage.serving() as url:
        yield url


TABS = ("overview", "workers", "hosts", "exits", "items", "dead", "rejected")


@pytest.mark.parametrize("tab", TABS)
def test_shows_hostile_text_as_text(server: str, page: Page, tab: str) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab={tab}")
    expect(page.locator("#connection")).to_have_text("live")
    shown = {"overview": "caption:text('Outcomes')", "exits": ".empty"}.get(tab, "tbody tr")
    expect(page.locator(f".panel {shown}").first).to_be_visible()
    for fold in page.locator(".panel details").all():
        fold.evaluate("fold => { fold.open = true; }")
    check(page)
    if tab not in ("hosts", "exits"):
        expect(page.locator(".panel")).to_contain_text("<img src=x onerror=")


@pytest.mark.parametrize("url", [URL, SCRIPT_LINK, MARKUP])
def test_why_shows_hostile_urls_as_text(server: str, page: Page, errors: Errors, url: str) -> None:
    errors.expect("422", "400", "404")
    page.goto(f"{server}/crawls/{CRAWL}/why")
    page.get_by_label("URL").fill(url)
    page.get_by_role("button", name="Tell").click()
    expect(page.locator("article, [role=alert]").first).to_be_visible()
    check(page)


def check(page: Page) -> None:
    """Nothing ran, nothing was made of the text, and every link is harmless."""
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, main iframe, main [onerror], main [onload], main [style]").count() == 0
    for link in page.locator("main a").all():
        target = link.get_attribute("href") or ""
        assert target.startswith(("/", "https://", "http://")), target
        assert not target.startswith("//")
        if not target.startswith("/"):
            assert link.get_attribute("rel") == "noreferrer noopener nofollow"
            assert link.get_attribute("target") == "_blank"
