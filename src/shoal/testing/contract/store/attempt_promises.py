"""What a store promises of the attempts at a task, and of the items that their lines name."""

from __future__ import annotations

import time

import pytest

from shoal.store.base import ATTEMPTS_KEPT, FetchRow, Store
from shoal.testing.contract.store.rows import Reopen, fetch, item


def attempt(number: int, **changes: object) -> FetchRow:
    """One attempt at the task 1; each has its own token and time."""
    return fetch(1, token=number, attempt=number, at=100.0 + number, **changes)


class AttemptPromises:
    @pytest.mark.parametrize("at_once", [True, False])
    async def test_keeps_every_attempt_at_a_task_newest_first(
        self, store: Store, reopen: Reopen, at_once: bool
    ) -> None:
        lines = [
            attempt(1, outcome="retry:timeout"),
            attempt(2, outcome="retry:http_503", status=503, etag='"2"', last_modified="then"),
            attempt(3, etag='"3"'),
        ]
        for batch in [lines] if at_once else [[line] for line in lines]:
            await store.write([], batch)
        await store.write([], [fetch(2), fetch(1, crawl="c2")])
        other = await reopen()
        assert await other.attempts("c1", 1) == lines[::-1]
        assert await other.fetches("c1", [1]) == [lines[-1]]
        assert await other.attempts("c1", 2) == [fetch(2)]
        assert await other.attempts("c1", 3) == []

    async def test_an_attempt_that_is_written_again_is_one_attempt(self, store: Store) -> None:
        lines = [attempt(1, outcome="retry:timeout"), attempt(2)]
        for line in [*lines, *lines, lines[1]]:
            await store.write([], [line])
        assert await store.attempts("c1", 1) == lines[::-1]

    async def test_an_attempt_names_what_it_archived_itself(self, store: Store) -> None:
        lines = [
            attempt(1, content_hash="aa", archived="pages/aa"),
            attempt(2, outcome="retry:timeout"),
            attempt(3, content_hash="bb", archived="pages/bb"),
            attempt(4, outcome="http_404", status=404),
        ]
        for line in lines:
            await store.write([], [line])
        assert await store.attempts("c1", 1) == lines[::-1]

    async def test_a_task_that_fails_for_ever_keeps_its_latest_attempts(self, store: Store) -> None:
        lines = [attempt(number, outcome="retry:http_503") for number in range(1, 2 * ATTEMPTS_KEPT)]
        for line in lines:
            await store.write([], [line])
        assert await store.attempts("c1", 1) == lines[::-1][:ATTEMPTS_KEPT]

    async def test_attempts_go_with_their_crawl(self, store: Store) -> None:
        await store.write([], [attempt(1, outcome="retry:timeout"), attempt(2)])
        await store.write([], [attempt(1, outcome="retry:timeout", crawl="c2"), attempt(2, crawl="c2")])
        await store.delete_crawl("c1")
        assert await store.attempts("c1", 1) == []
        assert len(await store.attempts("c2", 1)) == 2

    async def test_old_attempts_are_dropped(self, store: Store) -> None:
        now = time.time()
        old, new = fetch(token=1, at=now - 40 * 86_400, outcome="retry:timeout"), fetch(token=2, at=now)
        for line in (old, new):
            await store.write([], [line])
        await store.tidy(retention=20 * 86_400.0)
        assert [line.token for line in await store.attempts("c1", 1)] == [2]

    async def test_a_line_names_the_items_of_its_page(self, store: Store) -> None:
        line = fetch(item_keys='["é\\"1","b"]')
        await store.write([item('é"1'), item("b"), item("c")], [line])
        assert await store.fetches("c1", [1]) == await store.attempts("c1", 1) == [line]

    async def test_gives_items_by_their_keys(self, store: Store) -> None:
        large = {"text": "x" * 200_000}
        await store.write(
            [item("a"), item("é'; --"), item("b", data=large), item("a", spider="shoes", data={"s": 1})], []
        )
        found = await store.items_named("books", ["b", "é'; --", "never", "b", "a\0", "\ud800"])
        assert [(one.spider, one.key, len(one.data) > 100_000) for one in found] == [
            ("books", "b", True),
            ("books", "é'; --", False),
        ]
        (other,) = await store.items_named("shoes", ["a"])
        assert (other.data.replace(b" ", b""), other.version) == (b'{"s":1}', 1)
        assert await store.items_named("books", []) == []
