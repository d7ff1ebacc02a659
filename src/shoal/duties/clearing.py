"""Removes from the frontier what ended crawls leave there. Of all processes of a fleet, one at a time does it.

What becomes of crawls that have ended: when their URL keys are dropped, and when they leave the frontier.

By the settings of the spider's newest crawl. Only of the frontier: items, fetch log and archived pages stay.
"""

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


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What will become of one crawl. `removed_at` is when it may leave the frontier, by the setting in `removed_by`;
    None: as things are, it stays, for the reason in `stays`. `keys_dropped_at`: the same of its keys; None: they stay,
    or are gone already."""

    removed_at: float | None = None
    removed_by: str = ""
    stays: str = ""
    keys_dropped_at: float | None = None
    keys_dropped_by: str = ""


def fates(crawls: Sequence[Crawl]) -> dict[str, Fate]:
    """What will become of each crawl of a frontier. Crawls that this shoal must leave alone stay."""
    readable = _readable(crawls)
    needed = needed_by(readable)
    found = {crawl.id: Fate(stays="left alone") for crawl in crawls}
    for group in _by_spider(readable):
        settings = record_of(_newest(group)).settings
        ended, others = _divided(group)
        for crawl in others:
            found[crawl.id] = Fate(stays=str(crawl.state))
        for rank, crawl in enumerate(sorted(ended, key=_end_of, reverse=True)):
            found[crawl.id] = _fate(crawl, rank, settings, needer=needed.get(crawl.id, ""))
    return found


def _fate(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> Fate:
    keys_at, keys_by = _keys_dropped(crawl, rank, settings, needer=needer)
    fate = Fate(keys_dropped_at=keys_at, keys_dropped_by=keys_by)
    if needer:
        return msgspec.structs.replace(fate, stays=f"{needer} needs it")
    if rank == 0:
        return msgspec.structs.replace(fate, stays="newest of its spider")
    if settings.keep_crawls and rank >= settings.keep_crawls:
        by = f"keep_crawls = {settings.keep_crawls}"
        return msgspec.structs.replace(fate, removed_at=_end_of(crawl), removed_by=by)
    if ttl := parse_duration(settings.crawl_ttl):
        by = f"crawl_ttl = {settings.crawl_ttl}"
        return msgspec.structs.replace(fate, removed_at=_end_of(crawl) + ttl, removed_by=by)
    return msgspec.structs.replace(fate, stays="no setting removes it")


def _keys_dropped(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> tuple[float | None, str]:
    """A cancelled crawl may be resumed, and needs its keys for that. The next crawl of a spider that skips what it knew
    needs those of the newest one."""
    ttl = parse_duration(settings.known_ttl)
    is_source = rank == 0 and record_of(crawl).skips_known
    if crawl.state is not CrawlState.FINISHED or crawl.keys == "dropped" or not ttl or is_source or needer:
        return None, ""
    return _end_of(crawl) + ttl, f"known_ttl = {settings.known_ttl}"


def needed_by(crawls: Iterable[Crawl]) -> dict[str, str]:
    """The crawls that unfinished ones need, each with one that does: they ask for its pages only if they have changed,
    or still have to learn its keys."""
    unfinished = _unfinished(crawls)
    before = {name: crawl for crawl, record in unfinished.items() for name in record.before}
    return before | _known_from(unfinished)


def learns_from(crawls: Iterable[Crawl]) -> dict[str, str]:
    """Those of them whose keys an unfinished crawl still has to learn."""
    return _known_from(_unfinished(crawls))


def _known_from(unfinished: dict[str, CrawlRecord]) -> dict[str, str]:
    return {name: crawl for crawl, record in unfinished.items() for name in record.known_from}


def _unfinished(crawls: Iterable[Crawl]) -> dict[str, CrawlRecord]:
    groups = _by_spider(_readable(crawls))
    return {crawl.id: record_of(crawl) for group in groups for crawl in _divided(group)[1]}


def _divided(group: Sequence[Crawl]) -> tuple[list[Crawl], list[Crawl]]:
    """A spider's crawls: those that are over, and the others. One that was stopped is over once a newer one has begun:
    runs go on with that, and a spider that is stopped at a deadline every night would fill its frontier."""
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
    """The crawls of each spider's file. Two files may have a spider of one name; on machines with other folders the
    file's name tells which is which."""
    groups: dict[tuple[str, str], list[Crawl]] = {}
    for crawl in crawls:
        groups.setdefault((crawl.spider, _file_of(record_of(crawl))), []).append(crawl)
    return list(groups.values())


