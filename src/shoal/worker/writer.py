"""The bounded buffer between pages and stores. Batches are written to the archive, then the store, then settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from shoal.archive.base import Archive
from shoal.frontier.base import Frontier
from shoal.journey.results import Finished, unstorable_item
from shoal.journey.stages import with_capture
from shoal.model import Dead, Done, Handed, PutReport, Result, Retry, SettleReport, Task
from shoal.policy.verdicts import ITEMS, START_FAILED, START_OK
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.store.base import ItemRule, Store
from shoal.worker.outages import Outages, until_reachable
from shoal.worker.tally import Tally

T = TypeVar("T")

FOUND_PER_PUT = 500
REFUSED_RETRY_SECONDS = 1.0
# Results stay in memory until they are written: this many bytes are a full batch, however few pages they are from.
BATCH_BYTES = 16 * 1024 * 1024
LINK_BYTES = 1000


def rule_of(settings: Settings) -> ItemRule:
    """How an item that is written again changes the stored one, by the settings."""
    return ItemRule(
        merge=settings.merge, freshness=parse_duration(settings.freshness), keep_versions=settings.keep_versions
    )


class Writer:
    """Writes finished pages every `pages` pages or `seconds` seconds, whichever is first. `stored` gets each batch
    before it is settled, `settled` its results after that."""

    def __init__(
        self,
        *,
        store: Store,
        frontier: Frontier,
        pages: int,
        seconds: float,
        settled: Callable[[list[Result], SettleReport], None],
        say: Callable[[str], None],
        rule: ItemRule = ItemRule(),
        archive: Archive | None = None,
        outages: Outages | None = None,
        tally: Tally | None = None,
        stored: Callable[[list[Finished]], None] | None = None,
    ) -> None:
        self._tally = tally or Tally()
        self._stored = stored
        self._outages = outages or Outages()
        self._rule = rule
        self._archive = archive
        self._store = store
        self._frontier = frontier
        self._pages = pages
        self._seconds = seconds
        self._settled = settled
        self._say = say
        self._buffer: list[Finished] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._has_ended = False

    @property
    def has_room(self) -> bool:
        return len(self._buffer) < 2 * self._pages and self._bytes < 2 * BATCH_BYTES

    async def add(self, finished: Finished) -> None:
        """Take a finished page; waits while the buffer is full, so that a slow store slows the worker down."""
        while not self.has_room and not self._has_ended:
            self._room.clear()
            await self._room.wait()
        self._buffer.append(finished)
        self._bytes += _size(finished)
        self._arrived.set()
        if len(self._buffer) >= self._pages or self._bytes >= BATCH_BYTES:
            self._full.set()

    def flush(self) -> None:
        """Write the pages in the buffer now, without waiting for more of them."""
        if self._buffer:
            self._full.set()

    async def run(self) -> None:
        """Write until closed and empty."""
        try:
            while True:
                await self._arrived.wait()
                await self._wait_for_batch()
                batch = self._take()
                if not batch:
                    return
                await self._write(batch)
        finally:
            # The buffer is not emptied any more: a page that waits for room would wait for ever.
            self._has_ended = True
            self._room.set()

    def _take(self) -> list[Finished]:
        batch, self._buffer, self._bytes = self._buffer, [], 0
        self._full.clear()
        self._room.set()
        # Once closing it stays set: the run ends with the first empty batch.
        if not self._closing:
            self._arrived.clear()
        return batch

    def close(self) -> None:
        """Write the pages in the buffer without waiting for more, then end."""
        self._closing = True
        self._arrived.set()
        self._full.set()

    async def _wait_for_batch(self) -> None:
        if self._closing or self._full.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._full.wait()

    async def _write(self, batch: list[Finished]) -> None:
        batch = await self._archived(batch)
        items = [row for finished in batch for row in finished.items]
        fetches = [finished.fetch for finished in batch if finished.fetch is not None]
        looks = [finished.look for finished in batch if finished.look is not None]
        unstorable: dict[int, str] = {}
        if items or fetches:
            unstorable = await until_reachable(
                lambda: self._tally.written(self._store.write(items, fetches, rule=self._rule, looks=looks)),
                say=self._say,
                outage=self._outages.store,
            )
        batch = await self._give_up_unstorable(batch, unstorable)
        if self._stored is not None:
            self._stored(batch)
        await self._settle([finished.result for finished in batch])

    async def _archived(self, batch: list[Finished]) -> list[Finished]:
        """The batch after its raw pages were archived: each log line names the object with its page's capture."""
        archive, pages = self._archive, [finished.page for finished in batch if finished.page is not None]
        if archive is None or not pages:
            return batch
        names = iter(await until_reachable(lambda: archive.write(pages), say=self._say, outage=self._outages.archive))
        return [finished if finished.page is None else _with_archive_name(finished, next(names)) for finished in batch]

    async def _give_up_unstorable(self, batch: list[Finished], unstorable: dict[int, str]) -> list[Finished]:
        """Pages with an item that can never be stored end as dead letters; the links they found are put first."""
        reasons = _reasons(batch, unstorable)
        if not reasons:
            return batch
        refused = _refused_by_page(batch, unstorable)
        ended = [
            _given_up(finished, reasons.get(index, ""), refused=refused[index]) for index, finished in enumerate(batch)
        ]
        for index in reasons:
            result = batch[index].result
            found = result.found if isinstance(result, Done) else []
            for start in range(0, len(found), FOUND_PER_PUT):
                await self._put(result.lease.crawl, found[start : start + FOUND_PER_PUT])
        lines = [line for index in reasons if (line := ended[index].fetch) is not None]
        if lines:
            await until_reachable(lambda: self._store.write([], lines), say=self._say, outage=self._outages.store)
        return ended

    async def _settle(self, results: list[Result]) -> None:
        report = await self._reach(lambda: self._tally.settles.timed(self._frontier.settle(results)))
        self._settled([result for index, result in enumerate(results) if index not in report.failed], report)
        again = [_refused(results[index], why) for index, why in report.failed.items()]
        if again:
            second = await self._reach(lambda: self._frontier.settle(again))
            self._settled(again, second)

    async def _reach(self, step: Callable[[], Awaitable[T]]) -> T:
        return await until_reachable(step, say=self._say, outage=self._outages.frontier)

    async def _put(self, crawl: str, tasks: list[Task]) -> PutReport:
        return await self._reach(lambda: self._frontier.put(crawl, tasks))


