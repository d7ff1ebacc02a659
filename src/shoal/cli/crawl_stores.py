"""Opens the stores and archives of crawls for reading commands; says which crawls own the items that a crawl yielded.

An item belongs to the crawl that wrote it last.
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
from shoal.policy.failures import ITEMS
from shoal.settings.table import STORE_VARIABLE
from shoal.settings.values import parse_duration
from shoal.store.base import ItemFilter, Store
from shoal.text.secrets import masked


def has_frontier(places: Places) -> bool:
    """Whether the frontier exists: opening a missing file would create it."""
    path = file_of(places.frontier)
    return path is None or Path(path).exists()


def say_what_is_elsewhere(crawl: Crawl, places: Places, *, say: Callable[[str], None]) -> None:
    """Say that an export is incomplete, since some items of the crawl are in other stores."""
    if others := stores_beside(crawl, places):
        say(f"items of {crawl.id} are also in {', '.join(others)}: they are not in this file")


@asynccontextmanager
async def stores_of_crawls(places: Places, *, say: Callable[[str], None]) -> AsyncIterator[tuple[Frontier, StoreOf]]:
    """The frontier, and a function from a crawl to its store; an unreachable store is None, after a message."""
    async with frontier_at(places.frontier) as frontier, shared_results() as results:
        said: set[str] = set()

        async def store_of(crawl: Crawl) -> Store | None:
            if (named := foreign_store(crawl, places)) and (store := results_known(crawl).store):
                line = (
                    f"the items of {crawl.id} are in {store.shown}: what is shown here is from {named}, which --store"
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
    """The places with an archive: the given one, else the crawl's, else that of the newest crawl of the spider with
    one; for a `spider`, its store too. Refuses if there is none.

    reference: the spider's file; a crawl of another file is refused unless `crawl` names it."""
    chosen = await _archived_crawl(places, crawl, spider)
    if (
        chosen is not None
        and reference
        and crawl is None
        and not belongs_to(chosen, reference, frontier=places.frontier)
    ):
        raise UsageError(
            f"{owner_of(chosen)}, not to {reference}, which would replace its items: to do that, add"
            f" --crawl {chosen.id}"
        )
    archive = places.archive or (chosen and archive_to_read(chosen, places))
    if not archive:
        raise UsageError("no crawl here has an archive: give --archive, or --frontier of a crawl with one")
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
    """Numbers of items: yielded by a crawl's pages (0: unknown), owned by it now, owned by other crawls."""

    crawl: Crawl
    yielded: int
    own: int
    others: dict[str, int]


async def owners_of(crawl: Crawl, progress: Progress, *, crawls: Sequence[Crawl], store: Store) -> Owners:
    """The owners of the items that this crawl may have written. crawls: newest first."""
    yielded = progress.notes.get(ITEMS, 0)
    own = await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id))
    if own and own >= yielded:
        return Owners(crawl=crawl, yielded=yielded, own=own, others={})
    others = await store.count_by_crawl(crawl.spider)
    others.pop(crawl.id, None)
    # Fewer items than yielded may be right: several pages may yield one key. An older crawl owns items of this one only
    # if `freshness` skipped the write.
    if own and not parse_duration(record_of(crawl).settings.freshness):
        names = [one.id for one in crawls]
        for name in names[names.index(crawl.id) :]:
            others.pop(name, None)
    return Owners(crawl=crawl, yielded=yielded, own=own, others=others)


def owners_line(owners: Owners, places: Places) -> str:
    """One line about items that the crawl yielded and does not own; empty if there are none."""
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
