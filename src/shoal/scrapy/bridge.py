"""State shared by the components that Scrapy builds: one bridge per crawler."""

from __future__ import annotations

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from shoal.errors import ShoalError
from shoal.scrapy.engine import later, wake
from shoal.scrapy.visits import Visits
from shoal.scrapy.worker_thread import Inflow
from shoal.settings.table import Settings

_NAME = "_shoal_bridge"


class Bridge:
    """The visits of a crawler, and the inflow of its worker thread. `crawl`: its id, once joined; `settings`: shoal's,
    once known; `has_judge`: ExitJudge is installed."""

    def __init__(self, crawler: Crawler) -> None:
        self.visits = Visits(wake=lambda: wake(crawler), later=later)
        self.inflow = Inflow()
        self.settings = Settings()
        self.has_judge = False
        self.crawl = ""
        self.shown_frontier = ""


def bridge_of(crawler: Crawler) -> Bridge:
    """The bridge of a crawler, created by the first caller."""
    bridge = getattr(crawler, _NAME, None)
    if bridge is None:
        bridge = Bridge(crawler)
        setattr(crawler, _NAME, bridge)
    return bridge


def spider_of(crawler: Crawler) -> Spider:
    """The spider of a crawler: Scrapy makes it before its components are opened."""
    if crawler.spider is None:
        raise ShoalError("this part of shoal needs a spider: it works inside a crawl only")
    return crawler.spider


def stats_of(crawler: Crawler) -> StatsCollector:
    """The stats of a crawler whose settings were applied."""
    if crawler.stats is None:
        raise ShoalError("this part of shoal needs a crawler whose settings were applied")
    return crawler.stats
