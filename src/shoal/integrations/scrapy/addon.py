"""The add-on: one line in a project's ADDONS."""

from __future__ import annotations

import logging

from scrapy.settings import BaseSettings

log = logging.getLogger("shoal")

_PACKAGE = "shoal.integrations.scrapy"
WATCH_ORDER = 1000  # after every middleware of Scrapy's own, next to the spider
STORE_ORDER = 950  # after the pipelines that change or drop items


class Addon:
    """Puts shoal's scheduler, and what it needs, into the settings of a project."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy. A project's own lines win, but for two settings that would work against the scheduler."""
        settings.set("SCHEDULER", f"{_PACKAGE}.Scheduler", priority="addon")
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", _watch(), WATCH_ORDER)
        if settings.getbool("SHOAL_ITEMS", True):
            settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", _pipeline(), STORE_ORDER)
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            log.warning(
                "AUTOTHROTTLE_ENABLED is taken as False: the pace of shoal adapts by itself, for the whole fleet"
            )
            settings.set("AUTOTHROTTLE_ENABLED", False, priority="cmdline")
        if settings.get("JOBDIR"):
            log.warning("JOBDIR is not used: the frontier keeps the crawl, and the next run goes on with it")
            settings.set("JOBDIR", None, priority="cmdline")


def _watch() -> type:
    from shoal.integrations.scrapy.watch import SpiderWatch

    return SpiderWatch


def _pipeline() -> type:
    from shoal.integrations.scrapy.pipeline import StorePipeline

    return StorePipeline