def _file_of(record: CrawlRecord) -> str:
    path = record.source.path or record.spider
    return path.replace("\\", "/").rpartition("/")[2].partition(":")[0]


def _end_of(crawl: Crawl) -> float:
    return crawl.created if crawl.finished is None else crawl.finished


DUTY: Final = "clearing"
EVERY_SECONDS: Final = 600.0
DUTY_SECONDS: Final = 60.0
STEP_SECONDS: Final = 2.0
NAMED: Final = 3

Say = Callable[[str], None]
InboxOf = Callable[[], AbstractAsyncContextManager["Inbox"]]


class Cleared(msgspec.Struct, frozen=True):
    """What the holders of the duty have noted: when one of them looked last."""

    at: float = 0.0


@asynccontextmanager
async def clearing_beside(places: Places, *, frontier: Frontier, say: Say) -> AsyncIterator[None]:
    """Ended crawls are cleared away meanwhile."""
    clearing = Clearing(frontier, inbox=partial(inbox_at, places), say=say)
    running = asyncio.create_task(clearing.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Clearing:
    """Looks at all crawls of a frontier, and removes what is due. Everything that it removes is said.

    `inbox`: a crawl with entries in its inbox stays until they are taken."""

    def __init__(self, frontier: Frontier, *, inbox: InboxOf, say: Say, clock: Callable[[], float] = time.time) -> None:
        self._frontier = frontier
        self._inbox = inbox
        self._say = say
        self._clock = clock
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._trouble = ""

    async def run(self) -> None:
        """Look at once and then every ten minutes, until cancelled. An error is said once; crawls do not suffer."""
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
        """Look once and remove what is due, unless another process has done so lately or does it now; gives whether
        this one did."""
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
            # Also when cancelled: a run that is over leaves the duty to the next process.
            with contextlib.suppress(ShoalError):
                await self._frontier.hold_duty(DUTY, self._holder, seconds=0.0, notes=notes)
        return True

    async def _clear(self) -> None:
        for name in await self._frontier.half_deleted():
            await self._stepwise(partial(self._frontier.delete_crawl, name, seconds=STEP_SECONDS))
        crawls = with_refusals(await self._frontier.crawls())
        plan, now = fates(crawls), self._clock()
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
            # One that runs again has lost no key: only its mark is taken away.
            with contextlib.suppress(UsageError):
                await self._stepwise(partial(self._frontier.drop_keys, crawl.id, seconds=STEP_SECONDS))
                if not is_begun:
                    by = plan[crawl.id].keys_dropped_by
                    self._say(f"the URL keys of {crawl.id} were dropped ({by}): it is finished, and takes no more URLs")

    async def _without_waiting(self, crawls: list[Crawl]) -> list[Crawl]:
        """Those that have no entries in their inbox."""
        async with self._inbox() as inbox:
            counts = await inbox.count([crawl.id for crawl in crawls])
        return [crawl for crawl in crawls if crawl.id not in counts]

    async def _stepwise(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Do all steps; the duty is kept meanwhile."""
        while not await step():
            await self._frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)

    def _tell(self, removed: Iterable[Crawl], plan: dict[str, Fate]) -> None:
        """Before it is done: nothing is removed in silence."""
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
