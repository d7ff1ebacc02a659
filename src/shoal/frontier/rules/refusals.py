"""Crawls that a frontier leaves alone, and what is said of them."""

from __future__ import annotations

import re
from typing import Final

SPIDER_UNKNOWN: Final = "?"
_NUMBERED = re.compile(r"(.+)-\d+")


def unreadable_crawl(crawl: str, where: object, error: object) -> str:
    """What is said of a crawl whose own record cannot be read."""
    reason = " ".join(str(error).split())
    return f"the record of crawl {crawl!r} at {where} cannot be read ({reason}): it is left alone"


def spider_in(crawl: str) -> str:
    """The spider that the id of a crawl names, when its record does not tell."""
    found = _NUMBERED.fullmatch(crawl)
    return found[1] if found else SPIDER_UNKNOWN
