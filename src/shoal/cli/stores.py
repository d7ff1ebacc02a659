"""The stores and archives of crawls, for commands that look at them: nothing is created, nothing is guessed.

Where a crawl's items are when it has fewer of its own than its pages yielded.

An item belongs to the crawl that wrote it last: a later crawl of the spider takes over what it meets again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from shoal.cli.display.next_commands import command, quote
from shoal.cli.display.numbers import count, several
from shoal.crawl.joining import (
    archive_to_read,
    existing_store,
    foreign_store,
    places_of_new,
    store_to_read,
    stores_beside,
)
from shoal.crawl.opening import Places, StoreOf, frontier_at, shared_results
from shoal.crawl.places import file_of
from shoal.crawl.record import belongs_to, owner_of, record_of, results_known, with_refusals
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Progress
from shoal.policy.verdicts import ITEMS
from shoal.settings.table import STORE_VARIABLE
from shoal.settings.values import parse_duration
from shoal.store.base import ItemFilter, Store
from shoal.text.secrets import masked


def has_frontier(places: Places) -> bool:
    """Whether there is a frontier to look at: opening a file that is missing would create it."""
    path = file_of(places.frontier)
    return path is None or Path(path).exists()


def say_what_is_elsewhere(crawl: Crawl, places: Places, *, say: Callable[[str], None]) -> None:
    """Say that a file with the items of the store of these places is not all: others wrote to other stores."""
    if others := stores_beside(crawl, places):
        say(f"items of {crawl.id} are also in {', '.join(others)}: they are not in this file")


@asynccontextmanager
async def stores_of_crawls(places: Places, *, say: Callable[[str], None]) -> AsyncIterator[tuple[Frontier, StoreOf]]:
    """The frontier, and what gives the store of each of its crawls: None, after a line, for one out of reach."""
    async with frontier_at(places.frontier) as frontier, shared_results() as results:
        said: set[str] = set()

        async def store_of(crawl: Crawl) -> Store | None:
            if (named := foreign_store(crawl, places)) and (store := results_known(crawl).store):
                line = (
                    f"the items of {crawl.id} lie in {store.shown}: what is shown here is from {named}, which --store"
                )
                _say_once(f"{line} or {STORE_VARIABLE} names", said=said, say=say)
            try:
                return await results.store(existing_store(crawl, places))
            except UsageError as error:
                _say_once(str(error), said=said, say=say)
                return None

        yield frontier, store_of


def _say_once(line: str, *, said: set[str], say: Callable[[str], None]) -> None:
    if line not in said:
        said.add(line)
        say(line)


async def with_archive(places: Places, crawl: str | None, *, spider: str | None = None, reference: str = "") -> Places:
    """The places of a command on archived pages. An archive that was not named is the crawl's, or that of the newest
    crawl of the spider that has one; for a `spider`, so is a store. Refuses to guess where there is no such crawl,
    and a crawl of another file than that of the spider's `reference`, unless it was named."""
    chosen = await _archived_crawl(places, crawl, spider)
    if (
        chosen is not None
        and reference
        and crawl is None
        and not belongs_to(chosen, reference, frontier=places.frontier)
    ):
        raise UsageError(
            f"{owner_of(chosen)}, not to {reference}, which would replace its items: if that is meant, name it with"
            f" --crawl {chosen.id}"
        )
    archive = places.archive or (chosen and archive_to_read(chosen, places))
    if not archive:
        raise UsageError("no crawl here remembers an archive: give --archive, or --frontier of the crawl that has one")
    store = places_of_new(places).store
    if chosen is not None and spider is not None:
        store = store_to_read(chosen, places)
    return replace(places, archive=archive, store=store)


async def _archived_crawl(places: Places, crawl: str | None, spider: str | None) -> Crawl | None:
    if not has_frontier(places):
        return None
    async with frontier_at(places.frontier) as frontier:
        crawls = [one for one in with_refusals(await frontier.crawls()) if not one.refusal]
    if crawl is not None:
        return next((one for one in crawls if one.id == crawl), None)
    mine = [one for one in crawls if spider in (None, one.spider)]
    return next((one for one in mine if places.archive or results_known(one).archive), None)


SHOWN = 8


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """How many items a crawl's pages yielded (0: not known), how many it has now, and how many other crawls have."""

    crawl: Crawl
    yielded: int
    own: int
    others: dict[str, int]


async def owners_of(crawl: Crawl, progress: Progress, *, crawls: Sequence[Crawl], store: Store) -> Owners:
    """Who has the items that this crawl may have written; `crawls` are newest first."""
    yielded = progress.notes.get(ITEMS, 0)
    own = await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id))
    if own and own >= yielded:
        return Owners(crawl=crawl, yielded=yielded, own=own, others={})
    others = await store.count_by_crawl(crawl.spider)
    others.pop(crawl.id, None)
    # Fewer than were yielded may be right: several pages may yield one key. An older crawl has items of this one only
    # if this one left them as they were, because they were fresh.
    if own and not parse_duration(record_of(crawl).settings.freshness):
        names = [one.id for one in crawls]
        for name in names[names.index(crawl.id) :]:
            others.pop(name, None)
    return Owners(crawl=crawl, yielded=yielded, own=own, others=others)


def owners_line(owners: Owners, places: Places) -> str:
    """What people should know about it, in one line; empty if there is nothing to say."""
    name, spider = owners.crawl.id, owners.crawl.spider
    yielded = f"its pages yielded {several(owners.yielded, 'item')}"
    if owners.others:
        has = f"{yielded}, of which it has {count(owners.own)} now" if owners.yielded else "it has no items now"
        return (
            f"{name}: {has}: an item belongs to the crawl that wrote it last, and {_listed(owners.others)};"
            f" for all items of {spider}: {command(f'export {quote(name)} --all -o FILE', places)}"
        )
    if owners.own or not owners.yielded:
        return ""
    return f"{name}: {yielded}, but {masked(places.store)} has no item of {spider}: did it run with another --store?"


def _listed(others: dict[str, int]) -> str:
    most = sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{name} has {count(number)}" for name, number in most[:SHOWN]]
    rest = sum(number for _, number in most[SHOWN:])
    return ", ".join([*shown, f"{several(len(most) - SHOWN, 'other crawl')} {count(rest)}"] if rest else shown)
