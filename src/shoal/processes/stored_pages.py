"""Pages whose items a store has already, kept out of a crawl: for one whose frontier is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import outcome_of
from shoal.journey.intake import Found, Intake
from shoal.model import Crawl, DeadFilter
from shoal.processes.outages import until_reachable
from shoal.spider.spider import Request
from shoal.store.base import ItemFilter, Store
from shoal.text.errors import several

STORED: Final = "stored: the store has its items"
BATCH = 500


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression for the pages that may be skipped."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--skip-stored {pattern!r} is no regular expression: {error}") from None


async def skip_stored(
    crawl: Crawl,
    pattern: re.Pattern[str],
    *,
    frontier: Frontier,
    store: Store,
    intake: Intake,
    say: Callable[[str], None],
) -> int:
    """Let the URLs that match, and under which the store has items of the spider, count as known in the crawl, and as
    dropped; gives how many are new. Repeating it is harmless."""
    found, new = Found(), 0
    async for item in store.items(ItemFilter(spider=crawl.spider)):
        if pattern.search(item.url):
            intake.request(Request(item.url), found, parent=None, base=item.url, scoped=False)
        if len(found.tasks) >= BATCH:
            new, found = new + await _drop(crawl.id, found, frontier=frontier, say=say), Found()
    return new + await _drop(crawl.id, found, frontier=frontier, say=say)


async def _drop(crawl: str, found: Found, *, frontier: Frontier, say: Callable[[str], None]) -> int:
    """Nobody works on these tasks: they are dead letters for a moment, and then keys that are known."""
    letters = [(task, STORED) for task in found.tasks.values()]
    report = await until_reachable(lambda: frontier.bury(crawl, letters), say=say)
    which = DeadFilter(reason=outcome_of(STORED))
    is_dropping = True
    while is_dropping:
        # Until none is left, also of a process that was killed here.
        is_dropping = bool(await until_reachable(lambda: frontier.drop_dead(crawl, which, limit=BATCH), say=say))
    return report.new


def skipped_line(number: int) -> str:
    """What was done, for people."""
    return f"{several(number, 'page')} whose items the store has count as known, and as dropped: they are not fetched"
