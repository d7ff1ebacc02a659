"""Removes from the frontier what ended crawls leave there. Of all processes of a fleet, one at a time does it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.crawl.opening import Places, inbox_at
from shoal.crawl.record import with_refusals
from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.processes.lifetimes import Fate, fates
from shoal.text.errors import several
from shoal.worker.outages import until_reachable

if TYPE_CHECKING:
    from shoal.crawl.inbox import Inbox

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
