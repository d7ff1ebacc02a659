"""Which crawl is meant: an id, a spider's name, or nothing where that is clear."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState

LISTED = 8


async def find_crawl(frontier: Frontier, name: str | None) -> Crawl:
    """The crawl meant; a UsageError that lists the known ones otherwise."""
    return choose(await frontier.crawls(), name)


def choose(crawls: Sequence[Crawl], name: str | None) -> Crawl:
    """The same from a list of crawls, newest first."""
    if not crawls:
        raise UsageError("there is no crawl yet: `shoal crawl URL` or `shoal run FILE` begins one")
    if name is None:
        return _only(crawls)
    for crawl in crawls:
        if crawl.id == name:
            return crawl
    for crawl in crawls:
        if crawl.spider == name:
            return crawl
    raise UsageError(f"there is no crawl {name!r}; there are {_ids(crawls)}")


def is_unfinished(crawl: Crawl) -> bool:
    return crawl.state in (CrawlState.RUNNING, CrawlState.PAUSED)


def _only(crawls: Sequence[Crawl]) -> Crawl:
    unfinished = [crawl for crawl in crawls if is_unfinished(crawl)]
    if len(unfinished) > 1:
        raise UsageError(f"several crawls are unfinished: name one of {_ids(unfinished)}")
    return (unfinished or crawls)[0]


def _ids(crawls: Sequence[Crawl]) -> str:
    more = f" and {len(crawls) - LISTED} more" if len(crawls) > LISTED else ""
    return ", ".join(crawl.id for crawl in crawls[:LISTED]) + more
