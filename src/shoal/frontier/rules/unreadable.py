"""Crawls and records that a frontier cannot read, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shoal.frontier.rules.tasks import BAD_RECORD
from shoal.text.errors import several

SPIDER_UNKNOWN: Final = "?"
_NUMBERED = re.compile(r"(.+)-\d+")


def unreadable_crawl(crawl: str, where: object, error: object) -> str:
    """What is said of a crawl whose own record cannot be read."""
    reason = " ".join(str(error).split())
    return f"the record of crawl {crawl!r} at {where} cannot be read ({reason}): it is left alone"


def aside_line(crawl: str, places: Mapping[str, int], *, kept: str) -> str:
    """What the process says that met records which cannot be read: how many of them were where, and where they are
    kept."""
    where = ", ".join(f"{number} in `{place}`" for place, number in sorted(places.items()) if number)
    return (
        f"{several(sum(places.values()), 'record')} of crawl {crawl} could not be read: set aside ({where}), kept in"
        f" {kept}; `shoal dead list {crawl} --reason '{BAD_RECORD}'` shows the pages among them whose URL could be told"
    )


def spider_in(crawl: str) -> str:
    """The spider that the id of a crawl names, when its record does not tell."""
    found = _NUMBERED.fullmatch(crawl)
    return found[1] if found else SPIDER_UNKNOWN
