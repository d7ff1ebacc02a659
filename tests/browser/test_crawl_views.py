"""Each part of a crawl in a real browser: it shows what the frontier and the store have, and changes it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from console import Errors
from furnished import CRAWL, furnish
from playwright.sync_api import Page, Request, expect
from stage import Stage

from shoal.frontier.base import Frontier
from shoal.model import DeadFilter, ExitUse, Pool

VIA_PROXIES = "shop-3"
KINDS, KINDS_DONE = "shop-4", "shop-5"
ARCHIVED = "https://shop.test/catalogue/4.html"
PAGE = "<h1>Tipping the Velvet</h1><script>document.title = 'run'</script> £53.74".encode()
SEVERAL_POINTS = re.compile(r"^M[\d. ]+L[\d. ]+L")


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    furnish(stage)
    stage.exits(
        VIA_PROXIES,
        Pool(name="dc", exits=("dc/p1", "dc/p2"), interval=0.0, cost=0.25, quarantine=600.0),
        {
            "dc/p1": ExitUse(size=48_000, elapsed=0.231),
            "dc/p2": ExitUse(verdict="blocked", size=900, elapsed=0.1),
        },
    )
    stage.archive(CRAWL, ARCHIVED, PAGE)
    stage.crawl(KINDS, ["https://shop.test/plain"], fed=False)
    stage.put_kind(KINDS, "https://shop.test/rendered", kind="browser")
    stage.beat(KINDS, "m3-1", seen=time.time() + 3600)
    stage.crawl(KINDS_DONE, fed=False)
    for worker, kinds in (("m4-1", ("http",)), ("m4-2", ("browser", "http"))):
        stage.beat(KINDS_DONE, worker, seen=time.time() + 3600, kinds=kinds)
    with stage.serving("--archive", "pages") as url:
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


@pytest.mark.full
def test_overview_marks_a_kind_that_no_worker_does(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{KINDS}")
    expect(page.get_by_role("heading", name="Kinds of tasks")).to_be_visible()
    lines = page.get_by_role("listitem")
    served, unserved = (lines.filter(has_text=kind) for kind in ("http: 1 waiting", "browser: 1 waiting"))
    expect(served).to_have_text("http: 1 waiting, 1 worker")
    expect(served).not_to_have_class("bad")
    expect(unserved).to_have_text("browser: 1 waiting, no workers")
    expect(unserved).to_have_class("bad")
    page.goto(f"{server}/crawls/{CRAWL}")
    expect(page.get_by_role("table", name="Outcomes")).to_be_visible()
    expect(page.get_by_role("heading", name="Kinds of tasks")).to_have_count(0)


@pytest.mark.full
def test_workers_say_which_kinds_they_do(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{KINDS_DONE}?tab=workers")
    rows = page.get_by_role("table", name="Workers").get_by_role("row")
    expect(rows.filter(has_text="m4-2")).to_contain_text("does browser, http")
    expect(rows.filter(has_text="m4-1")).not_to_contain_text("does")


@pytest.mark.full
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


@pytest.mark.full
def test_boosts_a_host_and_back(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=hosts")
    row = page.get_by_role("row").filter(has_text="old.shop.test")
    expect(row).to_contain_text("4/s")
    row.get_by_role("button", name="Boost old.shop.test", exact=True).click()
    expect(row).to_contain_text("16/s")
    expect(row).to_contain_text("boosted by an operator")
    row.get_by_role("button", name="No boost old.shop.test").click()
    expect(row).not_to_contain_text("16/s")
    expect(row).not_to_contain_text("boosted by")


def test_exits_show_their_health_and_their_cost(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{VIA_PROXIES}?tab=exits")
    table = page.get_by_role("table", name="Exits")
    healthy, blocked = (table.get_by_role("row").filter(has_text=name) for name in ("dc/p1", "dc/p2"))
    expect(healthy).to_contain_text("shop.test via dc")
    titles = [title.inner_text() for title in table.get_by_role("columnheader").all()]
    for row, state, ok, refused in ((healthy, "healthy", "1", "0"), (blocked, "quarantined", "0", "1")):
        cells = dict(zip(titles, row.get_by_role("cell").all(), strict=True))
        expect(cells["State"]).to_contain_text(state)
        expect(cells["OK"]).to_have_text(ok)
        expect(cells["Blocked"]).to_have_text(refused)
        expect(cells["Cost"]).to_have_text("0.25")
    expect(blocked).to_contain_text(re.compile(r"for \d+ ?m"))
    expect(healthy).not_to_contain_text("for ")


def test_items_are_searched_and_paged(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=items")
    table = page.get_by_role("table", name="Items, newest first")
    expect(table.get_by_role("columnheader", name="price")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(51)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51 to 100")).to_be_visible()
    page.get_by_role("searchbox", name="Search items").fill("Soumission")
    expect(table.get_by_role("row")).to_have_count(1 + 22)


@pytest.mark.full
def test_items_that_are_gone_say_since_when(server: str, stage: Stage, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=items")
    table = page.get_by_role("table", name="Items, newest first")
    expect(table.get_by_role("row")).to_have_count(51)
    expect(table.get_by_text("gone since")).to_have_count(0)
    stage.mark_gone(unseen_since=time.time() + 60)
    page.reload()
    expect(table.get_by_text("gone since")).to_have_count(50)


def test_drops_one_and_those_of_a_filter(server: str, stage: Stage, page: Page) -> None:
    stage.bury(CRAWL, [(f"https://gone.test/{number}", "tls: no certificate") for number in range(4)])
    before = dead_letters(stage)
    page.goto(f"{server}/crawls/{CRAWL}?tab=dead")
    page.get_by_label("Reason").fill("tls")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.get_by_text(f"4 of {before} dead letters match this filter")).to_be_visible()
    page.get_by_role("button", name="Drop https://gone.test/2").click()
    expect(page.get_by_text(f"3 of {before - 1} dead letters match this filter")).to_be_visible()
    page.get_by_role("button", name="Drop these 3").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Drop 3 dead letters of this filter?")
    expect(dialog).to_contain_text("This cannot be undone")
    dialog.get_by_role("button", name="Drop them").click()
    expect(page.get_by_text("No dead letters here")).to_be_visible()
    assert dead_letters(stage) == before - 4


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


@pytest.mark.full
def test_rejected_urls_lead_to_why(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}?tab=rejected")
    row = page.get_by_role("row").filter(has_text="out_of_scope")
    row.get_by_text("Show 1").click()
    row.get_by_role("link", name="why").click()
    expect(page.get_by_role("heading", name="What became of a URL")).to_be_visible()
    expect(page.get_by_text("Kept out by")).to_be_visible()


def test_why_tells_of_every_attempt_and_of_the_item(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}/why")
    page.get_by_label("URL").fill("https://shop.test/catalogue/0.html")
    page.get_by_role("button", name="Tell").click()
    attempts = page.get_by_role("table", name="Attempts")
    expect(attempts).to_contain_text("200")
    expect(attempts).to_contain_text("231 ms")
    expect(attempts.get_by_role("row").nth(2)).to_contain_text("timeout: no answer within 30 s")
    expect(page.get_by_label("Item sku-0")).to_contain_text('"title"')


@pytest.mark.full
def test_why_leads_to_the_archived_page_as_text(server: str, page: Page) -> None:
    page.goto(f"{server}/crawls/{CRAWL}/why?url={ARCHIVED}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as text").click()
    assert download.value.suggested_filename.endswith(".txt")
    assert download.value.path().read_bytes() == PAGE
    page.goto(f"{server}/crawls/{CRAWL}/why?url=https://shop.test/catalogue/0.html")
    expect(page.get_by_role("table", name="Attempts")).to_be_visible()
    expect(page.get_by_role("link", name="Download as text")).to_have_count(0)


@pytest.mark.full
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
