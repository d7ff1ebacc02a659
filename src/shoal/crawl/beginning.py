"""Begins, resumes and discards crawls; and which crawls belong to a spider's file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shoal.crawl.code import NO_CODE, SpiderCode, source_of
from shoal.crawl.joining import results_of
from shoal.crawl.known_pages import earlier_crawls
from shoal.crawl.opening import Places, inbox_at, store_at
from shoal.crawl.places import OutOfReach, is_same, recalled
from shoal.crawl.record import (
    belongs_to,
    check_arguments,
    describe_crawl,
    is_readable,
    is_unfinished,
    next_id,
    owner_of,
    record_of,
    results_known,
    with_refusals,
)
from shoal.errors import UsageError
from shoal.exits.configuration import load_pools
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.settings.table import CONFIG_FILE, Settings
from shoal.spider.spider import Spider, spider_name
from shoal.store.base import ItemFilter, Store

# Most pages are in the newest crawl; older ones help if it was not completed.
MOST_BEFORE: Final = 3
SEEN_BY_SITES: Final = ("user_agent", "cookies", "pool")


async def begin(
    frontier: Frontier,
    spider: Spider,
    *,
    settings: Settings,
    reference: str,
    places: Places | None = None,
    store: Store | None = None,
    scheduled: str = "",
    code: SpiderCode = NO_CODE,
    skips_known: bool = False,
    stays: bool = False,
    anew: bool = False,
    fresh: bool = False,
) -> tuple[Crawl, Crawl | None]:
    """Resume the spider's unfinished crawl with the current settings, or begin a new one. Returns the crawl, and the
    resumed one as it was before.

    - `reference`: by which worker processes load the spider; `code`: its code as loaded
    - `places`: their store and archive are noted in the crawl; a new crawl gets an id without items in `store`
    - `scheduled`: the run of a schedule; refused if another process has finished it
    - `skips_known`: a new crawl takes no URL that an earlier one has done
    - `stays`: the crawl waits for URLs from outside
    - `anew`: do not resume a stopped crawl
    - `fresh`: discard the unfinished crawls of the spider's file in `places` and `store`, and begin a new one
    """
    crawls = await crawls_of(spider, frontier=frontier)
    if (ended := crawl_of_run(crawls, scheduled)) is not None and not is_unfinished(ended.state):
        raise UsageError(f"{ended.id} is {ended.state}: the run {scheduled} of its schedule has ended already")
    discarded = _to_discard(crawls, reference=reference, places=places) if fresh else []
    former = None if fresh else resumable_crawl(crawls, reference=reference, places=places, anew=anew)
    before, known_from = tuple[str, ...](), None
    if former is not None:
        check_arguments(former, spider)
    else:
        if places is not None and not fresh:
            before = archived_before(crawls, settings=settings, reference=reference, places=places)
        if skips_known:
            own = own_crawls(crawls, reference=reference, places=places)
            known_from = earlier_crawls([crawl for crawl in own if crawl not in discarded], settings).known_from
    # First describe the new crawl, then delete: its settings may be refused. Ids of discarded crawls are not used
    # again: their workers may still be running.
    crawl = describe_crawl(
        await _next_id(spider, crawls, store=store) if former is None else former.id,
        spider,
        settings=settings,
        pools=load_pools(Path(CONFIG_FILE), proxies=settings.proxies),
        reference=reference,
        source=source_of(reference, frontier=places.frontier) if places else None,
        results=results_of(places, results_known(former) if former else None) if places else None,
        scheduled=scheduled,
        before=before,
        code=code,
        stays=stays,
        known_from=known_from,
        former=former,
    )
    for old in discarded:
        # A crawl of another version of shoal is kept if it cannot be deleted.
        with contextlib.suppress(*([UsageError] if old.refusal else [])):
            await discard(old, places=places, frontier=frontier, store=store)
    begun = await frontier.open_crawl(crawl)
    # A resumed crawl may have been paused.
    await frontier.set_state(crawl.id, CrawlState.RUNNING)
    return begun, former


def _to_discard(crawls: Sequence[Crawl], *, reference: str, places: Places | None) -> list[Crawl]:
    mine = own_crawls(crawls, reference=reference, places=places, refused=True)
    return [crawl for crawl in mine if is_unfinished(crawl.state) or crawl.state is CrawlState.STOPPED]


async def crawls_of(spider: Spider, *, frontier: Frontier) -> list[Crawl]:
    """The crawls of all spiders of this name, newest first; also those that this version of shoal refuses."""
    name = spider_name(type(spider))
    return [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == name]


def crawl_of_run(crawls: Sequence[Crawl], scheduled: str) -> Crawl | None:
    """The crawl that a run of a schedule has begun or resumed; None: no crawl."""
    readable = (crawl for crawl in crawls if crawl.settings and not crawl.refusal)
    return next((crawl for crawl in readable if scheduled and scheduled in record_of(crawl).scheduled), None)


def own_crawls(crawls: Sequence[Crawl], *, reference: str, places: Places | None, refused: bool = False) -> list[Crawl]:
    """The crawls of the spider's file; with `refused`, also those that this version of shoal refuses, if their record
    can be read."""
    at = "" if places is None else places.frontier
    usable = [crawl for crawl in crawls if not crawl.refusal or (refused and is_readable(crawl))]
    return [crawl for crawl in usable if belongs_to(crawl, reference, frontier=at)]


def archived_before(crawls: Sequence[Crawl], *, settings: Settings, reference: str, places: Places) -> tuple[str, ...]:
    """The latest ended crawls of the spider's file that sent the same requests as this one will, with their pages in
    this archive and their log in this store; none if this one archives nothing."""
    archive, at = places.archive, places.frontier
    if archive is None or not settings.conditional_requests:
        return ()
    found = []
    for crawl in own_crawls(crawls, reference=reference, places=places):
        known = results_known(crawl)
        if is_unfinished(crawl.state) or known.store is None or known.archive is None:
            continue
        is_here = is_same(known.store, places.store, frontier=at) and is_same(known.archive, archive, frontier=at)
        if is_here and _sent_as(record_of(crawl).settings, settings):
            found.append(crawl.id)
    return tuple(found[:MOST_BEFORE])


def _sent_as(former: Settings, settings: Settings) -> bool:
    """Whether two crawls look the same to sites."""
    return all(getattr(former, name) == getattr(settings, name) for name in SEEN_BY_SITES)


def unfinished_crawl(crawls: Sequence[Crawl], *, reference: str, places: Places | None) -> Crawl | None:
    """The spider's unfinished crawl, if there is one. Refuses if only a crawl of another file is unfinished."""
    unfinished = [crawl for crawl in crawls if is_unfinished(crawl.state) and not crawl.refusal]
    mine = own_crawls(unfinished, reference=reference, places=places)
    if unfinished and not mine:
        cure = 'name your spider (name = "…" in its class), or --fresh begins a crawl beside it'
        raise UsageError(f"{owner_of(unfinished[0])}; {cure}")
    return mine[0] if mine else None


