"""A store of JSON Lines in a folder, read through a SQLite index that can be rebuilt at any time.

It has no item views, because the index may be deleted, and does not move its log, because the log is files already."""

from __future__ import annotations

import asyncio
import heapq
import shlex
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from shoal.errors import StorageBroken, StorageError, UsageError
from shoal.sqlite_file import connect, storage_errors, transaction
from shoal.store.base import (
    Difference,
    FetchRow,
    ItemFilter,
    ItemPage,
    ItemRow,
    ItemRule,
    MovedPart,
    Put,
    QueryAnswer,
    ScrapedPage,
    Store,
    StoredItem,
)
from shoal.store.files.outbox import FilesOutbox, read_sinks
from shoal.store.files.segments import (
    FETCHES,
    ITEMS,
    PAGES,
    FetchLine,
    GoneOrder,
    ItemLine,
    PageLine,
    Segment,
    batches,
    drop_old_log,
    ends_line,
    fetch_lines,
    item_lines,
    locked,
    page_lines,
    segments,
)
from shoal.store.item_views import ItemView, ViewCount
from shoal.store.rules import mended, storable, storable_pages


class NoViews:
    """Implements `Views` by refusing: no table here would last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def all(self) -> list[ItemView]:
        """Always empty."""
        return []

    async def make(self, view: ItemView) -> None:
        """Refuse."""
        raise self._refusal(view.spider)

    async def fill(self, name: str) -> AsyncIterator[int]:
        """Refuse."""
        raise self._refusal(name)
        yield 0

    async def count(self, name: str) -> ViewCount:
        """Refuse."""
        raise self._refusal(name)

    async def drop(self, name: str) -> bool:
        """Always False."""
        return False

    def _refusal(self, spider: str) -> UsageError:
        url = f"files:{self._folder}"
        export = f"shoal export --spider {shlex.quote(spider)} -o items.parquet --store {shlex.quote(url)}"
        return UsageError(
            f"{url} has no database of its own to keep a view in: write `{export}`, which has a column for each field,"
            " or crawl into --store items.db or postgresql://…"
        )


class NoLogWeeks:
    """Implements `LogWeeks` by refusing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Refuse."""
        raise UsageError(
            f"the log in files:{self._folder} is fetches-*.jsonl already, which you may copy: leave out"
            " `retention_archive`, or crawl into --store items.db or postgresql://…"
        )
        yield 0

    async def moved(self) -> list[MovedPart]:
        """Always empty."""
        return []


INDEX = "index.db"
LOCK = "index.lock"
CHUNK_ROWS = 2000

OpenIndex = Callable[[Path], Awaitable[Store]]
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class Chunk(msgspec.Struct, kw_only=True):
    """Lines that are written to the index together, and the offsets that the segments are then read to."""

    rule: ItemRule = ItemRule()
    items: list[ItemRow] = msgspec.field(default_factory=list)
    fetches: list[FetchRow] = msgspec.field(default_factory=list)
    pages: list[ScrapedPage] = msgspec.field(default_factory=list)
    deleted_crawl: str = ""
    gone: PageLine | None = None
    done: dict[str, int] = msgspec.field(default_factory=dict)


class FilesStore:
    """Implements `Store` in a folder of JSON Lines. Several processes may write at once, each to its own files."""

    wants_hashes = False

    def __init__(
        self, folder: Path, *, open_index: OpenIndex, thread: ThreadPoolExecutor, clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._open_index = open_index
        self._thread = thread
        self._clock = clock
        self._segment: Segment | None = None
        self._index: Store | None = None
        self._offsets: sqlite3.Connection | None = None
        self._reading = asyncio.Lock()
        self._is_open = True
        self.outbox = FilesOutbox(folder, up_to_date=self._with_items, opened=self._opened)
        self.views = NoViews(folder)
        self.log_weeks = NoLogWeeks(folder)

    @classmethod
    async def open(cls, folder: Path, *, open_index: OpenIndex, clock: Callable[[], float] = time.time) -> FilesStore:
        """Create the folder if needed. The index is opened by the first read."""
        await asyncio.to_thread(_make, folder)
        thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-files")
        return cls(folder, open_index=open_index, thread=thread, clock=clock)

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        pages: Sequence[ScrapedPage] = (),
    ) -> dict[int, str]:
        """Append all rows or none; they are on disk when this returns."""
        return await self._run(self._write, items, fetches, rule, pages) if items or fetches or pages else {}

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        """Append the order and apply it, while no other process updates the index, so that the count is exact."""
        order = GoneOrder(at=at, missing_before=missing_before, unseen_since=unseen_since)
        return await self._order(ScrapedPage(spider=spider, url="", keys=(), at=at), gone=order)

    async def delete_items(self, spider: str, crawl: str) -> int:
        """Append the order and apply it. The lines stay in their files but are no longer read."""
        return await self._order(ScrapedPage(spider=spider, url="", keys=(), at=self._clock()), deletes=crawl)

    async def _order(self, page: ScrapedPage, *, gone: GoneOrder | None = None, deletes: str = "") -> int:
        """Append an order and update the index with it; returns how many items it affected."""
        async with self._alone():
            index = await self._index_alone()
            # Orders of other processes: not part of this count.
            await self._fold(ITEMS, index)
            lines = page_lines([page], now=self._clock(), gone=gone, deletes=deletes)
            await self._run(self._append, b"", b"", lines)
            return await self._fold(ITEMS, index)

    async def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream items in the order in which they reached the index."""
        async for item in (await self._up_to_date()).items(which):
            yield item

    async def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Every kept version of these items."""
        async for item in (await self._up_to_date()).versions(which):
            yield item

    async def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        """How the spider's items differ between two moments."""
        async for one in (await self._up_to_date()).differences(spider, since=since, until=until):
            yield one

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        """Count the items that match."""
        return await (await self._up_to_date()).count_items(which)

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        """How many items of the spider each crawl wrote last."""
        return await (await self._up_to_date()).count_by_crawl(spider)

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        """Items in the order in which they reached the index, the last first."""
        return await (await self._up_to_date()).newest(which, limit=limit, after=after, search=search)

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """The items with these keys."""
        return await (await self._up_to_date()).items_named(spider, keys)

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The latest log line of each of these tasks."""
        return await (await self._up_to_date()).fetches(crawl, keys)

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        """The latest log line of each task with this URL."""
        return await (await self._up_to_date()).fetches_of(crawls, url, limit=limit)

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """The log lines of one task, newest first."""
        return await (await self._up_to_date()).attempts(crawl, key)

    async def tidy(self, *, retention: float) -> int:
        """Delete old lines from the index, and log files that were not written to for `retention` seconds."""
        index = await self._up_to_date()
        async with self._alone():
            dropped = await self._run(self._drop_old, self._clock() - retention)
        return dropped + await index.tidy(retention=retention)

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        """Delete old contents from the index. Their lines stay in their files."""
        return await (await self._up_to_date()).tidy_versions(spider, retention=retention)

    async def query(self, sql: str, *, limit: int) -> QueryAnswer:
        """Run one read-only statement on the index."""
        return await (await self._up_to_date()).query(sql, limit=limit)

    async def has_log(self, crawl: str) -> bool:
        """Whether the fetch log has a line of this crawl."""
        return await (await self._up_to_date()).has_log(crawl)

    async def delete_crawl(self, crawl: str) -> None:
        """Delete the crawl's log from the index. A line in the log repeats this when the index is rebuilt."""
        now = self._clock()
        line = FetchRow(crawl=crawl, key=0, url="", outcome="", token=0, attempt=0, at=now)
        await self._run(self._append, b"", fetch_lines([line], now=now, deletes=True))

    async def close(self) -> None:
        """Wait for running writes and close the files. Closing again is harmless."""
        if self._is_open:
            self._is_open = False
            await self._run(self._close)
            self._thread.shutdown(wait=False)
            if self._index is not None:
                await self._index.close()

    async def _run(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        def translated() -> _Result:
            with storage_errors(self._folder / INDEX):
                return work(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    def _write(
        self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], rule: ItemRule, pages: Sequence[ScrapedPage]
    ) -> dict[int, str]:
        good, refused = storable(items)
        now = self._clock()
        self._append(
            item_lines([row for row, _ in good], rule=rule, now=now),
            fetch_lines(list(map(mended, fetches)), now=now),
            page_lines(storable_pages(pages), now=now),
        )
        return refused

    def _append(self, items: bytes, fetches: bytes, pages: bytes = b"") -> None:
        if self._segment is not None and self._segment.is_full:
            self._segment.close()
            self._segment = None
        if self._segment is None:
            try:
                self._segment = Segment.take(self._folder, now=self._clock())
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StorageBroken(
                    f"{self._folder} was deleted or moved away while shoal used it: restore it, or run again to start"
                    " afresh"
                ) from error
            except OSError as error:
                why = error.strerror or str(error)
                raise StorageError(f"{self._folder}: {why}; fix that and run again") from error
        try:
            self._segment.append(items, fetches, pages)
        except StorageError:
            # Closed: the next process that takes this segment truncates a torn tail.
            self._segment.close()
            self._segment = None
            raise

    def _close(self) -> None:
        if self._segment is not None:
            self._segment.close()
        if self._offsets is not None:
            self._offsets.close()

    async def _up_to_date(self) -> Store:
        """The index with all rows written before this call."""
        return await self._folded(ITEMS, FETCHES)

    async def _with_items(self) -> Store:
        """The index with all items written before this call."""
        return await self._folded(ITEMS)

    async def _opened(self) -> Store:
        """The index as it is."""
        return await self._folded()

    async def _folded(self, *kinds: str) -> Store:
        async with self._alone():
            index = await self._index_alone()
            for kind in kinds:
                await self._fold(kind, index)
            return index

    async def _index_alone(self) -> Store:
        """The index, opened if needed, without new rows; the caller holds the lock."""
        if self._index is None:
            index = await self._open_index(self._folder / INDEX)
            self._offsets = await self._run(connect, self._folder / INDEX, part="segments")
            # Before the first item is written to a new index.
            for place in await self._run(read_sinks, self._folder):
                await index.outbox.add(place)
            self._index = index
        return self._index

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Lock the index: no other task or process updates it meanwhile."""
        async with self._reading:
            lock = locked(self._folder / LOCK)
            await asyncio.to_thread(lock.__enter__)
            try:
                yield
            finally:
                lock.__exit__(None, None, None)

    async def _fold(self, kind: str, index: Store) -> int:
        """Write the unread lines of a kind to the index; returns how many items their orders affected."""
        gone = 0
        chunks = await self._run(self._unread, kind)
        while (chunk := await self._run(next, chunks, None)) is not None:
            if chunk.items or chunk.fetches or chunk.pages:
                await index.write(chunk.items, chunk.fetches, rule=chunk.rule, pages=chunk.pages)
            if chunk.deleted_crawl:
                await index.delete_crawl(chunk.deleted_crawl)
            if chunk.gone is not None and chunk.gone.gone is not None:
                gone += await index.mark_gone(chunk.gone.spider, **msgspec.structs.asdict(chunk.gone.gone))
            elif chunk.gone is not None:
                gone += await index.delete_items(chunk.gone.spider, chunk.gone.deletes)
            await self._run(self._save, chunk.done)
        return gone

    def _unread(self, kind: str) -> Iterator[Chunk]:
        """The lines that are not in the index yet, of all processes, in the order of writing."""
        done = dict(self._connection.execute("SELECT name, done FROM segment"))
        streams = []
        # Pages follow the items of the same write: `merge` keeps the order of streams at equal times.
        for one in (ITEMS, PAGES) if kind == ITEMS else (kind,):
            for path in segments(self._folder, one):
                start = done.get(path.name, 0)
                if path.stat().st_size != start:
                    streams.append(_written(path, one, start=start if ends_line(path, start) else 0))
        return _chunks(heapq.merge(*streams, key=lambda part: part[0]))

    def _save(self, done: dict[str, int]) -> None:
        with transaction(self._connection):
            statement = "INSERT INTO segment (name, done) VALUES (?, ?) ON CONFLICT DO UPDATE SET done = excluded.done"
            for row in done.items():
                self._connection.execute(statement, row)

    def _drop_old(self, before: float) -> int:
        dropped = drop_old_log(self._folder, before=before)
        with transaction(self._connection):
            # A new file may get an old name: it must be read from the start.
            for name in dropped:
                self._connection.execute("DELETE FROM segment WHERE name = ?", (name,))
        return len(dropped)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._offsets is None:
            raise StorageError(f"{self._folder} is closed")
        return self._offsets


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror or error}; choose another folder") from None


def _written(path: Path, kind: str, *, start: int) -> Iterator[tuple[float, str, int, list[Any]]]:
    line: type[Any] = {ITEMS: ItemLine, FETCHES: FetchLine, PAGES: PageLine}[kind]
    for end, batch in batches(path, line, start=start):
        yield batch[-1].written, path.name, end, batch


def _chunks(parts: Iterator[tuple[float, str, int, list[Any]]]) -> Iterator[Chunk]:
    chunk = Chunk()
    for _, name, end, batch in parts:
        rule = batch[0].rule if isinstance(batch[0], ItemLine) else chunk.rule
        size = len(chunk.items) + len(chunk.fetches) + len(chunk.pages)
        # A store applies pages after items.
        is_after_pages = chunk.pages and isinstance(batch[0], ItemLine)
        if chunk.done and (rule != chunk.rule or size >= CHUNK_ROWS or is_after_pages):
            yield chunk
            chunk = Chunk()
        chunk.rule = rule
        chunk.done[name] = end
        _add(batch, chunk)
        if chunk.deleted_crawl or chunk.gone is not None:
            yield chunk
            chunk = Chunk()
    if chunk.done:
        yield chunk


def _add(batch: list[Any], chunk: Chunk) -> None:
    for line in batch:
        if isinstance(line, ItemLine):
            fields = {name: getattr(line, name) for name in ("spider", "key", "url", "crawl", "token", "at")}
            chunk.items.append(ItemRow(**fields, data=bytes(line.data)))
        elif isinstance(line, PageLine):
            if line.gone is not None or line.deletes:
                chunk.gone = line
            else:
                chunk.pages.append(ScrapedPage(**{name: getattr(line, name) for name in ScrapedPage.__struct_fields__}))
        elif line.deletes:
            chunk.deleted_crawl = line.crawl
        else:
            chunk.fetches.append(FetchRow(**{name: getattr(line, name) for name in FetchRow.__struct_fields__}))