def _size(finished: Finished) -> int:
    """About how many bytes a finished page keeps in memory: pages decide how long their texts are."""
    body = len(finished.page.body) if finished.page is not None else 0
    links = len(finished.result.found) if isinstance(finished.result, Done) else 0
    return body + LINK_BYTES * links + sum(len(item.data) for item in finished.items)


def _with_archive_name(finished: Finished, name: str) -> Finished:
    row, result = finished.fetch and msgspec.structs.replace(finished.fetch, archived=name), finished.result
    if isinstance(result, Handed) and finished.page is not None:
        result = with_capture(result, content_hash=finished.page.capture.content_hash, archived=name)
    return msgspec.structs.replace(finished, result=result, fetch=row, page=None)


def _reasons(batch: list[Finished], unstorable: dict[int, str]) -> dict[int, str]:
    """Why pages are given up, by their index in the batch: the first item of each that no store takes."""
    reasons = {index: finished.unstorable for index, finished in enumerate(batch) if finished.unstorable}
    if unstorable:
        owners = [(index, row) for index, finished in enumerate(batch) for row in finished.items]
        for item, why in unstorable.items():
            index, row = owners[item]
            reasons.setdefault(index, unstorable_item(row.key, why))
    return reasons


def _refused_by_page(batch: list[Finished], unstorable: dict[int, str]) -> Counter[int]:
    """How many items of a page the store refused, by the page's index in the batch."""
    owners = [index for index, finished in enumerate(batch) for _ in finished.items] if unstorable else []
    return Counter(owners[item] for item in unstorable)


def _given_up(finished: Finished, reason: str, *, refused: int) -> Finished:
    if not reason:
        return finished
    result, line = finished.result, finished.fetch
    notes = dict(result.notes) if isinstance(result, Done) else {}
    if notes.pop(START_OK, None):
        notes[f"{START_FAILED}{reason.partition(':')[0]}"] = 1
    if refused and ITEMS in notes:
        notes[ITEMS] -= refused
    dead = Dead(lease=result.lease, reason=reason, lane=result.lane, notes=notes)
    if line is not None:
        line = msgspec.structs.replace(line, outcome="unstorable", error=reason)
    return Finished(dead, finished.items, line)


def _refused(result: Result, why: str) -> Result:
    """A result that the frontier cannot take ends as a failed attempt, instead of leaving its lease open."""
    reason = f"unsettled: {' '.join(why.split())}"[:500].encode("utf-8", "backslashreplace").decode()
    return Retry(lease=result.lease, reason=reason, delay=REFUSED_RETRY_SECONDS)