def resumable_crawl(crawls: Sequence[Crawl], *, reference: str, places: Places | None, anew: bool) -> Crawl | None:
    """The crawl that a run resumes: an unfinished one or, unless `anew`, the newest of the spider's file if it was
    stopped. Refuses as `unfinished_crawl` does."""
    found = unfinished_crawl(crawls, reference=reference, places=places)
    if found is not None or anew:
        return found
    newest = next(iter(own_crawls(crawls, reference=reference, places=places)), None)
    return newest if newest is not None and newest.state is CrawlState.STOPPED else None


async def discard(crawl: Crawl, *, places: Places | None, frontier: Frontier, store: Store | None) -> None:
    """Delete a crawl, its inbox in `places` and its log in `store`. Its items stay."""
    # The frontier first: if it refuses, nothing may be deleted.
    await frontier.delete_crawl(crawl.id)
    if places is None or store is None:
        return
    async with inbox_at(places) as inbox:
        await inbox.delete(crawl.id)
    known = results_known(crawl).store
    if known is None or is_same(known, places.store, frontier=places.frontier):
        await store.delete_crawl(crawl.id)
        return
    # Its log is in another store. If that cannot be reached from here, the log stays.
    with contextlib.suppress(OutOfReach):
        async with store_at(recalled(known, frontier=places.frontier)) as its_own:
            await its_own.delete_crawl(crawl.id)


async def _next_id(spider: Spider, crawls: Sequence[Crawl], *, store: Store | None) -> str:
    """An id that no crawl of this frontier has, and for which the store has neither items nor a log: the store may know
    deleted crawls and other frontiers."""
    name = spider_name(type(spider))
    taken = list(crawls)
    found = next_id(name, taken)
    while store is not None and await _is_used(found, name, store=store):
        others = await store.count_by_crawl(name)
        taken += [Crawl(id=crawl, spider=name) for crawl in (found, *others)]
        found = next_id(name, taken)
    return found


async def _is_used(crawl: str, spider: str, *, store: Store) -> bool:
    return bool(await store.count_items(ItemFilter(spider=spider, crawl=crawl)) or await store.has_log(crawl))
