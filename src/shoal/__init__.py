"""shoal: distributed web scraping. What a spider needs is here; the rest is for those who extend it."""

from shoal.page import Element, Page
from shoal.spider import Item, Pages, Request, Sitemap, Spider, Stdin, UrlFile
from shoal.version import __version__

__all__ = [
    "Element",
    "Item",
    "Page",
    "Pages",
    "Request",
    "Sitemap",
    "Spider",
    "Stdin",
    "UrlFile",
    "__version__",
]
