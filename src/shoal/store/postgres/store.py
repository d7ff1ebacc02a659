"""Items and the fetch log in a PostgreSQL database, shared by the workers of many machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import asyncpg

from shoal.store.base import (
    Difference,
    FetchRow,
    ItemFilter,
    ItemPage,
    ItemRow,
    ItemRule,
    QueryAnswer,
    ScrapedPage,
    StoredItem,
)
from shoal.store.postgres import presence, read
from shoal.store.postgres.address import parse_address
from shoal.store.postgres.connection import Connection, PostgresLink, RowRefused, shoal_error
from shoal.store.postgres.log_weeks import PostgresLogWeeks, Weeks, drop_lines, drop_weeks
from shoal.store.postgres.outbox import PostgresOutbox
from shoal.store.postgres.schema import prepare
from shoal.store.postgres.views import PostgresViews
from shoal.store.postgres.write import drop_versions, kept_time, write_fetches, write_items
from shoal.store.rules import check_moments, mended, storable_keys, storable_pages, week_of

QUERY_SECONDS = 60.0


class PostgresStore:
    """Implements `Store` in a schema of a database."""

    wants_hashes = True

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._weeks = Weeks(link)
        self.outbox = PostgresOutbox(link)
        self.views = PostgresViews(link)
        self.log_weeks = PostgresLogWeeks(link)

    @classmethod
    async def open(cls, url: str, *, connections: int = 2) -> PostgresStore:
        """Connect, with at most `connections` at once, and create the tables if needed."""
        link = PostgresLink(parse_address(url), connections=connections)
        try:
            await prepare(link)
        except BaseException:
            await link.close()
            raise
        return cls(link)

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        pages: Sequence[ScrapedPage] = (),
    ) -> dict[int, str]:
        """Write all rows or none in one transaction; returns why items can never be stored."""
        if not items and not fetches and not pages:
            return {}
        lines, pages = [mended(row) for row in fetches], storable_pages(pages)
        await self._weeks.need({week_of(kept_time(row.at)) for row in lines})
        try:
            async with self._link.transaction() as connection:
                if pages:
                    await presence.lock_items(connection, items, pages)
                refused = await write_items(connection, items, rule=rule)
                await presence.write_pages(connection, pages)
                await write_fetches(connection, lines)
        except RowRefused:
            refused = await self._write_what_can_be(items, lines, rule=rule, pages=pages)
        return refused

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        """Mark items as gone, a batch per transaction."""
        gone = 0
        if missing_before is not None:
            gone += await presence.mark_missing_gone(self._link, spider, at=at, missing_before=missing_before)
        if unseen_since is not None:
            gone += await presence.mark_unseen_gone(self._link, spider, at=at, unseen_since=unseen_since)
        return gone

    def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream items by spider and key."""
        return read.items(self._link, which)

    def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream the kept versions by spider, key and number."""
        return read.versions(self._link, which)

    def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        """Stream differences by key."""
        check_moments(since, until)
        return presence.differences(self._link, spider, since=since, until=until)

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        """Count the items that match."""
        return await read.count(self._link, which)

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        """How many items of the spider each crawl wrote last."""
        return await read.count_by_crawl(self._link, spider)

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        """Items by their last change, latest first."""
        return await read.newest(self._link, which, limit=limit, after=after, search=search)

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """The items with these keys."""
        return await read.items_named(self._link, spider, storable_keys(keys))

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The latest log line of each of these tasks."""
        return await read.fetches(self._link, crawl, list(dict.fromkeys(keys)))

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        """The latest log line of each task with this URL, found by the index on URLs."""
        return await read.fetches_of(self._link, crawls, url, limit=limit)

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """The log lines of one task, newest first."""
        return await read.attempts(self._link, crawl, key)

    async def tidy(self, *, retention: float) -> int:
        """Drop whole weeks of the log, and old lines outside of these weeks."""
        weeks = await drop_weeks(self._link, retention=retention)
        return weeks + await drop_lines(self._link, retention=retention)

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        """Delete contents that were replaced long ago, a batch per transaction."""
        return await drop_versions(self._link, spider, retention=retention)

    async def query(self, sql: str, *, limit: int, seconds: float = QUERY_SECONDS) -> QueryAnswer:
        """Run one statement in a read-only transaction."""
        return await read.answer(self._link, sql, limit=limit, seconds=seconds)

    async def has_log(self, crawl: str) -> bool:
        """Whether the fetch log has a line of this crawl."""
        return await read.has_log(self._link, crawl)

    async def delete_crawl(self, crawl: str) -> None:
        """Delete the crawl's fetch log, in steps."""
        await read.delete_crawl(self._link, crawl)

    async def delete_items(self, spider: str, crawl: str) -> int:
        """Delete items with their versions, a batch per transaction."""
        return await presence.delete_items(self._link, spider, crawl)

    async def close(self) -> None:
        """Wait for running writes and disconnect. Closing again is harmless."""
        await self._link.close()

    async def _write_what_can_be(
        self, items: Sequence[ItemRow], lines: Sequence[FetchRow], *, rule: ItemRule, pages: Sequence[ScrapedPage]
    ) -> dict[int, str]:
        """The server refused a row that passed our checks: find it by halving and store the others."""
        refused: dict[int, str] = {}

        async def write_some(connection: Connection, indexes: range) -> None:
            await connection.execute("SAVEPOINT half")
            try:
                refused.update(await write_items(connection, items, rule=rule, indexes=indexes))
            except asyncpg.PostgresError as error:
                why = shoal_error(error, self._link.address)
                if not isinstance(why, RowRefused):
                    raise
                await connection.execute("ROLLBACK TO SAVEPOINT half")
                if len(indexes) == 1:
                    refused[indexes[0]] = str(why)
                    return
                middle = len(indexes) // 2
                await write_some(connection, indexes[:middle])
                await write_some(connection, indexes[middle:])
            else:
                await connection.execute("RELEASE SAVEPOINT half")

        async with self._link.transaction() as connection:
            await write_some(connection, range(len(items)))
            await presence.write_pages(connection, pages)
            await write_fetches(connection, lines)
        return refused
