"""A project's settings as shoal understands them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from shoal.errors import UsageError
from shoal.scrapy.addon import Addon
from shoal.scrapy.crawl import ScrapyCrawl
from shoal.scrapy.middlewares import GuardMiddleware
from shoal.scrapy.settings import COUNTERPARTS, NO_EFFECT, scrapy_crawl_of
from shoal.settings.table import FIELDS
from shoal.settings.table import Settings as ShoalSettings


class Shop(scrapy.Spider):
    name = "shop"


def wanted(**settings: Any) -> ScrapyCrawl:
    crawler = Crawler(Shop, settings)
    crawler.spider = Shop()
    return scrapy_crawl_of(crawler, say=lambda line: None)


def test_every_setting_of_the_page_is_taken() -> None:
    crawl = wanted(
        SHOAL_FRONTIER="redis://q/0",
        SHOAL_STORE="items.db",
        SHOAL_CRAWL="shop-toys",
        SHOAL_FRESH="1",
        SHOAL_ITEMS=False,
        SHOAL_ITEM_KEY="sku",
        SHOAL_RATE="4/s",
        SHOAL_PER_HOST=2,
        SHOAL_RETRY_SECONDS=5,
    )
    assert (crawl.places.frontier, crawl.places.store, crawl.crawl, crawl.fresh) == (
        *("redis://q/0", "items.db", "shop-toys"),
        True,
    )
    assert (crawl.settings.rate, crawl.settings.per_host, crawl.settings.retry_seconds) == ("4/s", 2, 5)


def test_the_limits_of_scrapy_hold_where_none_of_shoal_is_given() -> None:
    crawl = wanted(DOWNLOAD_DELAY=0.25, CONCURRENT_REQUESTS_PER_DOMAIN=3)
    assert (crawl.settings.rate, crawl.settings.per_host) == ("4/s", 3)
    assert wanted(DOWNLOAD_DELAY=0).settings.rate == "unlimited"


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="rates"):
        wanted(SHOAL_RATES="4/s")


def adapted(**given: Any) -> Settings:
    settings = Settings(given)
    Addon().update_settings(settings)
    return settings


def test_settings_that_scrapy_has_under_another_name_are_passed_on() -> None:
    settings = adapted(
        SHOAL_USER_AGENT="us (+https://a.test)",
        SHOAL_OBEY_ROBOTS=True,
        SHOAL_MAX_DEPTH="3",
        SHOAL_MAX_REDIRECTS=4,
        SHOAL_MAX_ATTEMPTS=6,
        SHOAL_MAX_BODY_BYTES=1000,
        SHOAL_MAX_URL_LENGTH=500,
        SHOAL_TOTAL_SECONDS=7,
        SHOAL_HANDLE_STATUSES="404,410",
        SHOAL_COOKIES="off",
    )
    assert {counterpart.name: settings[counterpart.name] for counterpart in COUNTERPARTS.values()} == {
        "USER_AGENT": "us (+https://a.test)",
        "ROBOTSTXT_OBEY": True,
        "DEPTH_LIMIT": 3,
        "REDIRECT_MAX_TIMES": 4,
        "RETRY_TIMES": 5,
        "DOWNLOAD_MAXSIZE": 1000,
        "URLLENGTH_LIMIT": 500,
        "DOWNLOAD_TIMEOUT": 7,
        "HTTPERROR_ALLOWED_CODES": [404, 410],
        "COOKIES_ENABLED": False,
    }
    assert wanted(**settings.copy_to_dict()).settings.max_depth == 3


def test_a_setting_that_scrapys_own_contradicts_is_refused() -> None:
    settings = adapted(SHOAL_MAX_DEPTH=3, DEPTH_LIMIT=2)
    assert settings["DEPTH_LIMIT"] == 2
    with pytest.raises(
        UsageError, match="SHOAL_MAX_DEPTH and DEPTH_LIMIT say different things: give DEPTH_LIMIT alone"
    ):
        wanted(**settings.copy_to_dict())


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_a_setting_without_effect_is_refused(name: str) -> None:
    value = msgspec.to_builtins(getattr(ShoalSettings(), name))
    with pytest.raises(UsageError, match=f"SHOAL_{name.upper()} has no effect on a Scrapy spider"):
        wanted(**{f"SHOAL_{name.upper()}": value})


def test_every_setting_is_in_at_most_one_table_and_exists() -> None:
    assert not NO_EFFECT.keys() & COUNTERPARTS.keys()
    assert NO_EFFECT.keys() | COUNTERPARTS.keys() <= FIELDS.keys()


@pytest.mark.parametrize(
    ("given", "is_guarded"),
    [
        ({}, False),
        ({"SHOAL_ALLOW_PRIVATE": True}, False),
        ({"SHOAL_ALLOW_PRIVATE": False}, True),
        ({"SHOAL_ALLOW_ADDRESSES": "10.1.0.0/16"}, True),
    ],
)
def test_the_guard_is_there_when_it_is_asked_for(given: dict[str, Any], is_guarded: bool) -> None:
    assert (GuardMiddleware in adapted(**given)["DOWNLOADER_MIDDLEWARES"]) is is_guarded


def test_without_the_add_on_the_guard_is_asked_for_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"SHOAL_ALLOW_PRIVATE needs shoal's add-on, or DOWNLOADER_MIDDLEWARES"):
        wanted(SHOAL_ALLOW_PRIVATE=False)
    named = {"shoal.scrapy.GuardMiddleware": 899}
    assert not wanted(SHOAL_ALLOW_PRIVATE=False, DOWNLOADER_MIDDLEWARES=named).settings.allow_private


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"SHOAL_FEED": "out.txt"}, "out.txt"),
        ({"SHOAL_FEED": "-"}, "SHOAL_FEED is a file"),
        ({"SHOAL_FEED": "nowhere/out.csv"}, "the folder nowhere does not exist"),
        ({"SHOAL_FEED": "out.csv", "SHOAL_ITEMS": False}, "leave SHOAL_ITEMS = False out"),
    ],
)
def test_a_feed_that_cannot_be_written_is_refused_before_the_crawl(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        wanted(**given)


def test_parts_of_scrapys_scheduler_that_are_not_used_are_told_of() -> None:
    crawler = Crawler(
        Shop, {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter", "SCHEDULER_MEMORY_QUEUE": "own.Fifo"}
    )
    crawler.spider = Shop()
    said: list[str] = []
    scrapy_crawl_of(crawler, say=said.append)
    assert [line.partition(":")[0] for line in said if "not used" in line] == [
        "DUPEFILTER_CLASS is not used",
        "SCHEDULER_MEMORY_QUEUE is not used",
    ]
