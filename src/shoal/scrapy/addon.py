"""The add-on: one line in a project's ADDONS."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from scrapy.settings import BaseSettings, default_settings

from shoal.scrapy.middlewares import ExitJudge, GuardMiddleware, SpiderWatch
from shoal.scrapy.pipelines import StorePipeline
from shoal.scrapy.redis_client import SCRAPY_REDIS, UNUSED_DUPEFILTER
from shoal.scrapy.settings import adapt

log = logging.getLogger("shoal")

_PACKAGE = "shoal.scrapy"
THEIR_PIPELINE = "scrapy_redis.pipelines.RedisPipeline"
WATCH_ORDER = 1000  # after every middleware of Scrapy's own, next to the spider
GUARD_ORDER = 899  # after every middleware of Scrapy's own that changes a request, next to the downloader
# Next to the middleware that decompresses answers (590), before the one that sends requests again (550).
JUDGE_ORDER = 585
STORE_ORDER = 950  # after the pipelines that change or drop items


class Addon:
    """Puts shoal's scheduler, and what it needs, into the settings of a project."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy. A project's own settings win, except settings that conflict with the scheduler."""
        settings.set("SCHEDULER", f"{_PACKAGE}.Scheduler", priority="addon")
        _replace_scrapy_redis(settings)
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", SpiderWatch, WATCH_ORDER)
        if adapt(settings):
            settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", GuardMiddleware, GUARD_ORDER)
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", ExitJudge, JUDGE_ORDER)
        if settings.getbool("SHOAL_ITEMS", True):
            settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", StorePipeline, STORE_ORDER)
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            log.warning(
                "AUTOTHROTTLE_ENABLED is taken as False: the pace of shoal adapts by itself, for the whole fleet"
            )
            settings.set("AUTOTHROTTLE_ENABLED", False, priority="cmdline")
        if settings.get("JOBDIR"):
            log.warning("JOBDIR is not used: the frontier keeps the crawl, and the next run goes on with it")
            settings.set("JOBDIR", None, priority="cmdline")


def _replace_scrapy_redis(settings: BaseSettings) -> None:
    """Replace the components of scrapy-redis: the scheduler, and a pipeline that is not installed."""
    if str(settings["SCHEDULER"]).startswith(SCRAPY_REDIS):
        log.warning("SCHEDULER of scrapy_redis is not used: shoal's own is in its place")
        settings.set("SCHEDULER", f"{_PACKAGE}.Scheduler", priority="cmdline")
    if str(settings["DUPEFILTER_CLASS"]).startswith(SCRAPY_REDIS):
        log.info(UNUSED_DUPEFILTER)
        # Commands such as `scrapy parse` load it.
        settings.set("DUPEFILTER_CLASS", default_settings.DUPEFILTER_CLASS, priority="cmdline")
    pipelines = settings.getdict("ITEM_PIPELINES")
    if THEIR_PIPELINE in pipelines and find_spec("scrapy_redis") is None:
        log.info("RedisPipeline of scrapy_redis is not installed: shoal's own is in its place")
        pipelines[f"{_PACKAGE}.RedisPipeline"] = pipelines.pop(THEIR_PIPELINE)
        settings.set("ITEM_PIPELINES", pipelines, priority=settings.getpriority("ITEM_PIPELINES") or 0)
