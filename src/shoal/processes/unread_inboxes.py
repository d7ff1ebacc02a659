"""Entries that wait where nobody reads now: for a crawl, for a spider, or under a name that means nothing here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.processes.crawl_record import is_unfinished
from shoal.processes.crew import at_work
from shoal.processes.listener import Inbox, inboxes_of
from shoal.text.near_names import nearest

MOST_LOOKED_AT: Final = 20


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """An inbox with entries, where no worker is at work that takes them. `crawl` is the one that they are for, or the
    newest of their `spider`; of a name that means neither, `near` is the known one that may have been meant, and `read`
    are those that are read now."""

    name: str
    place: str
    entries: int
    crawl: Crawl | None = None
    near: str = ""
    read: Sequence[str] = ()

    @property
    def is_of_spider(self) -> bool:
        return self.crawl is not None and self.crawl.id != self.name


async def unread_inboxes(
    crawls: Sequence[Crawl],
    *,
    inbox: Inbox,
    frontier: Frontier | None,
    named: Sequence[str] = (),
    waiting: Sequence[str] = (),
) -> list[Unread]:
    """The inboxes that nobody reads, by name. `crawls` are all of the frontier, newest first; a file that is not there
    yet has none, and is no `frontier`. `named`: only these; without them a whole server is looked through. `waiting`:
    the spiders for which a worker waits."""
    counts = await inbox.count(named or await inbox.names())
    takers = dict(inboxes_of(crawls))
    newest: dict[str, Crawl] = {}
    for crawl in crawls:
        newest.setdefault(crawl.spider, crawl)
    found = []
    for name, entries in sorted(counts.items()):
        taker = takers.get(name)
        if taker is not None and frontier is not None and await at_work(taker.id, frontier=frontier):
            continue
        found.append(
            Unread(name=name, place=inbox.place(name), entries=entries, crawl=taker or newest.get(name))
            if taker or name in newest
            else await _unknown(name, entries, inbox.place(name), crawls, frontier=frontier, waiting=waiting)
        )
    return found


async def _unknown(
    name: str, entries: int, place: str, crawls: Sequence[Crawl], *, frontier: Frontier | None, waiting: Sequence[str]
) -> Unread:
    """Entries under a name that means neither a crawl nor a spider."""
    known = [*waiting, *(crawl.spider for crawl in crawls), *(crawl.id for crawl in crawls)]
    read = list(waiting)
    for crawl in [crawl for crawl in crawls if is_unfinished(crawl.state)][:MOST_LOOKED_AT]:
        if frontier is not None and await at_work(crawl.id, frontier=frontier):
            read += [one for one, taker in inboxes_of(crawls) if taker is crawl]
    return Unread(name=name, place=place, entries=entries, near=nearest(name, known), read=sorted(set(read)))


async def pushed_by_crawl(crawls: Sequence[Crawl], *, inbox: Inbox) -> dict[str, int]:
    """How many entries wait for each of these crawls, newest first; without those for which none do. Those under the
    name of a spider wait for its newest unfinished crawl, else for the next one: they count for its newest."""
    takers = dict(inboxes_of(crawls))
    for crawl in crawls:
        takers.setdefault(crawl.spider, crawl)
    found: dict[str, int] = {}
    for name, number in (await inbox.count(list(takers))).items():
        found[takers[name].id] = found.get(takers[name].id, 0) + number
    return found
