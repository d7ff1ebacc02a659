"""shoal: distributed web scraping. Everything that a spider file imports is here."""

from shoal.errors import ShoalError, UsageError
from shoal.model import Render
from shoal.spider.element import Element
from shoal.spider.page import Page, TurnedAway
from shoal.spider.session import FetchFailed, Session
from shoal.spider.spider import Item, Pages, Request, Sitemap, Spider, Stdin, StopCrawl, UrlFile, handler
from shoal.version import __version__

__all__ = [
    "Element",
    "FetchFailed",
    "Item",
    "Page",
    "Pages",
    "Render",
    "Request",
    "Session",
    "ShoalError",
    "Sitemap",
    "Spider",
    "Stdin",
    "StopCrawl",
    "TurnedAway",
    "UrlFile",
    "UsageError",
    "__version__",
    "handler",
]
