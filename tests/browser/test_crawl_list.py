"""The list of crawls in a real browser: it loads, stays up to date by itself, and steers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from stage import Stage

from shoal.testing.waiting import wait_until

URLS = [f"https://shop.test/{number}" for number in range(40)]


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    stage.crawl("shop-1", URLS)
    with stage.serving() as url:
        yield url


def test_shows_state_progress_and_errors(server: str, stage: Stage, page: Page) -> None:
    stage.work("shop-1", 10)
    page.goto(server)
    row = page.get_by_role("row").filter(has_text="shop-1")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("10 of 40")
    expect(page).to_have_title("Crawls · shoal")


def test_follows_a_crawl_without_a_reload(server: str, stage: Stage, page: Page) -> None:
    page.goto(server)
    row = page.get_by_role("row").filter(has_text="shop-1")
    expect(page.locator("#connection")).to_have_text("live")
    stage.work("shop-1", 5)
    expect(row).to_contain_text("15 of 40")
    stage.crawl("other-1", ["https://other.test/"], fed=False)
    expect(page.get_by_role("row").filter(has_text="other-1")).to_be_visible()


def test_pauses_and_resumes(server: str, stage: Stage, page: Page) -> None:
    page.goto(server)
    page.get_by_role("button", name="Pause shop-1").click()
    row = page.get_by_role("row").filter(has_text="shop-1")
    expect(row).to_contain_text("paused")
    wait_until(lambda: stage.state("shop-1") == "paused", otherwise="the crawl was not paused")
    page.get_by_role("button", name="Resume shop-1").click()
    expect(row).to_contain_text("running")


def test_says_what_cancelling_does_before_it_does_it(server: str, stage: Stage, page: Page) -> None:
    stage.crawl("gone-1", URLS)
    page.goto(server)
    page.get_by_role("button", name="Cancel gone-1").click()
    dialog = page.get_by_role("dialog", name="Cancel gone-1?")
    expect(dialog).to_contain_text("40 tasks that wait or are in flight will be set aside")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert stage.state("gone-1") == "running"
    page.get_by_role("button", name="Cancel gone-1").click()
    dialog.get_by_role("button", name="Cancel the crawl").click()
    row = page.get_by_role("row").filter(has_text="gone-1")
    expect(row).to_contain_text("cancelled")
    page.get_by_role("button", name="Delete gone-1").click()
    page.get_by_role("button", name="Delete the crawl").click()
    expect(row).to_have_count(0)


@pytest.mark.full
def test_gives_a_crawl_another_priority(server: str, stage: Stage, page: Page) -> None:
    stage.crawl("late-1", URLS)
    page.goto(f"{server}/crawls/late-1")
    page.get_by_role("button", name="Priority late-1").click()
    dialog = page.get_by_role("dialog", name="Priority of late-1")
    dialog.get_by_role("spinbutton").fill("-7")
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_text("spider shop, begun")).to_contain_text("priority -7")
    page.goto(server)
    expect(page.get_by_role("row").filter(has_text="late-1")).to_contain_text("priority -7")
