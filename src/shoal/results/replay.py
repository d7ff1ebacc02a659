"""Runs a spider's handlers over the archived pages of a crawl: no requests are sent, links are dropped, items are
stored."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec

from shoal.archive.base import Archive, Capture, task_of
from shoal.errors import StorageError
from shoal.fetch.base import Response
from shoal.journey.handlers import Handlers
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.journey.results import unstorable_item
from shoal.policy.retries import judge
from shoal.settings.table import Settings
from shoal.spider.markup import MarkupLimits, UnfitMarkup
from shoal.spider.page import Page
from shoal.spider.spider import Spider
from shoal.store.base import ItemRow, ItemRule, Store
from shoal.text.errors import line_of
from shoal.urls.canonical import lane_of
from shoal.worker.outages import until_reachable

_PUT = """
    INSERT INTO capture (key, token, line) VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, line = excluded.line WHERE excluded.token > token"""
_NEXT = "SELECT token, key, line FROM capture WHERE (token, key) > (?, ?) ORDER BY token, key LIMIT ?"
READ_AT_ONCE = 16
BATCH_ITEMS = 500
FAILURES_KEPT = 100


class CaptureIndex:
    """Sorts captures in a temporary file: the latest of each task, oldest first, in flat memory."""

    def __init__(self) -> None:
        # An empty name is a temporary file of SQLite, deleted when it is closed.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("CREATE TABLE capture (key INTEGER PRIMARY KEY, token INTEGER, line BLOB)")
        self._db.execute("CREATE INDEX capture_by_token ON capture (token, key)")
        self._db.execute("BEGIN")
        self._decoder = msgspec.json.Decoder(Capture)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def __len__(self) -> int:
        with closing(self._db.execute("SELECT count(*) FROM capture")) as cursor:
            return int(cursor.fetchone()[0])

    def add(self, captures: Iterable[Capture]) -> None:
        self._db.executemany(_PUT, ((one.key, one.token, msgspec.json.encode(one)) for one in captures))

    def in_order(self, *, at_once: int) -> Iterator[list[Capture]]:
        """The captures, oldest first, `at_once` at a time."""
        token, key = -(2**63), -(2**63)
        while rows := self._db.execute(_NEXT, (token, key, at_once)).fetchall():
            token, key, _ = rows[-1]
            yield [self._decoder.decode(line) for _, _, line in rows]


@dataclass(kw_only=True)
class ReplayReport:
    """The counts of a replay so far. `failures` are the first of the `failed` pages, each a URL and a reason."""

    crawl: str
    total: int = 0
    pages: int = 0
    skipped: int = 0
    items: int = 0
    links: int = 0
    failed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def fail(self, url: str, reason: str) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append((url, reason))


class Replay:
    """Handles the latest capture of each task of a crawl again, oldest first. `say` gets lines for people."""

    def __init__(
        self,
        crawl: str,
        *,
        spider: Spider,
        spider_name: str,
        settings: Settings,
        archive: Archive,
        store: Store,
        handlers: Handlers,
        intake: Intake,
        rule: ItemRule,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._crawl = crawl
        self._spider = spider
        self._spider_name = spider_name
        self._settings = settings
        self._archive = archive
        self._store = store
        self._handlers = handlers
        self._intake = intake
        self._rule = rule
        self._say = say
        self._clock = clock
        self._limits = MarkupLimits(settings.max_tags, settings.max_nesting)
        # A token like the frontier's: higher than those of all earlier scrapes, lower than those of later ones.
        self._token = int(clock() * 1000) * 1024
        self._rows: list[ItemRow] = []
        self._report = ReplayReport(crawl=crawl)

    async def run(self, *, limit: int = 0, show: Callable[[ReplayReport], None]) -> ReplayReport:
        """Replay all pages, or at most `limit`; `show` is called with the report so far."""
        report = self._report
        with CaptureIndex() as index:
            async for captures in self._archive.scan(self._crawl):
                index.add(captures)
                report.total += len(captures)
                show(report)
            report.total = min(limit or len(index), len(index))
            await self._spider.started()
            try:
                async with aclosing(self._with_bodies(index)) as pages:
                    async for capture, body in pages:
                        if report.pages + report.skipped >= report.total:
                            break
                        await self._take(capture, body)
                        show(report)
                await self._write()
            finally:
                await self._spider.finished()
        return report

    async def _with_bodies(self, index: CaptureIndex) -> AsyncGenerator[tuple[Capture, bytes | None]]:
        """Captures with their bodies. The next batch is read while this one is handled."""
        ahead: asyncio.Future[list[bytes | None]] | None = None
        waiting: list[Capture] = []
        try:
            for captures in index.in_order(at_once=READ_AT_ONCE):
                reading = asyncio.gather(*(self._body(capture) for capture in captures))
                if ahead is not None:
                    for pair in zip(waiting, await ahead, strict=True):
                        yield pair
                ahead, waiting = reading, captures
            if ahead is not None:
                for pair in zip(waiting, await ahead, strict=True):
                    yield pair
        finally:
            if ahead is not None:
                ahead.cancel()

    async def _body(self, capture: Capture) -> bytes | None:
        """The page's bytes; None if they are missing or damaged: only this page fails."""

        async def read() -> bytes | None:
            try:
                return await self._archive.body(capture.content_hash)
            except StorageError as error:
                self._report.fail(capture.url, f"archive: {error}")
                return None

        return await until_reachable(read, say=self._say)

    async def _take(self, capture: Capture, body: bytes | None) -> None:
        report, settings = self._report, self._settings
        response = _response(capture, body or b"")
        if judge(response, handle_statuses=settings.handle_statuses).action != "handle":
            report.skipped += 1
            return
        report.pages += 1
        if body is None:
            return
        task = task_of(capture, lane=lane_of(capture.url))
        page = Page(response, task=task, resolver=self._intake.rules, limits=self._limits)
        try:
            harvest = await self._handlers.run(page)
        except UnfitMarkup as error:
            report.fail(capture.url, f"too_complex: {error}")
        except Exception as error:
            report.fail(capture.url, f"handler: {line_of(error)}")
        else:
            await self._keep(capture, harvest)

    async def _keep(self, capture: Capture, harvest: Harvest) -> None:
        self._token += 1
        self._report.links += len(harvest.found.tasks)
        if harvest.unstorable:
            self._report.fail(capture.url, unstorable_item(*harvest.unstorable[0]))
        at = self._clock()
        self._rows += [
            ItemRow(
                spider=self._spider_name,
                key=item.key,
                crawl=self._crawl,
                url=capture.final_url,
                data=item.data,
                token=self._token,
                at=at,
            )
            for item in harvest.items
        ]
        if len(self._rows) >= BATCH_ITEMS:
            await self._write()

    async def _write(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        refused = await until_reachable(lambda: self._store.write(rows, [], rule=self._rule), say=self._say)
        self._report.items += len(rows) - len(refused)
        for index, why in refused.items():
            self._report.fail(rows[index].url, f"item {rows[index].key[:100]!r}: {why}")


def _response(capture: Capture, body: bytes) -> Response:
    return Response(
        url=capture.final_url,
        status=capture.status,
        headers=capture.headers,
        body=body,
        wire_size=len(body),
        elapsed=0.0,
    )
