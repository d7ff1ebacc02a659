"""A crawl begun, resumed or discarded, and which crawls belong to a spider's file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from shoal.crawl.code import NO_CODE, SpiderCode, source_of
from shoal.crawl.joining import results_of
from shoal.crawl.known_pages import earlier_crawls
from shoal.crawl.opening import Places, inbox_at, store_at
from shoal.crawl.places import OutOfReach, is_same, recalled
from shoal.crawl.record import (
    Origin,
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

# A page is as a rule in the newest one; more where that did not come to its end.
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
) -> tuple[Crawl, Crawl | None]:
    """Resume the spider's unfinished crawl with the settings as they are now, or begin a new one.

    Gives the crawl, and the resumed one as it was before; `reference` is how worker processes load the spider. The
    crawl remembers the store and the archive of `places`; a new one gets an id that `store` has no items of."""
    run = RunOf(reference=reference, places=places, store=store)
    return await begin_run(frontier, spider, settings=settings, run=run)


class RunOf(NamedTuple):
    """Where a run comes from: see `begin`. `scheduled` names the run of a schedule, empty for those of people.
    `code` is the spider's, as it was loaded. `anew`: a crawl that was stopped is not resumed. `skips_known`: a new
    crawl takes no URL that an earlier one has done. `stays`: it waits for what comes from outside."""

    reference: str
    places: Places | None = None
    store: Store | None = None
    scheduled: str = ""
    code: SpiderCode = NO_CODE
    skips_known: bool = False
    anew: bool = False
    stays: bool = False


async def begin_run(
    frontier: Frontier, spider: Spider, *, settings: Settings, run: RunOf
) -> tuple[Crawl, Crawl | None]:
    """Begin or resume as `begin` does. A run of a schedule that another process has finished is refused: it would be
    made twice."""
    reference, places, store, scheduled = run.reference, run.places, run.store, run.scheduled
    crawls = await crawls_of(spider, frontier=frontier)
    if (ended := crawl_of_run(crawls, scheduled)) is not None and not is_unfinished(ended.state):
        raise UsageError(f"{ended.id} is {ended.state}: the run {scheduled} of its schedule was made already")
    former = resumable_crawl(crawls, reference=reference, places=places, anew=run.anew)
    if former is not None:
        check_arguments(former, spider)
    origin = _origin(run, former=former)
    if former is None and places is not None:
        before = archived_before(crawls, settings=settings, reference=reference, places=places)
        origin = msgspec.structs.replace(origin, before=before)
    if former is None and run.skips_known:
        origin = _skipping(origin, own_crawls(crawls, reference=reference, places=places), settings)
    crawl_id = await _next_id(spider, crawls, store=store) if former is None else former.id
    crawl = _described(crawl_id, spider, settings=settings, origin=origin, former=former)
    return await _start(crawl, frontier=frontier), former


async def begin_afresh(
    frontier: Frontier, store: Store, spider: Spider, *, places: Places, settings: Settings, run: RunOf
) -> Crawl:
    """Discard the spider's unfinished crawls and begin a new one. Crawls of another file with a spider of this name
    stay."""
    # Before anything is deleted: settings may be refused, and the id of a discarded crawl is not used again, since
    # its workers may still be running.
    crawls = await crawls_of(spider, frontier=frontier)
    mine = own_crawls(crawls, reference=run.reference, places=places, refused=True)
    discarded = [crawl for crawl in mine if is_unfinished(crawl.state) or crawl.state is CrawlState.STOPPED]
    origin = _origin(run)
    if run.skips_known:
        kept = [crawl for crawl in mine if crawl not in discarded and not crawl.refusal]
        origin = _skipping(origin, kept, settings)
    crawl = _described(await _next_id(spider, crawls, store=store), spider, settings=settings, origin=origin)
    for former in discarded:
        # One that another version wrote stays if it cannot be deleted.
        with contextlib.suppress(*([UsageError] if former.refusal else [])):
            await discard(former, places=places, frontier=frontier, store=store)
    return await _start(crawl, frontier=frontier)


async def crawls_of(spider: Spider, *, frontier: Frontier) -> list[Crawl]:
    """The crawls of all spiders of this name, newest first; also those that this shoal must leave alone."""
    name = spider_name(type(spider))
    return [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == name]


def crawl_of_run(crawls: Sequence[Crawl], scheduled: str) -> Crawl | None:
    """The crawl that a run of a schedule has begun or resumed, if it has."""
    readable = (crawl for crawl in crawls if crawl.settings and not crawl.refusal)
    return next((crawl for crawl in readable if scheduled and scheduled in record_of(crawl).scheduled), None)


def own_crawls(crawls: Sequence[Crawl], *, reference: str, places: Places | None, refused: bool = False) -> list[Crawl]:
    """Those of the crawls that belong to the spider's file and can be used; with `refused`, also those that cannot, as
    far as their record tells whose they are."""
    at = "" if places is None else places.frontier
    usable = [crawl for crawl in crawls if not crawl.refusal or (refused and is_readable(crawl))]
    return [crawl for crawl in usable if belongs_to(crawl, reference, frontier=at)]


def archived_before(crawls: Sequence[Crawl], *, settings: Settings, reference: str, places: Places) -> tuple[str, ...]:
    """The latest ended crawls of the spider's file with their pages in this archive and their log in this store, which
    sent the same requests as this one will; none where it archives nothing."""
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
    """Whether two crawls introduce themselves to sites in the same way."""
    return all(getattr(former, name) == getattr(settings, name) for name in SEEN_BY_SITES)


def unfinished_crawl(crawls: Sequence[Crawl], *, reference: str, places: Places | None) -> Crawl | None:
    """The crawl that the spider's run resumes, if there is one. Refuses when only another file's is unfinished."""
    unfinished = [crawl for crawl in crawls if is_unfinished(crawl.state) and not crawl.refusal]
    mine = own_crawls(unfinished, reference=reference, places=places)
    if unfinished and not mine:
        cure = 'name your spider (name = "…" in its class), or --fresh begins a crawl beside it'
        raise UsageError(f"{owner_of(unfinished[0])}; {cure}")
    return mine[0] if mine else None


def resumable_crawl(crawls: Sequence[Crawl], *, reference: str, places: Places | None, anew: bool) -> Crawl | None:
    """The crawl that a run resumes: an unfinished one, or the newest of the spider's file if it was stopped, unless a
    new one is to begin. Refuses as `unfinished_crawl` does."""
    found = unfinished_crawl(crawls, reference=reference, places=places)
    if found is not None or anew:
        return found
    newest = next(iter(own_crawls(crawls, reference=reference, places=places)), None)
    return newest if newest is not None and newest.state is CrawlState.STOPPED else None


async def discard(crawl: Crawl, *, places: Places, frontier: Frontier, store: Store) -> None:
    """Delete a crawl with everything that was pushed for it. Its items stay."""
    # The frontier first: it may refuse, and then nothing must be gone.
    await frontier.delete_crawl(crawl.id)
    async with inbox_at(places) as inbox:
        await inbox.delete(crawl.id)
    known = results_known(crawl).store
    if known is None or is_same(known, places.store, frontier=places.frontier):
        await store.delete_crawl(crawl.id)
        return
    # Its log lies in a store of its own. In one that cannot be reached from here it stays.
    with contextlib.suppress(OutOfReach):
        async with store_at(recalled(known, frontier=places.frontier)) as its_own:
            await its_own.delete_crawl(crawl.id)


async def _next_id(spider: Spider, crawls: Sequence[Crawl], *, store: Store | None) -> str:
    """An id that no crawl of this frontier has, and of which the store has neither items nor a log: they may come from
    a crawl that was deleted, from a frontier that is lost, or from another one."""
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


def _skipping(origin: Origin, crawls: Sequence[Crawl], settings: Settings) -> Origin:
    """The origin of a crawl that skips what these crawls have done, as far as they can tell."""
    return msgspec.structs.replace(origin, known_from=earlier_crawls(crawls, settings).known_from)


def _origin(run: RunOf, *, former: Crawl | None = None) -> Origin:
    reference, places, scheduled, code = run.reference, run.places, run.scheduled, run.code
    if places is None:
        return Origin(reference=reference, scheduled=scheduled, code=code, stays=run.stays)
    known = None if former is None else results_known(former)
    source = source_of(reference, frontier=places.frontier)
    results = results_of(places, known)
    return Origin(reference=reference, source=source, results=results, scheduled=scheduled, code=code, stays=run.stays)


def _described(
    crawl_id: str, spider: Spider, *, settings: Settings, origin: Origin, former: Crawl | None = None
) -> Crawl:
    pools = load_pools(Path(CONFIG_FILE), proxies=settings.proxies)
    return describe_crawl(crawl_id, spider, settings=settings, origin=origin, pools=pools, former=former)


async def _start(crawl: Crawl, *, frontier: Frontier) -> Crawl:
    """Open the crawl and let it run: a resumed one may have been paused."""
    begun = await frontier.open_crawl(crawl)
    await frontier.set_state(crawl.id, CrawlState.RUNNING)
    return begun
