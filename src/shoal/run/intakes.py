"""The settings of a spider, the intake of a crawl, and listeners for pushed URLs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from shoal.crawl.inbox import Listener
from shoal.crawl.opening import Places, Say, inbox_at
from shoal.crawl.record import record_of, url_rules_of
from shoal.exits.pools import tagged_pools
from shoal.frontier.base import Frontier
from shoal.journey.intake import Intake, RecentKeys
from shoal.model import Crawl
from shoal.settings.layers import Resolved, environment_layer, file_layer, refuse_near_misses, resolve
from shoal.settings.table import CONFIG_FILE, Settings
from shoal.spider.spider import Spider, own_attributes


def settings_of(spider: type[Spider], flags: dict[str, Any], *, folder: Path = Path()) -> Resolved:
    """The settings of a spider, and the layer of each."""
    own = {name: getattr(spider, name) for name in msgspec.structs.asdict(Settings()) if hasattr(spider, name)}
    refuse_near_misses(own_attributes(spider), f"spider {spider.__name__}")
    return resolve(
        [
            file_layer(folder / CONFIG_FILE),
            environment_layer(),
            (f"spider {spider.__name__}", {**own, **spider.settings}),
            ("command line", flags),
        ]
    )


@asynccontextmanager
async def listener_at(places: Places, *, frontier: Frontier, say: Say) -> AsyncIterator[Listener]:
    """The listener that turns pushed URLs into tasks, closed at the end."""
    async with inbox_at(places) as inbox:
        yield Listener(inbox, frontier=frontier, intake_of=intake_of, say=say)


@asynccontextmanager
async def coordinating(pipe: str, places: Places, *, say: Say, stop: asyncio.Event) -> AsyncIterator[None]:
    """A coordinator at a pipe: answers workers, and puts pushed URLs. On an error it sets `stop`, and raises the error
    at the end."""
    from shoal.pipes.pump import pumping

    async with (
        pumping(pipe, places.frontier, say=say, stop=stop) as frontier,
        listener_at(places, frontier=frontier, say=say) as listener,
    ):
        listening = asyncio.create_task(listener.listen_to_all())
        listening.add_done_callback(lambda done: stop.set() if _has_failed(done) else None)
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


def _has_failed(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None


def intake_of(crawl: Crawl, *, known: RecentKeys | None = None) -> Intake:
    """Turns URLs into tasks by a crawl's rules."""
    record = record_of(crawl)
    return Intake(
        url_rules_of(crawl),
        record.settings,
        known=known,
        pools=[pool.name for pool in crawl.pools],
        pool=record.pool,
        regions=tagged_pools(crawl.pools),
    )
