"""The stores and archives of crawls, for commands that look at them: nothing is created, nothing is guessed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

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
from shoal.crawl.record import belongs_to, owner_of, results_known, with_refusals
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.settings.table import STORE_VARIABLE
from shoal.store.base import Store


def has_frontier(places: Places) -> bool:
    """Whether there is a frontier to look at: opening a file that is missing would create it."""
    path = file_of(places.frontier)
    return path is None or Path(path).exists()


def say_what_is_elsewhere(crawl: Crawl, places: Places, *, say: Callable[[str], None]) -> None:
    """Say that a file with the items of the store of these places is not all: others wrote to other stores."""
    if others := stores_beside(crawl, places):
        say(f"items of {crawl.id} lie also in {', '.join(others)}: they are not in this file")


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
