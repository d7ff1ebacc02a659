"""Removes ended crawls and their URL keys from the frontier, by the settings of the spider's newest crawl; one process
at a time does it. Items, fetch log and archived pages stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.crawl.opening import Places, inbox_at
from shoal.crawl.record import CrawlRecord, record_of, with_refusals
from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.text.errors import several
from shoal.worker.outages import until_reachable

if TYPE_CHECKING:
    from shoal.crawl.inbox import Inbox

ENDED: Final = (CrawlState.FINISHED, CrawlState.CANCELLED)
DUTY: Final = "clearing"
EVERY_SECONDS: Final = 600.0
DUTY_SECONDS: Final = 60.0
STEP_SECONDS: Final = 2.0
NAMED: Final = 3


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """When a crawl is removed from the frontier, by the setting in `removed_by`; `removed_at` None: it is kept, for the
    reason in `stays`. `keys_dropped_at`: when its URL keys are dropped; None: they are kept, or dropped already."""

    removed_at: float | None = None
    removed_by: str = ""
    stays: str = ""
    keys_dropped_at: float | None = None
    keys_dropped_by: str = ""


def removals(crawls: Sequence[Crawl]) -> dict[str, Removal]:
    """The removal of each crawl of a frontier. Crawls that this version cannot read are kept."""
    readable = _readable(crawls)
    needed = needed_by(readable)
    found = {crawl.id: Removal(stays="left alone") for crawl in crawls}
    for group in _by_spider(readable):
        settings = record_of(_newest(group)).settings
        ended, others = _divided(group)
        for crawl in others:
            found[crawl.id] = Removal(stays=str(crawl.state))
        for rank, crawl in enumerate(sorted(ended, key=_end_of, reverse=True)):
            found[crawl.id] = _removal(crawl, rank, settings, needer=needed.get(crawl.id, ""))
    return found


def _removal(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> Removal:
    keys_at, keys_by = _keys_dropped(crawl, rank, settings, needer=needer)
    removal = Removal(keys_dropped_at=keys_at, keys_dropped_by=keys_by)
    if needer:
        return msgspec.structs.replace(removal, stays=f"{needer} needs it")
    if rank == 0:
        return msgspec.structs.replace(removal, stays="newest of its spider")
    if settings.keep_crawls and rank >= settings.keep_crawls:
        by = f"keep_crawls = {settings.keep_crawls}"
        return msgspec.structs.replace(removal, removed_at=_end_of(crawl), removed_by=by)
    if ttl := parse_duration(settings.crawl_ttl):
        by = f"crawl_ttl = {settings.crawl_ttl}"
        return msgspec.structs.replace(removal, removed_at=_end_of(crawl) + ttl, removed_by=by)
    return msgspec.structs.replace(removal, stays="no setting removes it")


def _keys_dropped(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> tuple[float | None, str]:
    """When the keys are dropped, and by which setting. A cancelled crawl keeps them: it may be resumed. So does the
    newest crawl of a spider with skip_known: the next crawl reads them."""
    ttl = parse_duration(settings.known_ttl)
    is_source = rank == 0 and record_of(crawl).skips_known
    if crawl.state is not CrawlState.FINISHED or crawl.keys == "dropped" or not ttl or is_source or needer:
        return None, ""
    return _end_of(crawl) + ttl, f"known_ttl = {settings.known_ttl}"


def needed_by(crawls: Iterable[Crawl]) -> dict[str, str]:
    """The crawls that unfinished crawls need, each with one of these: for conditional requests, or to copy its keys."""
    unfinished = _unfinished(crawls)
    before = {name: crawl for crawl, record in unfinished.items() for name in record.before}
    return before | _known_from(unfinished)


def learns_from(crawls: Iterable[Crawl]) -> dict[str, str]:
    """The crawls whose keys an unfinished crawl still has to copy, each with that crawl."""
    return _known_from(_unfinished(crawls))


def _known_from(unfinished: dict[str, CrawlRecord]) -> dict[str, str]:
    return {name: crawl for crawl, record in unfinished.items() for name in record.known_from}


def _unfinished(crawls: Iterable[Crawl]) -> dict[str, CrawlRecord]:
    groups = _by_spider(_readable(crawls))
    return {crawl.id: record_of(crawl) for group in groups for crawl in _divided(group)[1]}


def _divided(group: Sequence[Crawl]) -> tuple[list[Crawl], list[Crawl]]:
    """A spider's crawls that are over, and the others. A stopped crawl is over once a newer one has begun: else a
    spider that is stopped at a deadline every night would fill its frontier."""
    newest, over, others = _newest(group), list[Crawl](), list[Crawl]()
    for crawl in group:
        is_over = crawl.state in ENDED or (crawl.state is CrawlState.STOPPED and crawl is not newest)
        (over if is_over else others).append(crawl)
    return over, others


def _newest(group: Sequence[Crawl]) -> Crawl:
    return max(group, key=lambda crawl: crawl.created)


def _readable(crawls: Iterable[Crawl]) -> list[Crawl]:
    return [crawl for crawl in crawls if crawl.settings and not crawl.refusal]


def _by_spider(crawls: Iterable[Crawl]) -> list[list[Crawl]]:
    """The crawls of each spider, by spider name and file name: two files may have spiders of one name, and folders
    differ between machines."""
    groups: dict[tuple[str, str], list[Crawl]] = {}
    for crawl in crawls:
        groups.setdefault((crawl.spider, _file_of(record_of(crawl))), []).append(crawl)
    return list(groups.values())


def _file_of(record: CrawlRecord) -> str:
    path = record.source.path or record.spider
    return path.replace("\\", "/").rpartition("/")[2].partition(":")[0]


def _end_of(crawl: Crawl) -> float:
    return crawl.created if crawl.finished is None else crawl.finished


Say = Callable[[str], None]
InboxOf = Callable[[], AbstractAsyncContextManager["Inbox"]]


class Cleared(msgspec.Struct, frozen=True):
    """The notes of the duty: when a process last cleared the frontier."""

    at: float = 0.0


@asynccontextmanager
async def clearing_beside(places: Places, *, frontier: Frontier, say: Say) -> AsyncIterator[None]:
    """Clears ended crawls away during the block."""
    clearing = Clearing(frontier, inbox=partial(inbox_at, places), say=say)
    running = asyncio.create_task(clearing.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Clearing:
    """Removes what is due from all crawls of a frontier, and reports every removal.

    `inbox`: a crawl with entries in its inbox is kept until a worker has taken them."""

    def __init__(self, frontier: Frontier, *, inbox: InboxOf, say: Say, clock: Callable[[], float] = time.time) -> None:
        self._frontier = frontier
        self._inbox = inbox
        self._say = say
        self._clock = clock
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._trouble = ""

    async def run(self) -> None:
        """Clear now and then every ten minutes, until cancelled. An error is reported once and retried."""
        while True:
            try:
                await until_reachable(self.look, say=self._say)
                self._trouble = ""
            except ShoalError as error:
                if str(error) != self._trouble:
                    self._say(f"ended crawls are not cleared away: {error}")
                self._trouble = str(error)
            await asyncio.sleep(EVERY_SECONDS)

    async def look(self) -> bool:
        """Remove what is due, unless another process does it now or did it lately; returns whether this one did."""
        duty = await self._frontier.hold_duty(DUTY, self._holder, seconds=0.0)
        if 0 <= self._clock() - _noted(duty.notes).at < EVERY_SECONDS:
            return False
        if not (await self._frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)).is_ours:
            return False
        notes = None
        try:
            await self._clear()
            notes = msgspec.json.encode(Cleared(self._clock()))
        finally:
            # Also when cancelled: the next process must not wait for the duty to expire.
            with contextlib.suppress(ShoalError):
                await self._frontier.hold_duty(DUTY, self._holder, seconds=0.0, notes=notes)
        return True

    async def _clear(self) -> None:
        for name in await self._frontier.half_deleted():
            await self._stepwise(partial(self._frontier.delete_crawl, name, seconds=STEP_SECONDS))
        crawls = with_refusals(await self._frontier.crawls())
        plan, now = removals(crawls), self._clock()
        removed = [crawl for crawl in crawls if _is_due(plan[crawl.id].removed_at, now)]
        removed = await self._without_waiting(removed)
        self._tell(removed, plan)
        for crawl in removed:
            await self._stepwise(partial(self._frontier.delete_crawl, crawl.id, seconds=STEP_SECONDS))
        gone = {crawl.id for crawl in removed}
        for crawl in crawls:
            is_begun = crawl.keys == "dropping"
            if crawl.id in gone or not (is_begun or _is_due(plan[crawl.id].keys_dropped_at, now)):
                continue
            # UsageError: the crawl runs again. It has lost no key; only the mark is removed.
            with contextlib.suppress(UsageError):
                await self._stepwise(partial(self._frontier.drop_keys, crawl.id, seconds=STEP_SECONDS))
                if not is_begun:
                    by = plan[crawl.id].keys_dropped_by
                    self._say(f"the URL keys of {crawl.id} were dropped ({by}): it is finished, and takes no more URLs")

    async def _without_waiting(self, crawls: list[Crawl]) -> list[Crawl]:
        """The crawls without entries in their inbox."""
        async with self._inbox() as inbox:
            counts = await inbox.count([crawl.id for crawl in crawls])
        return [crawl for crawl in crawls if crawl.id not in counts]

    async def _stepwise(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Repeat the step until it is done, and renew the duty between steps."""
        while not await step():
            await self._frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)

    def _tell(self, removed: Iterable[Crawl], plan: dict[str, Removal]) -> None:
        """Report removals before they are done."""
        groups: dict[tuple[str, str], list[str]] = {}
        for crawl in removed:
            groups.setdefault((crawl.spider, plan[crawl.id].removed_by), []).append(crawl.id)
        for (spider, by), names in groups.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            named = f"{', '.join(names[:NAMED])}{more}"
            leaving = f"{several(len(names), 'ended crawl')} of {spider} removed from the frontier ({by})"
            self._say(f"{leaving}: {named}; items, log and archived pages stay")


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _noted(notes: bytes) -> Cleared:
    try:
        return msgspec.json.decode(notes, type=Cleared) if notes else Cleared()
    except msgspec.DecodeError:
        return Cleared()
