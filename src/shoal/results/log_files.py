"""Retention of old data in a store during a crawl: drops old contents of items and old lines of the fetch log, or moves
the lines to Parquet files in an archive first."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from shoal.archive.base import Archive
from shoal.crawl.opening import archive_at
from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.store.base import FetchRow, LogPart, Store
from shoal.text.errors import several
from shoal.version import install_command
from shoal.worker.outages import until_reachable

_EARLIEST: Final = -62_135_596_800.0  # the year 1: readers of Parquet know no earlier time
_NUMBERS: Final = ("key", "token", "attempt", "status", "size", "parent")

Say = Callable[[str], None]
EVERY_SECONDS: Final = 3600.0


async def check_log_archive(settings: Settings, *, store: str) -> None:
    """UsageError if log lines cannot be moved to this URL. An archive that cannot be reached now is accepted."""
    if not settings.retention_archive:
        return
    _pyarrow()
    if store.startswith("files:"):
        raise UsageError(
            f"the log in {store} is fetches-*.jsonl already, which you may copy: leave out `retention_archive`, or"
            " crawl into --store items.db or postgresql://…"
        )
    with suppress(ServerUnreachable):
        async with archive_at(settings.retention_archive, create=True):
            pass


async def move_log(store: Store, archive: str, *, retention: float, say: Say) -> AsyncIterator[int]:
    """Move the weeks of a store's log that ended more than `retention` seconds ago to the archive, in steps; yields the
    number of lines of each step."""
    archive = _from_anywhere(archive)
    async with archive_at(archive, create=True) as opened:

        async def put(part: LogPart) -> None:
            if part.begun_in:
                say(
                    f"{part.name} was begun in {part.begun_in} and goes to {archive} now: if the former archive has it,"
                    " delete it there"
                )
            await write_part(opened, part)

        async for lines in store.log_weeks.move(retention=retention, archive=archive, put=put):
            yield lines


def _from_anywhere(archive: str) -> str:
    """The URL with an absolute path: the next process may run in another folder."""
    return archive if "://" in archive else str(Path(archive).absolute())


async def write_part(archive: Archive, part: LogPart) -> None:
    """Write the lines of a part and read the file back. Raises if it does not have all of them."""
    await archive.write_log(part.name, await asyncio.to_thread(as_parquet, part.lines))
    there = await asyncio.to_thread(_count, await archive.read_log(part.name), part.name)
    if there != len(part.lines):
        raise StorageError(f"{part.name} has {several(there, 'log line')} where {len(part.lines)} were written")


def as_parquet(lines: Sequence[FetchRow]) -> bytes:
    """Log lines as a Parquet file with the columns of `fetches`, ordered by time."""
    arrow, parquet = _pyarrow()
    ordered = sorted(lines, key=lambda line: (line.at, line.crawl, line.key, line.token))
    columns = {name: [getattr(line, name) for line in ordered] for name in FetchRow.__struct_fields__}
    columns["host"] = [line.url.split("/", 3)[2] if line.url.count("/") > 1 else "" for line in ordered]
    columns["at"] = [round(max(at, _EARLIEST) * 1_000_000) for at in columns["at"]]
    schema = arrow.schema([(name, _kind(arrow, name)) for name in columns])
    table = arrow.table(
        {name: arrow.array(values, schema.field(name).type) for name, values in columns.items()}, schema=schema
    )
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _kind(arrow: Any, column: str) -> Any:
    if column in _NUMBERS:
        return arrow.int64()
    if column == "at":
        return arrow.timestamp("us", tz="UTC")
    return arrow.float64() if column == "elapsed" else arrow.string()


def _count(octets: bytes, name: str) -> int:
    arrow, parquet = _pyarrow()
    try:
        # Reads the whole file: the count alone may survive damage.
        return int(parquet.read_table(io.BytesIO(octets)).num_rows)
    except (arrow.ArrowException, OSError) as error:
        raise StorageError(f"{name} is damaged in the archive: {error}") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"Parquet files need pyarrow: {install_command('parquet')}") from None
    return pyarrow, pyarrow.parquet


class Retention:
    """Applies `retention`, `retention_archive` and `versions_retention` to the store of a crawl."""

    def __init__(self, store: Store, settings: Settings, *, spider: str, say: Say) -> None:
        self._store = store
        self._spider = spider
        self._say = say
        self._versions = parse_duration(settings.versions_retention)
        self._retention = parse_duration(settings.retention)
        self._archive = settings.retention_archive
        self._troubles: dict[str, str] = {}

    async def run(self) -> None:
        """Drop or move old data now and every hour, until cancelled."""
        while self._retention or self._versions:
            if self._retention:
                tidy = partial(self._store.tidy, retention=self._retention)
                await self._try(self._move_log if self._archive else tidy, "old weeks of the log")
            if self._versions:
                tidy = partial(self._store.tidy_versions, self._spider, retention=self._versions)
                await self._try(tidy, "old contents of items")
            await asyncio.sleep(EVERY_SECONDS)

    async def _try(self, step: Callable[[], Awaitable[object]], what: str) -> None:
        """Run a step; an error is reported once and the step repeated in an hour."""
        trouble = ""
        try:
            await until_reachable(step, say=self._say)
        except ShoalError as error:
            trouble = str(error)
            if trouble != self._troubles.get(what):
                self._say(f"{what} stay in the store: {trouble}")
        self._troubles[what] = trouble

    async def _move_log(self) -> None:

        moved = 0
        try:
            async for lines in move_log(self._store, self._archive, retention=self._retention, say=self._say):
                moved += lines
        finally:
            if moved:
                self._say(f"{several(moved, 'log line')} moved to {self._archive}")
