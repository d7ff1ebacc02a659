"""Runs a crawl: feeds it and works on it, in this process or with a fleet, until it is finished or told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

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


@asynccontextmanager
async def watching_alerts(
    alerts: AlertConfig | None, *, places: Places, store: Store, frontier: Frontier, say: Say, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Run the alert watcher meanwhile, if there are alerts to watch for. It checks a last time when the crawl ends, not
    after a stop or an error."""
    if alerts is None:
        yield
        return
    from shoal.duties.alerts.watcher import AlertWatcher, local_paths

    paths = local_paths(places)
    watcher = AlertWatcher(alerts, frontier=frontier, say=say, paths=paths, sinks=store.outbox.sinks)
    running, is_over = asyncio.create_task(watcher.run()), False
    try:
        yield
        is_over = not stop.is_set()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await watcher.finish(looks=is_over)


async def run_crawl(
    crawl: Crawl,
    spider: Spider,
    *,
    places: Places,
    store: Store,
    workers: int,
    coordinator: Coordinator,
    stop: asyncio.Event,
    watched: Watched | None = None,
    alerts: AlertConfig | None = None,
    kinds: tuple[str, ...] = (),
    stays: bool = False,
) -> None:
    """Feed the crawl and work on it, here or in worker processes, until it is finished or told to stop.

    - `watched`: this process, if it has a supervisor; `alerts`: to watch for
    - `kinds`: of the tasks that are done here, if not the spider's
    - `stays`: keep the crawl open for URLs from outside until told to stop
    """
    frontier, say = coordinator.frontier, coordinator.say
    box = None if watched is None else watched.box
    process = ProcessContext(
        box or BlackBox.private(),
        open_frontier=partial(frontier_at, places.frontier),
        code=code_known(crawl).digest,
    )
    new_worker = partial(
        worker_for, crawl, spider, frontier=frontier, store=store, say=say, process=process, kinds=kinds
    )

    async def work() -> None:
        # A worker that may retire needs its own process: the coordinator's goes on.
        if workers > 1 or any(Limits.of(record_of(crawl).settings)):
            try:
                fleet = fleet_for(crawl, places, workers=workers, frontier=frontier, say=say, kinds=kinds)
                await fleet.run(stop)
            except StorageError:
                # If the crawl is lost, `progress` raises a better error.
                await coordinator.progress(stop=stop)
                raise
        else:
            async with archive_of(places) as archive, new_worker(archive=archive) as worker:
                await worker.run(stop)

    await reclaim_former(watched, frontier=frontier, say=say)
    await coordinator.reclaim_from_exited_workers()
    stayer = Stayer(frontier, say=say) if stays else None
    if stayer is not None:
        await stayer.hold([crawl.id])
    await coordinator.feeder.begin()
    async with (
        watching_alerts(alerts, places=places, store=store, frontier=frontier, say=say, stop=stop),
        clearing_beside(places, frontier=frontier, say=say),
        listener_at(places, frontier=frontier, say=say) as listener,
    ):
        feeding = asyncio.create_task(_feed(coordinator, spider, stayer))
        if box is not None and reads_input(spider):
            box.read_input(is_reading=True)
            feeding.add_done_callback(lambda _: box.read_input(is_reading=False))
        beside = [asyncio.create_task(part) for part in _upkeep(crawl, store, coordinator, listener)]
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
    """Feed the start; with a stayer, then keep the crawl open until cancelled."""
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
    """The coordinator's tasks beside the work."""
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
    """Whether there is more to do after the workers found nothing left: this run's feeder or stayer has expired because
    the process stood still, or URLs were pushed at the last moment."""
    if feeding.done():
        feeding.result()
        await listener.take_in_all(coordinator.crawl, stop=stop)
    elif not coordinator.feeder.has_ended:
        await coordinator.feeder.go_on()
    elif stayer is not None:
        await stayer.hold([coordinator.crawl.id], now=True)
    return is_unfinished((await coordinator.progress()).state)


async def _until(work: Any, feeding: asyncio.Task[None]) -> None:
    """Wait for the work; if feeding fails, end it at once with that error."""
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
