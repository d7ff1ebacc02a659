"""A project's settings as shoal understands them."""

from __future__ import annotations

from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler

from shoal.errors import UsageError
from shoal.integrations.scrapy.crawl_of_spider import ScrapyCrawl
from shoal.integrations.scrapy.project_settings import wanted_of


class Shop(scrapy.Spider):
    name = "shop"


def wanted(**settings: Any) -> ScrapyCrawl:
    crawler = Crawler(Shop, settings)
    crawler.spider = Shop()
    return wanted_of(crawler, say=lambda line: None)


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
