"""The page when its server, its sign-in or its frontier is away: it says so, and recovers by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import Errors
from playwright.sync_api import Page, expect
from stage import Stage

from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_server import RedisServer

pytestmark = pytest.mark.full


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    made.crawl("shop-1", [f"https://shop.test/{number}" for number in range(10)], fed=False)
    return made


def test_keeps_the_last_figures_and_recovers(stage: Stage, page: Page, errors: Errors) -> None:
    errors.expect("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")
    port = free_port()
    with stage.serving(port=port) as url:
        page.goto(url)
        expect(page.get_by_role("row").filter(has_text="0 of 10")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("shoal serve cannot be reached")
    expect(page.get_by_role("alert")).to_contain_text("These figures are from")
    expect(page.locator("#connection")).to_have_text("not connected")
    expect(page.get_by_role("row").filter(has_text="0 of 10")).to_be_visible()
    stage.work("shop-1", 4)
    with stage.serving(port=port):
        expect(page.get_by_role("row").filter(has_text="4 of 10")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("#connection")).to_have_text("live")
        page.close()


def test_says_that_the_frontier_is_away_and_recovers(tmp_path: Path, page: Page, errors: Errors) -> None:
    errors.expect("503")
    redis = RedisServer(tmp_path / "redis").start()
    try:
        stage = Stage(tmp_path, frontier=redis.url)
        stage.crawl("shop-1", ["https://shop.test/1", "https://shop.test/2"], fed=False)
        with stage.serving("--frontier", redis.url) as url:
            page.goto(f"{url}/crawls/shop-1?tab=hosts")
            row = page.get_by_role("row").filter(has_text="shop.test")
            expect(row).to_be_visible()
            redis.stop()
            expect(page.get_by_role("alert").first).to_contain_text(str(redis.port))
            expect(page.locator("main")).to_have_attribute("data-old", "")
            expect(row).to_be_visible()
            redis.start()
            stage.work("shop-1", 1)
            expect(page.get_by_role("alert")).to_have_count(0)
            expect(page.locator(".progress-text")).to_contain_text("1 of 2")
            expect(page.locator("main")).not_to_have_attribute("data-old", "")
            page.close()
    finally:
        redis.kill()


def test_signs_in_and_out_with_a_token(stage: Stage, page: Page, errors: Errors) -> None:
    errors.expect("401")
    with stage.serving(
        environ={"SHOAL_TOKEN": "sesame-sesame-sesame", "SHOAL_READER_TOKEN": "look-look-look-look"}
    ) as url:
        page.goto(f"{url}/crawls/shop-1")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).not_to_be_empty()
        page.get_by_label("Token").fill("sesame-sesame-sesame")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Pause shop-1")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_label("Token").fill("look-look-look-look")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="shop-1")).to_be_visible()
        expect(page.get_by_role("button", name="Pause shop-1")).to_have_count(0)
        page.close()


def test_names_a_crawl_that_there_is_none_of(stage: Stage, page: Page, errors: Errors) -> None:
    errors.expect("404")
    with stage.serving() as url:
        page.goto(f"{url}/crawls/nothing-7")
        expect(page.get_by_role("main")).to_contain_text("nothing-7")
        expect(page.get_by_role("heading", name="Not here")).to_be_visible()
        page.close()
