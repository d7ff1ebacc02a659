"""Store promises about reading: streams, pages of the newest items, and the attempts in the log."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.store.base import ATTEMPTS_KEPT, LOOKED_THROUGH, FetchRow, ItemFilter, ItemRule, Store, StoredItem
from shoal.testing.contract.store.rows import Reopen, everything, fetch, item

A_YEAR = 365 * 86_400.0


class ReadPromises:
    """Streams, filters, log lines, retention."""

    async def test_counts_what_it_would_stream(self, store: Store) -> None:
        rows = [("books", "c1", "a"), ("books", "c2", "b"), ("shoes", "c3", "a"), ("books", "c2", "c")]
        await store.write([item(key, spider=spider, crawl=crawl) for spider, crawl, key in rows], [])
        for spider in (None, "books", "shoes", "nobody"):
            for crawl in (None, "c1", "c2", "c3", "never"):
                streamed = await everything(store, spider=spider, crawl=crawl)
                wanted = [row for row in rows if spider in (None, row[0]) and crawl in (None, row[1])]
                assert sorted((row.spider, row.crawl, row.key) for row in streamed) == sorted(wanted)
                assert await store.count_items(ItemFilter(spider=spider, crawl=crawl)) == len(wanted)

    async def test_counts_the_items_of_a_spider_by_the_crawl_that_wrote_them_last(self, store: Store) -> None:
        rows = [
            ("books", "c1", "a"),
            ("books", "c1", "b"),
            ("books", "c1", "c"),
            ("shoes", "c1", "a"),
            ("shoes", "c3", "b"),
        ]
        await store.write([item(key, spider=spider, crawl=crawl) for spider, crawl, key in rows], [])
        assert await store.count_by_crawl("books") == {"c1": 3}
        await store.write([item("a", crawl="c2", token=2), item("b", crawl="c2", token=2)], [])
        assert await store.count_by_crawl("books") == {"c1": 1, "c2": 2}
        await store.write([item("c", crawl="c2", token=2)], [])
        assert await store.count_by_crawl("books") == {"c2": 3}
        assert await store.count_by_crawl("shoes") == {"c1": 1, "c3": 1}
        assert await store.count_by_crawl("nobody") == {}

    async def test_streams_in_the_same_order_each_time(self, store: Store) -> None:
        await store.write([item(str(number * 7919 % 2503)) for number in range(2503)], [])
        first = [stored.key for stored in await everything(store)]
        await store.write([item(str(number), token=2) for number in range(0, 2503, 3)], [])
        assert [stored.key for stored in await everything(store)] == first
        assert len(set(first)) == 2503

    async def test_streams_each_item_once_while_all_are_written_again(self, store: Store) -> None:
        await store.write([item(str(number)) for number in range(2500)], [])
        seen: list[str] = []
        async for stored in store.items(ItemFilter(spider="books")):
            if len(seen) % 500 == 0:
                token = 2 + len(seen)
                await store.write([item(str(number), token=token) for number in range(2500)], [])
                await store.write([item(f"new {token}", token=token)], [])
            seen.append(stored.key)
        assert len(seen) == len(set(seen))
        assert {str(number) for number in range(2500)} <= set(seen)

    async def test_a_stream_left_half_way_holds_nobody_up(self, store: Store, reopen: Reopen) -> None:
        await store.write([item(str(number)) for number in range(2500)], [])
        stream = store.items()
        await anext(stream)
        other = await reopen()
        await asyncio.wait_for(other.write([item("after")], [fetch()]), 10)
        await asyncio.wait_for(store.write([item("after", token=2)], []), 10)
        await asyncio.wait_for(store.close(), 10)

    async def test_streams_large_items(self, store: Store) -> None:
        text = "x" * 3_000_000
        await store.write([item(str(number), data=msgspec.json.encode({"text": text})) for number in range(8)], [])
        lengths = [len(msgspec.json.decode(stored.data)["text"]) async for stored in store.items()]
        assert lengths == [len(text)] * 8

    async def test_gives_the_log_lines_of_a_thousand_tasks(self, store: Store) -> None:
        await store.write([], [fetch(number) for number in range(1000)])
        rows = await store.fetches("c1", range(-100, 1100))
        assert sorted(row.key for row in rows) == list(range(1000))
        assert await store.fetches("c1", []) == []

    async def test_gives_a_log_line_once_when_asked_for_it_twice(self, store: Store) -> None:
        await store.write([], [fetch(1)])
        assert await store.fetches("c1", [1] * 1500) == [fetch(1)]

    async def test_gives_the_log_lines_of_every_task_with_a_url_newest_first(self, store: Store) -> None:
        url = "https://a.test/form?é"
        lines = [fetch(key, url=url, at=100.0 + key, request=f"POST {key} B") for key in range(1, 6)]
        other = [fetch(9, url=f"{url}&more"), fetch(10, url=url, crawl="c2")]
        await store.write([], [*lines, *other])
        await store.write([], [fetch(1, url=url, at=300.0, token=2, outcome="http_500")])
        found = await store.fetches_of(["c1"], url)
        assert [(row.key, row.outcome) for row in found] == [(1, "http_500"), *((key, "ok") for key in (5, 4, 3, 2))]
        assert found[1] == lines[4]
        assert [row.key for row in await store.fetches_of(["c1"], url, limit=2)] == [1, 5]
        both = await store.fetches_of(["c2", "c1"], url)
        assert sorted((row.crawl, row.key) for row in both) == [*(("c1", key) for key in range(1, 6)), ("c2", 10)]
        assert await store.fetches_of(["c1"], "https://a.test/never") == []

    async def test_finds_a_url_in_a_long_log(self, store: Store) -> None:
        await store.write([], [fetch(number) for number in range(25_000)])
        for number in (0, 19_999, 20_000, 24_999):
            assert await store.fetches_of(["c1"], f"https://a.test/{number}") == [fetch(number)]

    async def test_deleting_a_crawl_removes_its_log_and_keeps_items(self, store: Store) -> None:
        logged = [fetch(number, crawl=crawl) for crawl in ("c1", "c2") for number in range(700)]
        await store.write([item(crawl="c1")], logged)
        assert [await store.has_log(crawl) for crawl in ("c1", "c2", "c3")] == [True, True, False]
        await store.delete_crawl("c1")
        assert [await store.has_log(crawl) for crawl in ("c1", "c2")] == [False, True]
        assert await store.fetches("c1", range(700)) == []
        assert len(await store.fetches("c2", range(700))) == 700
        assert await store.count_items(ItemFilter(crawl="c1")) == 1

    async def test_deleting_the_items_of_a_crawl_removes_those_that_it_wrote_last_with_their_versions(
        self, store: Store, reopen: Reopen
    ) -> None:
        rule = ItemRule(keep_versions=True)
        await store.write([item(str(number), crawl="c1", at=100.0) for number in range(1500)], [fetch()], rule=rule)
        again = [item(str(number), crawl="c2", at=200.0, token=2, data=b'{"n": 2}') for number in range(1000, 1200)]
        await store.write([*again, item("theirs", crawl="c1", spider="other")], [], rule=rule)
        assert await (await reopen()).delete_items("books", "c1") == 1300
        assert await store.count_by_crawl("books") == {"c2": 200}
        assert await store.count_items(ItemFilter(spider="other")) == 1
        versions = [version async for version in store.versions(ItemFilter(spider="books"))]
        assert {version.key for version in versions} == {str(number) for number in range(1000, 1200)}
        assert await store.fetches("c1", [1]) == [fetch()]
        assert await store.delete_items("books", "c1") == 0
        # Written again, it is a new item.
        await store.write([item("1", crawl="c3", at=300.0)], [])
        (back,) = await store.items_named("books", ["1"])
        assert (back.version, back.first_seen) == (1, 300.0)

    async def test_deleting_an_unknown_crawl_is_harmless(self, store: Store) -> None:
        await store.write([], [fetch()])
        await store.delete_crawl("never")
        assert await store.fetches("c1", [1]) == [fetch()]

    @pytest.mark.parametrize(
        ("which", "keys"),
        [
            ({"since": 200.0}, {"seen again", "changed", "new"}),
            ({"since": 300.5}, {"new"}),
            ({"changed_since": 200.0}, {"changed", "new"}),
            ({"changed_since": 300.0, "since": 301.0}, {"new"}),
            ({"url_prefix": "https://a.test/"}, {"old", "seen again", "changed"}),
            ({"url_prefix": "https://a.test/%"}, {"changed"}),
            ({"url_prefix": "https://A.test/"}, set()),
            ({"url_prefix": "https://b.test/é", "spider": "books"}, {"new"}),
            ({"url_prefix": "https://b.test/é", "spider": "shoes"}, set()),
            ({"url_prefix": ""}, {"old", "seen again", "changed", "new"}),
        ],
    )
    async def test_a_filter_leaves_what_matches_all_of_it(
        self, store: Store, which: dict[str, Any], keys: set[str]
    ) -> None:
        before = ["old", "seen again", "changed"]
        await store.write([item(key, url=f"https://a.test/{key}") for key in before], [])
        await store.write(
            [
                item("seen again", token=2, at=300.0),
                item("changed", token=2, at=300.0, url="https://a.test/%_x", data={"title": "B"}),
                item("new", token=2, at=301.0, url="https://b.test/é?a=%"),
            ],
            [],
        )
        assert {stored.key for stored in await everything(store, **which)} == keys
        assert await store.count_items(ItemFilter(**which)) == len(keys)

    async def test_drops_old_log_lines_and_keeps_items(self, store: Store) -> None:
        now = time.time()
        old = [fetch(number, at=now - 2 * A_YEAR) for number in range(3000)]
        await store.write([item(at=now - 2 * A_YEAR)], [*old, fetch(5000, at=now)])
        assert await store.tidy(retention=A_YEAR) > 0
        assert [row.key for row in await store.fetches("c1", [0, 1, 2999, 5000])] == [5000]
        assert await store.count_items() == 1
        assert await store.tidy(retention=A_YEAR) == 0


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


class NewestPromises:
    """Pages of the newest items."""

    async def test_pages_through_the_newest_items(self, store: Store) -> None:
        for number in range(25):
            await store.write([item(f"{number:02}", at=100.0 + number)], [])
        await store.write([item("other", crawl="c2", at=900.0)], [])
        first = await store.newest(ItemFilter(crawl="c1"), limit=10)
        assert [stored.key for stored in first.items] == [f"{number:02}" for number in range(24, 14, -1)]
        assert len(await all_newest(store, ItemFilter(crawl="c1"))) == 25
        assert (await all_newest(store))[0].key == "other"
        assert await all_newest(store, ItemFilter(crawl="never")) == []

    async def test_a_page_that_is_just_full_may_be_the_last(self, store: Store) -> None:
        await store.write([item("a"), item("b")], [])
        assert (await store.newest(limit=2)).after == ""

    async def test_items_that_come_meanwhile_shift_no_page(self, store: Store) -> None:
        for number in range(6):
            await store.write([item(str(number), at=100.0 + number)], [])
        first = await store.newest(limit=3)
        await store.write([item("new", at=500.0)], [])
        second = await store.newest(limit=3, after=first.after)
        assert [stored.key for stored in (*first.items, *second.items)] == ["5", "4", "3", "2", "1", "0"]

    async def test_finds_a_text_in_keys_urls_and_fields(self, store: Store) -> None:
        await store.write([item("Blue-1", data={"title": "A"})], [])
        await store.write([item("2", url="https://a.test/shades/blue", data={"title": "B"})], [])
        await store.write([item("3", data={"title": "The BLUE book", "author": "Zoë 100%_x"})], [])
        await store.write([item("4", data={"title": "red"})], [])
        found = {stored.key for stored in await all_newest(store, search="blue")}
        assert found == {"Blue-1", "2", "3"}
        assert [stored.key for stored in await all_newest(store, search="Zoë 100%_")] == ["3"]
        assert await all_newest(store, search="1_0") == []
        assert await all_newest(store, search="%") != await all_newest(store)

    async def test_a_search_looks_through_a_bounded_number_and_goes_on(self, store: Store) -> None:
        await store.write([item("needle", at=1.0)], [])
        for start in range(0, LOOKED_THROUGH + 10, 5000):
            keys = range(start, min(start + 5000, LOOKED_THROUGH + 10))
            await store.write([item(str(number), at=100.0 + start) for number in keys], [])
        assert [stored.key for stored in await all_newest(store, search="needle")] == ["needle"]

    async def test_a_page_of_large_items_is_shorter(self, store: Store) -> None:
        text = "x" * 4_000_000
        for number in range(4):
            await store.write([item(str(number), at=100.0 + number, data={"text": text})], [])
        assert [stored.key for stored in await all_newest(store)] == ["3", "2", "1", "0"]

    @pytest.mark.parametrize("after", ["nonsense", "-5", "9" * 40, '["2026-01-01","a","b"]', '["x","a","b"]', "\0"])
    async def test_a_position_that_is_none_is_refused_or_leads_nowhere_wrong(self, store: Store, after: str) -> None:
        await store.write([item("a")], [])
        with pytest.raises(UsageError):
            await store.newest(limit=5, after=after)


async def all_newest(store: Store, which: ItemFilter = ItemFilter(), *, search: str = "") -> list[StoredItem]:
    """All pages, one after the other."""
    found: list[StoredItem] = []
    after = ""
    while True:
        page = await store.newest(which, limit=10, after=after, search=search)
        found += page.items
        if not (after := page.after):
            return found
