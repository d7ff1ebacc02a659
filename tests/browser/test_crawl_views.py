"""Each part of a crawl in a real browser: it shows what the frontier and the store have, and changes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from console import Errors
from furnished import CRAWL, furnish
from playwright.sync_api import Page, Request, expect
from stage import Stage

from shoal.frontier.base import Frontier
from shoal.model import DeadFilter

SEVERAL_POINTS = re.compile(r"^M[\d. ]+L[\d. ]+L")


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    furnish(stage)
    with stage.serving() as url:
        yield url


def dead_letters(stage: Stage) -> int:
    async def act(frontier: Frontier) -> int:
        return len(await frontier.dead(CRAWL, DeadFilter(), limit=1000))

    return stage.run(act)


def test_overview_has_charts_and_outcomes_that_add_up(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}")
    outcomes = page.get_by_role("table", name="Outcomes")
    expect(outcomes.get_by_role("row").filter(has_text="sum")).to_contain_text("1,090")
    expect(page.get_by_text("1,060 done + 30 dead = 1,090")).to_be_visible()
    chart = page.get_by_role("img", name="Pages per second, now")
    expect(chart.locator("path")).to_have_attribute("d", SEVERAL_POINTS)
    page.get_by_text("Seconds per request as a table").click()
    table = page.get_by_role("table", name="Seconds per request")
    expect(table.get_by_role("columnheader", name="99 %")).to_be_visible()
    assert table.get_by_role("row").count() > 20


def test_zoom_reads_the_history_of_that_time(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}")
    button = page.get_by_role("button", name="6 h")
    with page.expect_request(lambda request: "/history?seconds=21600" in request.url):
        button.click()
    expect(button).to_have_attribute("aria-pressed", "true")


def test_figures_follow_the_crawl(server: str, stage: Stage, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}")
    tile = page.locator(".tiles div").filter(has_text="Pages")
    before = int(tile.locator("dd").inner_text().replace(",", ""))
    stage.work(CRAWL, 3)
    expect(tile.locator("dd")).to_have_text(f"{before + 3:,}")


def test_lost_workers_stay_and_are_marked(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=workers")
    rows = page.get_by_role("table", name="Workers").get_by_role("row")
    expect(rows.filter(has_text="m2-4")).to_contain_text("lost")
    expect(rows.filter(has_text="m2-3")).to_contain_text("left")
    expect(rows.filter(has_text="m1-2")).to_contain_text("the proxy dc/p3 is down")


def test_changes_the_pace_of_a_host(server: str, page: Page, errors: Errors) -> None:
    errors.expect("422")
    page.goto(f"{server}/crawls/{CRAWL}?tab=hosts")
    page.get_by_role("searchbox", name="Search hosts").fill("books")
    row = page.get_by_role("table").get_by_role("row").filter(has_text="books.shop.test")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(2)
    row.get_by_role("button", name="Pace books.shop.test").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Requests").fill("quickly")
    dialog.get_by_role("button", name="Change the pace").click()
    expect(dialog.get_by_role("alert")).to_contain_text("quickly")
    dialog.get_by_label("Requests").fill("30/m")
    dialog.get_by_role("button", name="Change the pace").click()
    expect(dialog).to_be_hidden()
    expect(row).to_contain_text("30/m")


def test_blocks_and_unblocks_a_host(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=hosts")
    page.get_by_role("button", name="Block cdn.shop.test").click()
    page.get_by_role("button", name="Block the host").click()
    row = page.get_by_role("row").filter(has_text="cdn.shop.test")
    expect(row).to_contain_text("blocked")
    page.get_by_role("button", name="Unblock cdn.shop.test").click()
    expect(row).not_to_contain_text("blocked")


def test_items_are_searched_and_paged(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=items")
    table = page.get_by_role("table", name="Items, newest first")
    expect(table.get_by_role("columnheader", name="price")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(51)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51 to 100")).to_be_visible()
    page.get_by_role("searchbox", name="Search items").fill("Soumission")
    expect(table.get_by_role("row")).to_have_count(1 + 22)


def test_requeues_one_those_of_a_filter_and_all(server: str, stage: Stage, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=dead")
    expect(page.get_by_text("30 dead letters")).to_be_visible()
    page.get_by_role("button", name="Requeue https://").first.click()
    expect(page.get_by_text("29 dead letters")).to_be_visible()
    page.get_by_label("Reason").fill("handler")
    page.get_by_role("button", name="Filter", exact=True).click()
    sum_line = page.get_by_text(re.compile(r"^\d+ of 29 dead letters match this filter$"))
    expect(sum_line).to_be_visible()
    matching = int((sum_line.text_content() or "").split()[0])
    page.get_by_role("button", name=f"Requeue these {matching}").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Requeue {matching} dead letters of this filter?")
    page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    expect(page.get_by_text("No dead letters here")).to_be_visible()
    left = dead_letters(stage)
    assert left == 29 - matching
    assert 20 < left < 29
    page.get_by_label("Reason").fill("")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_role("button", name="Requeue all").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"all {left} dead letters")
    page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    expect(page.get_by_text("No dead letters here")).to_be_visible()
    assert dead_letters(stage) == 0


def test_rejected_urls_lead_to_why(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=rejected")
    row = page.get_by_role("row").filter(has_text="out_of_scope")
    row.get_by_text("Show 1").click()
    row.get_by_role("link", name="why").click()
    expect(page.get_by_role("heading", name="What became of a URL")).to_be_visible()
    expect(page.get_by_text("Kept out by")).to_be_visible()


def test_why_tells_of_a_done_page(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}/why")
    page.get_by_label("URL").fill("https://shop.test/catalogue/0.html")
    page.get_by_role("button", name="Tell").click()
    attempts = page.get_by_role("table", name="Attempts")
    expect(attempts).to_contain_text("200")
    expect(attempts).to_contain_text("231 ms")


def test_lists_are_read_at_most_every_two_seconds_and_not_while_hidden(server: str, page: Page) -> None:
    page.clock.install()
    page.goto(f"{server}/crawls/{CRAWL}?tab=hosts")
    expect(page.get_by_role("row").filter(has_text="old.shop.test")).to_be_visible()
    page.clock.pause_at(datetime.now() + timedelta(seconds=60))
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if "/hosts?" in request.url else None)
    with page.expect_response(lambda answer: "/hosts?" in answer.url):
        page.clock.run_for(2000)
    page.clock.run_for(18_000)
    assert 1 <= len(asked) <= 10
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    before = len(asked)
    page.clock.run_for(60_000)
    assert len(asked) == before
