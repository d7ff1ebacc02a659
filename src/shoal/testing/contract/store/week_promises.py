"""Promises of stores with tables about old weeks of the log, which are moved before they are deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from shoal.errors import StorageError
from shoal.store.base import FetchRow, LogPart, Store
from shoal.store.rules import LINES_PER_PART, week_of, week_text
from shoal.testing.contract.store.rows import Reopen, fetch

A_DAY = 86_400.0
A_WEEK = 7 * A_DAY
PLACE = "s3://bucket/log"

Identity = tuple[str, int, int]


class Files:
    """A fake archive: the lines under each name. `refuses` simulates a full one."""

    def __init__(self) -> None:
        self.parts: dict[str, LogPart] = {}
        self.refuses = False

    async def put(self, part: LogPart) -> None:
        if self.refuses:
            raise StorageError("the archive is full")
        self.parts[part.name] = part

    def keys(self) -> list[int]:
        return sorted(line.key for part in self.parts.values() for line in part.lines)


async def moved(
    store: Store, put: Callable[[LogPart], Awaitable[None]], *, retention: float = 3 * A_WEEK, archive: str = PLACE
) -> list[int]:
    return [lines async for lines in store.log_weeks.move(retention=retention, archive=archive, put=put)]


async def left(store: Store, *keys: int) -> list[int]:
    return sorted(row.key for row in await store.fetches("c1", keys))


def monday_of_today() -> float:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (today - timedelta(days=today.weekday())).timestamp()


class WeekPromises:
    """Old weeks that are moved."""

    async def test_whole_weeks_go_oldest_first_and_the_others_stay(self, store: Store) -> None:
        monday, files = monday_of_today(), Files()
        # The retention begins in the middle of a week: that week stays whole.
        retention = time.time() - (monday - 10 * A_DAY)
        times = [monday - 2 * A_WEEK - 1, monday - 2 * A_WEEK, monday - 3 * A_WEEK, monday - A_DAY, 0.0]
        lines = [fetch(number, at=at) for number, at in enumerate(times)]
        await store.write([], lines)
        assert await moved(store, files.put, retention=retention) == [1, 2]
        first, second = files.parts.values()
        assert (first.week, [line.key for line in first.lines]) == ("1969-12-29", [4])
        assert second.week == week_text(week_of(monday - 3 * A_WEEK))
        assert sorted(line.key for line in second.lines) == [0, 2]
        assert second.name.startswith(f"log/week={second.week}/")
        assert second.name.endswith(".parquet")
        assert await left(store, *range(5)) == [1, 3]
        assert await moved(store, files.put, retention=retention) == []

    async def test_every_field_of_a_line_comes_along(self, store: Store) -> None:
        line = FetchRow(
            crawl="c1",
            key=-(2**63),
            url="https://a.test:8080/é?q=🐟",
            outcome="http_500",
            token=2**62,
            attempt=3,
            at=1_000_000.25,
            status=500,
            final_url="https://a.test/b",
            worker="host:1",
            exit="proxy",
            size=2**40,
            elapsed=1.5,
            error="Server said\n'no'",
            parent=2**63 - 1,
            content_hash="ab" * 32,
            archived="captures/c1/x.jsonl.zst",
            request="POST 12 abc",
            item_keys='["k"]',
            etag='"e"',
            last_modified="Mon, 02 Mar 2026 10:00:00 GMT",
        )
        files = Files()
        await store.write([], [line])
        assert await moved(store, files.put) == [1]
        [part] = files.parts.values()
        assert part.lines == [line]

    async def test_earlier_attempts_go_in_the_week_of_their_own_time(self, store: Store) -> None:
        now, files = time.time(), Files()
        await store.write([], [fetch(1, token=1, at=now - 5 * A_WEEK)])
        await store.write([], [fetch(1, token=2, attempt=2, at=now)])
        assert await moved(store, files.put) == [1]
        assert [line.token for part in files.parts.values() for line in part.lines] == [1]
        assert [line.token for line in await store.attempts("c1", 1)] == [2]

    async def test_what_cannot_be_written_stays_and_goes_later_under_the_same_name(self, store: Store) -> None:
        files, names = Files(), []
        await store.write([], [fetch(number) for number in range(3)])

        async def fails(part: LogPart) -> None:
            names.append(part.name)
            raise StorageError("the archive is full")

        for _ in range(2):
            with pytest.raises(StorageError, match="the archive is full"):
                await moved(store, fails)
        assert await left(store, 0, 1, 2) == [0, 1, 2]
        assert await store.log_weeks.moved() == []
        assert await moved(store, files.put) == [3]
        assert [*names, *files.parts] == [names[0]] * 3

    async def test_a_part_that_was_written_and_not_dropped_is_written_over_with_what_came_meanwhile(
        self, store: Store, reopen: Reopen
    ) -> None:
        files = Files()
        await store.write([], [fetch(1), fetch(2)])

        async def dies(part: LogPart) -> None:
            await files.put(part)
            raise StorageError("as if killed: the file is there")

        with pytest.raises(StorageError, match="as if killed"):
            await moved(store, dies)
        await store.close()
        store = await reopen()
        await store.write([], [fetch(3)])
        assert await moved(store, files.put) == [3]
        assert files.keys() == [1, 2, 3]
        assert await left(store, 1, 2, 3) == []

    async def test_a_part_whose_crawl_was_deleted_meanwhile_is_written_over_without_it(self, store: Store) -> None:
        files = Files()
        await store.write([], [fetch(1)])

        async def dies(part: LogPart) -> None:
            await files.put(part)
            raise StorageError("as if killed: the file is there")

        with pytest.raises(StorageError, match="as if killed"):
            await moved(store, dies)
        await store.delete_crawl("c1")
        assert await moved(store, files.put) == [0]
        assert files.keys() == []
        assert await store.log_weeks.moved() == []

    async def test_lines_that_come_for_a_week_that_has_gone_get_a_file_of_their_own(self, store: Store) -> None:
        files = Files()
        await store.write([], [fetch(1)])
        await moved(store, files.put)
        await store.write([], [fetch(2)])
        await moved(store, files.put)
        assert len(files.parts) == 2
        assert files.keys() == [1, 2]
        weeks = await store.log_weeks.moved()
        assert [(one.week, one.lines, one.archive) for one in weeks] == [("1969-12-29", 1, PLACE)] * 2
        assert [one.name for one in weeks] == list(files.parts)

    async def test_a_line_that_comes_while_its_week_is_written_is_not_dropped_with_it(
        self, store: Store, reopen: Reopen
    ) -> None:
        files, other = Files(), await reopen()
        await store.write([], [fetch(1)])

        async def put(part: LogPart) -> None:
            if not files.parts:
                await other.write([], [fetch(2)])
            await files.put(part)

        await moved(store, put)
        await moved(store, put)
        assert files.keys() == [1, 2]
        assert await left(store, 1, 2) == []

    async def test_a_task_that_is_tried_again_while_its_line_is_written_keeps_the_new_one(
        self, store: Store, reopen: Reopen
    ) -> None:
        files, other = Files(), await reopen()
        await store.write([], [fetch(1)])

        async def put(part: LogPart) -> None:
            await files.put(part)
            await other.write([], [fetch(1, token=2, attempt=2, at=time.time())])

        assert await moved(store, put) == [1]
        assert [line.token for line in await store.attempts("c1", 1)] == [2]
        assert await moved(store, files.put) == []

    async def test_while_one_process_moves_another_moves_nothing(self, store: Store, reopen: Reopen) -> None:
        files, other = Files(), await reopen()
        await store.write([], [fetch(1), fetch(2, at=30 * A_WEEK)])
        seen = []

        async def put(part: LogPart) -> None:
            seen.append(await moved(other, files.put))
            await files.put(part)

        assert await moved(store, put) == [1, 1]
        assert seen == [[], []]
        assert files.keys() == [1, 2]

    async def test_two_that_begin_together_leave_nothing_behind(self, store: Store, reopen: Reopen) -> None:
        files, other, number = Files(), await reopen(), 40
        await store.write([], [fetch(key, at=key * A_WEEK) for key in range(number)])
        counts = await asyncio.gather(moved(store, files.put), moved(other, files.put))
        assert sum(map(sum, counts)) == number
        assert files.keys() == list(range(number))
        assert await left(store, *range(number)) == []

    async def test_a_part_that_was_begun_for_another_archive_says_so(self, store: Store) -> None:
        files = Files()
        files.refuses = True
        await store.write([], [fetch(1)])
        with pytest.raises(StorageError):
            await moved(store, files.put)
        files.refuses = False
        await moved(store, files.put, archive="s3://other")
        [part] = files.parts.values()
        assert part.begun_in == PLACE
        assert [one.archive for one in await store.log_weeks.moved()] == ["s3://other"]

    async def test_a_large_week_goes_in_bounded_parts(self, store: Store) -> None:
        """A second: more lines than one part has."""
        files, number = Files(), LINES_PER_PART + 1000
        for start in range(0, number, 10_000):
            await store.write([], [fetch(key) for key in range(start, min(number, start + 10_000))])
        assert await moved(store, files.put) == [LINES_PER_PART, 1000]
        assert files.keys() == list(range(number))

    async def test_statements_see_what_has_gone_where(self, store: Store) -> None:
        files = Files()
        await store.write([], [fetch(1), fetch(2)])
        await moved(store, files.put)
        answer = await store.query("SELECT week, archive, lines, files FROM log_weeks", limit=10)
        assert [(str(row[0]), *row[1:]) for row in answer.rows] == [("1969-12-29", PLACE, 2, 1)]
