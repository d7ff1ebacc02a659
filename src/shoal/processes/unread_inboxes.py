"""Entries that wait where nobody reads now: for a crawl, for a spider, or under a name that means nothing here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.near_names import nearest
from shoal.processes.crew import at_work
from shoal.processes.listener import Inbox, inboxes_of


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """An inbox with entries, where no worker is at work that takes them. `crawl` is the one that they are for, or the
    newest of their `spider`; of a name that means neither, `near` is the known one that may have been meant."""

    name: str
    place: str
    entries: int
    crawl: Crawl | None = None
    near: str = ""

    @property
    def is_of_spider(self) -> bool:
        return self.crawl is not None and self.crawl.id != self.name


async def unread_inboxes(
    crawls: Sequence[Crawl], *, inbox: Inbox, frontier: Frontier, only: Crawl | None = None
) -> list[Unread]:
    """The inboxes that nobody reads, by name. `crawls` are all of the frontier, newest first. `only`: those of one
    crawl; without it a whole server is looked through."""
    names = await inbox.names() if only is None else [only.id, only.spider]
    counts = await inbox.count(names)
    if not counts:
        return []
    takers = dict(inboxes_of(crawls))
    newest: dict[str, Crawl] = {}
    for crawl in crawls:
        newest.setdefault(crawl.spider, crawl)
    found = []
    for name, entries in sorted(counts.items()):
        taker = takers.get(name)
        if taker is not None and await at_work(taker.id, frontier=frontier):
            continue
        meant = taker or newest.get(name)
        near = "" if meant else nearest(name, [*newest, *(crawl.id for crawl in crawls)])
        found.append(Unread(name=name, place=inbox.place(name), entries=entries, crawl=meant, near=near))
    return found


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
