"""A crawl fed and worked on, in this process or by a fleet, until it is finished or told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from shoal.crawl.feeder import Stayer
from shoal.crawl.inbox import Listener
from shoal.crawl.opening import Places, Say, archive_of, frontier_at
from shoal.crawl.record import code_known, is_unfinished, record_of
from shoal.crawl.sources import reads_input
from shoal.duties.alerts.config import AlertConfig
from shoal.duties.clearing import clearing_beside
from shoal.errors import StorageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.results.log_files import Retention
from shoal.run.building import fleet_for, worker_for
from shoal.run.coordinator import Coordinator
from shoal.run.intakes import intake_of, listener_at
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import Watched, reclaim_former
from shoal.worker.process import ProcessContext
from shoal.worker.retirement import Limits


class WorkPlace(NamedTuple):
    """Where a crawl's results go: its places, and its store, opened; who watches this process, if anybody does; which
    alerts are watched for; the kinds of tasks that are done here, if not those of the spider; and whether the crawl is
    kept open for what comes from outside, until this process is told to stop."""

    places: Places
    store: Store
    watched: Watched | None = None
    alerts: AlertConfig | None = None
    kinds: tuple[str, ...] = ()
    stays: bool = False


@asynccontextmanager
async def watching(at: WorkPlace, *, frontier: Frontier, say: Say, stop: asyncio.Event) -> AsyncIterator[None]:
    """A watchman at work meanwhile, if there are alerts to watch for. It looks a last time at the end of the crawl, not
    where people or an error ended the run."""
    if at.alerts is None:
        yield
        return
    from shoal.duties.alerts.watcher import Watchman, local_paths

    paths = local_paths(at.places)
    watchman = Watchman(at.alerts, frontier=frontier, say=say, paths=paths, sinks=at.store.outbox.sinks)
    running, is_over = asyncio.create_task(watchman.run()), False
    try:
        yield
        is_over = not stop.is_set()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await watchman.finish(looks=is_over)


async def run_crawl(
    crawl: Crawl, spider: Spider, *, at: WorkPlace, workers: int, coordinator: Coordinator, stop: asyncio.Event
) -> None:
    """Feed the crawl and work on it, here or in worker processes, until it is finished or told to stop."""
    frontier, say, places = coordinator.frontier, coordinator.say, at.places
    box = None if at.watched is None else at.watched.box
    process = ProcessContext(
        box or BlackBox.private(),
        open_frontier=partial(frontier_at, places.frontier),
        code=code_known(crawl).digest,
    )
    new_worker = partial(
        worker_for, crawl, spider, frontier=frontier, store=at.store, say=say, process=process, kinds=at.kinds
    )

    async def work() -> None:
        # A worker that retires leaves a process that goes on: the coordinator's.
        if workers > 1 or any(Limits.of(record_of(crawl).settings)):
            try:
                fleet = fleet_for(crawl, places, workers=workers, frontier=frontier, say=say, kinds=at.kinds)
                await fleet.run(stop)
            except StorageError:
                # If the crawl is lost, its workers have left it to the coordinator to say so.
                await coordinator.progress(stop=stop)
                raise
        else:
            async with archive_of(places) as archive, new_worker(archive=archive) as worker:
                await worker.run(stop)

    await reclaim_former(at.watched, frontier=frontier, say=say)
    await coordinator.reclaim_from_exited_workers()
    stayer = Stayer(frontier, say=say) if at.stays else None
    if stayer is not None:
        await stayer.hold([crawl.id])
    await coordinator.feeder.begin()
    async with (
        watching(at, frontier=frontier, say=say, stop=stop),
        clearing_beside(places, frontier=frontier, say=say),
        listener_at(places, frontier=frontier, say=say) as listener,
    ):
        feeding = asyncio.create_task(_feed(coordinator, spider, stayer))
        if box is not None and reads_input(spider):
            box.read_input(is_reading=True)
            feeding.add_done_callback(lambda _: box.read_input(is_reading=False))
        beside = [asyncio.create_task(part) for part in _upkeep(crawl, at.store, coordinator, listener)]
        try:
            await _until(work(), feeding)
            while not stop.is_set() and await _has_more(coordinator, listener, stayer, feeding=feeding, stop=stop):
                await _until(work(), feeding)
        finally:
            for task in (feeding, *beside):
                task.cancel()
            await asyncio.gather(feeding, *beside, return_exceptions=True)
            if not coordinator.feeder.has_ended:
                await coordinator.feeder.give_up()
            if stayer is not None:
                await stayer.leave()
            await coordinator.end_history()


async def _feed(coordinator: Coordinator, spider: Spider, stayer: Stayer | None) -> None:
    """Feed the start; where the crawl is kept open, that goes on until cancelled."""
    staying = None if stayer is None else asyncio.create_task(stayer.stay(coordinator.crawl.id))
    try:
        await coordinator.feeder.feed(spider, intake=intake_of(coordinator.crawl))
        if staying is not None:
            await staying
    finally:
        if staying is not None:
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)


def _upkeep(
    crawl: Crawl, store: Store, coordinator: Coordinator, listener: Listener
) -> list[Coroutine[Any, Any, None]]:
    """What a coordinator does beside the work, until that ends."""
    return [
        coordinator.watch(),
        coordinator.keep_history(),
        coordinator.feeder.make_up(),
        listener.listen(crawl),
        Retention(store, record_of(crawl).settings, spider=crawl.spider, say=coordinator.say).run(),
        coordinator.mark_gone(store),
    ]


async def _has_more(
    coordinator: Coordinator,
    listener: Listener,
    stayer: Stayer | None,
    *,
    feeding: asyncio.Task[None],
    stop: asyncio.Event,
) -> bool:
    """Whether there is more to do though the workers found nothing left: this run has more to feed, or stays, but stood
    still for so long that nobody waited for it, or URLs were pushed at the last moment."""
    if feeding.done():
        feeding.result()
        await listener.take_in_all(coordinator.crawl, stop=stop)
    elif not coordinator.feeder.has_ended:
        await coordinator.feeder.go_on()
    elif stayer is not None:
        await stayer.hold([coordinator.crawl.id], now=True)
    return is_unfinished((await coordinator.progress()).state)


async def _until(work: Any, feeding: asyncio.Task[None]) -> None:
    """Wait for the work; a source that fails ends it at once, with its own error."""
    working = asyncio.ensure_future(work)
    waiting: Sequence[asyncio.Future[Any]] = [working, feeding]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done() and not feeding.cancelled():
            feeding.result()
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
