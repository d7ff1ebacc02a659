"""Which inboxes are read now, as noted by waiting workers; and entries in inboxes that nobody reads, for example after
a typo in a name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.crawl.duty_notes import change_noted, read_noted
from shoal.crawl.inbox import Inbox, inboxes_of
from shoal.crawl.record import is_unfinished
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.text.near_names import nearest
from shoal.worker.workers import at_work

DUTY: Final = "readers of inboxes"
READ_SECONDS: Final = 90.0  # after its note a name counts as read for this long
RENEW_SECONDS: Final = 30.0
KEPT_SECONDS: Final = 30 * 86_400.0  # a folder elsewhere stays known for this long after its last reader


class InboxReader(msgspec.Struct, frozen=True, kw_only=True):
    """When the inbox of a spider was noted as read, and its folder if it is not beside the frontier."""

    noted: float
    folder: str = ""


async def read_readers(frontier: Frontier) -> dict[str, InboxReader]:
    """The notes, by the names of spiders."""
    _, data = await read_noted(frontier, DUTY)
    return _readers(data)


def read_now(readers: Mapping[str, InboxReader], *, now: float) -> list[str]:
    """The names that are read now."""
    return sorted(name for name, reader in readers.items() if abs(now - reader.noted) < READ_SECONDS)


class ReaderNotes:
    """Notes that this process reads inboxes. Processes that read the same inboxes share a note: few of them write."""

    def __init__(self, frontier: Frontier, *, clock: Callable[[], float] = time.time) -> None:
        self._frontier = frontier
        self._clock = clock
        self._looked = float("-inf")

    async def renew(self, folders: Mapping[str, str]) -> None:
        """Note these names, each with its folder if that is elsewhere, unless they were noted a moment ago."""
        folders, now = _whole(folders), self._clock()
        if not folders or abs(now - self._looked) < RENEW_SECONDS:
            return
        self._looked = now
        noted = await read_readers(self._frontier)
        if any(self._is_old(noted.get(name), folder, now) for name, folder in folders.items()):
            await change_noted(self._frontier, DUTY, lambda data: _with(data, folders, now), busy=f"{DUTY} are noted")

    def _is_old(self, reader: InboxReader | None, folder: str, now: float) -> bool:
        return reader is None or reader.folder != folder or abs(now - reader.noted) >= RENEW_SECONDS


def _whole(folders: Mapping[str, str]) -> dict[str, str]:
    """With absolute paths."""
    return {name: folder and os.path.abspath(folder) for name, folder in folders.items()}


def _with(data: bytes, folders: Mapping[str, str], now: float) -> bytes:
    kept = {name: reader for name, reader in _readers(data).items() if now - reader.noted < KEPT_SECONDS}
    return msgspec.json.encode(kept | {name: InboxReader(noted=now, folder=folder) for name, folder in folders.items()})


def _readers(data: bytes) -> dict[str, InboxReader]:
    try:
        return msgspec.json.decode(data, type=dict[str, InboxReader]) if data else {}
    except msgspec.DecodeError:
        # Written by another version: they will be noted again.
        return {}


MOST_LOOKED_AT: Final = 20


class UnreadInbox(msgspec.Struct, frozen=True, kw_only=True):
    """An inbox with entries that no worker takes. `crawl`: the crawl of this name, or the spider's newest. For unknown
    names, `near`: a similar known name, `read`: the names that are read now."""

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
) -> list[UnreadInbox]:
    """The inboxes that nobody reads, by name. `crawls`: all of the frontier, newest first; `frontier` is None if its
    file does not exist yet. `named`: only these, else a whole server is scanned. `waiting`: the spiders for which a
    worker waits."""
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
            UnreadInbox(name=name, place=inbox.place(name), entries=entries, crawl=taker or newest.get(name))
            if taker or name in newest
            else await _unknown(name, entries, inbox.place(name), crawls, frontier=frontier, waiting=waiting)
        )
    return found


async def _unknown(
    name: str, entries: int, place: str, crawls: Sequence[Crawl], *, frontier: Frontier | None, waiting: Sequence[str]
) -> UnreadInbox:
    """Entries under a name of neither a crawl nor a spider."""
    known = [*waiting, *(crawl.spider for crawl in crawls), *(crawl.id for crawl in crawls)]
    read = list(waiting)
    for crawl in [crawl for crawl in crawls if is_unfinished(crawl.state)][:MOST_LOOKED_AT]:
        if frontier is not None and await at_work(crawl.id, frontier=frontier):
            read += [one for one, taker in inboxes_of(crawls) if taker is crawl]
    return UnreadInbox(name=name, place=place, entries=entries, near=nearest(name, known), read=sorted(set(read)))


async def pushed_by_crawl(crawls: Sequence[Crawl], *, inbox: Inbox) -> dict[str, int]:
    """How many entries wait for each of these crawls (newest first); without crawls that have none. Entries under a
    spider's name count for its newest unfinished crawl, else for its newest."""
    takers = dict(inboxes_of(crawls))
    for crawl in crawls:
        takers.setdefault(crawl.spider, crawl)
    found: dict[str, int] = {}
    for name, number in (await inbox.count(list(takers))).items():
        found[takers[name].id] = found.get(takers[name].id, 0) + number
    return found
