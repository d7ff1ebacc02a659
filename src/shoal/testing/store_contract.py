"""What every store promises, one test per promise. Subclass `StoreContract` and give it two fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal.store.base import FetchRow, ItemRow, Store, StoredItem

Reopen = Callable[[], Awaitable[Store]]


def item(key: str = "k", **changes: Any) -> ItemRow:
    """An item row; `changes` are its fields."""
    fields: dict[str, Any] = {
        "spider": "books",
        "key": key,
        "crawl": "c1",
        "url": f"https://a.test/{key}",
        "data": b'{"title":"A"}',
        "token": 1,
        "at": 100.0,
    }
    return ItemRow(**(fields | changes))


def fetch(key: int = 1, **changes: Any) -> FetchRow:
    """A line of the fetch log; `changes` are its fields."""
    fields: dict[str, Any] = {
        "crawl": "c1",
        "key": key,
        "url": f"https://a.test/{key}",
        "outcome": "ok",
        "token": 1,
        "attempt": 1,
        "at": 100.0,
    }
    return FetchRow(**(fields | changes))


async def everything(store: Store, spider: str | None = None, crawl: str | None = None) -> list[StoredItem]:
    """All items of the stream."""
    return [stored async for stored in store.items(spider, crawl=crawl)]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A full disk, as far as this process can tell."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class StoreContract:
    """The promises of `Store`.

    A subclass has two fixtures: `store`, open and empty, and `reopen`, which opens one more handle on the same
    place each time it is called. The fixtures close what they opened, also what a test has closed already.
    """

    async def test_gives_back_an_item_as_it_was_written(self, store: Store) -> None:
        await store.write([item("k", data=b'{"price":1.5}', at=7.5)], [])
        expected = StoredItem(
            spider="books",
            key="k",
            crawl="c1",
            url="https://a.test/k",
            data=b'{"price":1.5}',
            first_seen=7.5,
            last_seen=7.5,
        )
        assert await everything(store) == [expected]

    async def test_gives_back_a_log_line_with_all_its_fields(self, store: Store) -> None:
        full = fetch(
            -(2**63),
            url="https://a.test/x",
            outcome="http_503",
            token=2**62,
            attempt=3,
            at=1.25,
            status=503,
            final_url="https://a.test/y",
            worker="host-1",
            exit="direct",
            size=2**40,
            elapsed=0.5,
            error="busy",
            parent=2**63 - 1,
        )
        await store.write([], [full, fetch(2)])
        assert await store.fetches("c1", [-(2**63)]) == [full]
        assert await store.fetches("c1", [2]) == [fetch(2)]

    async def test_writes_nothing_when_there_is_nothing_to_write(self, store: Store) -> None:
        await store.write([], [])
        assert await store.count_items() == 0
        assert await everything(store) == []

    async def test_writing_the_same_rows_twice_is_harmless(self, store: Store) -> None:
        for _ in range(2):
            await store.write([item("a"), item("b")], [fetch(1), fetch(2)])
        assert await store.count_items() == 2
        assert await store.fetches("c1", [1]) == [fetch(1)]

    async def test_a_newer_token_replaces_the_item(self, store: Store) -> None:
        await store.write([item(crawl="c1", data=b'{"v":1}', token=1)], [])
        await store.write([item(crawl="c2", url="https://a.test/new", data=b'{"v":2}', token=2)], [])
        (stored,) = await everything(store)
        assert (stored.data, stored.crawl, stored.url) == (b'{"v":2}', "c2", "https://a.test/new")

    async def test_an_older_token_changes_nothing(self, store: Store) -> None:
        newer = item(data=b'{"v":2}', token=2, at=200.0)
        await store.write([newer], [fetch(outcome="ok", token=2)])
        await store.write([item(data=b'{"v":1}', token=1, at=300.0)], [fetch(outcome="timeout", token=1)])
        (stored,) = await everything(store)
        assert (stored.data, stored.last_seen) == (b'{"v":2}', 200.0)
        assert await store.fetches("c1", [1]) == [fetch(outcome="ok", token=2)]

    async def test_an_older_row_does_not_keep_out_its_neighbours(self, store: Store) -> None:
        await store.write([item("a", token=5)], [fetch(1, token=5)])
        await store.write([item("a", token=4), item("b", token=4)], [fetch(1, token=4), fetch(2, token=4)])
        assert [stored.key for stored in await everything(store)] == ["a", "b"]
        assert {row.token for row in await store.fetches("c1", [1, 2])} == {5, 4}

    async def test_an_equal_token_writes_again(self, store: Store) -> None:
        await store.write([item(data=b'{"v":1}')], [fetch(outcome="ok")])
        await store.write([item(data=b'{"v":2}')], [fetch(outcome="skipped")])
        assert [stored.data for stored in await everything(store)] == [b'{"v":2}']
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["skipped"]

    async def test_of_duplicates_in_one_write_the_newest_token_wins(self, store: Store) -> None:
        versions = [(1, b"1"), (3, b"3"), (2, b"2")]
        await store.write(
            [item(token=token, data=data) for token, data in versions],
            [fetch(token=token, outcome=data.decode()) for token, data in versions],
        )
        assert [stored.data for stored in await everything(store)] == [b"3"]
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["3"]

    async def test_of_equal_tokens_in_one_write_the_last_row_wins(self, store: Store) -> None:
        await store.write([item(data=b"1"), item(data=b"2")], [fetch(outcome="a"), fetch(outcome="b")])
        assert [stored.data for stored in await everything(store)] == [b"2"]
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["b"]

    async def test_keeps_when_an_item_was_first_seen_and_moves_when_it_was_last_seen(self, store: Store) -> None:
        await store.write([item(token=1, at=100.0)], [])
        await store.write([item(token=2, at=250.0)], [])
        (stored,) = await everything(store)
        assert (stored.first_seen, stored.last_seen) == (100.0, 250.0)

    async def test_two_spiders_may_use_the_same_key(self, store: Store) -> None:
        await store.write([item(spider="books", data=b"1"), item(spider="shoes", data=b"2")], [])
        assert [stored.data for stored in await everything(store, "books")] == [b"1"]
        assert [stored.data for stored in await everything(store, "shoes")] == [b"2"]

    async def test_two_crawls_may_log_the_same_task(self, store: Store) -> None:
        await store.write([], [fetch(1, crawl="c1"), fetch(1, crawl="c2", outcome="http_404")])
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["ok"]
        assert [row.outcome for row in await store.fetches("c2", [1])] == ["http_404"]

    async def test_counts_what_it_would_stream(self, store: Store) -> None:
        rows = [("books", "c1", "a"), ("books", "c2", "b"), ("shoes", "c3", "a"), ("books", "c2", "c")]
        await store.write([item(key, spider=spider, crawl=crawl) for spider, crawl, key in rows], [])
        for spider in (None, "books", "shoes", "nobody"):
            for crawl in (None, "c1", "c2", "c3", "never"):
                streamed = await everything(store, spider, crawl)
                wanted = [row for row in rows if spider in (None, row[0]) and crawl in (None, row[1])]
                assert sorted((row.spider, row.crawl, row.key) for row in streamed) == sorted(wanted)
                assert await store.count_items(spider, crawl=crawl) == len(wanted)

    async def test_streams_in_the_same_order_each_time(self, store: Store) -> None:
        await store.write([item(str(number * 7919 % 2503)) for number in range(2503)], [])
        first = [stored.key for stored in await everything(store)]
        await store.write([item(str(number), token=2) for number in range(0, 2503, 3)], [])
        assert [stored.key for stored in await everything(store)] == first
        assert len(set(first)) == 2503

    async def test_streams_each_item_once_while_all_are_written_again(self, store: Store) -> None:
        await store.write([item(str(number)) for number in range(2500)], [])
        seen: list[str] = []
        async for stored in store.items("books"):
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
        assert [len(stored.data) for stored in await everything(store)] == [len(text) + 11] * 8

    async def test_keeps_any_text(self, store: Store) -> None:
        texts = [
            "",
            " ",
            "é",
            "e\u0301",
            "日本語",
            "🐟🏽",
            "a\u0000b",
            "a\u0000c",
            "'; DROP TABLE item; --",
            "%_\\",
            "\u2028",
        ]
        rows = [item(text, url=text, data=msgspec.json.encode({"t": text}), token=5) for text in texts]
        await store.write(rows, [fetch(number, error=text, url=text) for number, text in enumerate(texts)])
        stored = await everything(store)
        assert {row.key for row in stored} == set(texts)
        assert all(row.url == row.key == msgspec.json.decode(row.data)["t"] for row in stored)
        logged = await store.fetches("c1", range(len(texts)))
        assert {row.key: row.error for row in logged} == dict(enumerate(texts))

    async def test_half_a_surrogate_pair_keeps_no_batch_out(self, store: Store) -> None:
        await store.write([item("good"), item("bad \ud83d")], [fetch(1), fetch(2, error="\udc1f")])
        assert await store.count_items() == 2
        assert await store.fetches("c1", [1]) == [fetch(1)]
        assert len(await store.fetches("c1", [2])) == 1

    async def test_keeps_very_long_keys_and_urls_apart(self, store: Store) -> None:
        long = "https://a.test/" + "é" * 20_000
        await store.write([item(long + "1", url=long), item(long + "2", url=long)], [fetch(url=long)])
        assert {stored.key for stored in await everything(store)} == {long + "1", long + "2"}
        assert [row.url for row in await store.fetches("c1", [1])] == [long]

    async def test_keeps_data_as_it_is(self, store: Store) -> None:
        texts = [
            b"{}",
            b'{"a":"\\u0000"}',
            '{"a":"🐟"}'.encode(),
            b'{"a":123456789012345678901234567890}',
            b'{"b":1,"a":2}',
        ]
        await store.write([item(str(number), data=data) for number, data in enumerate(texts)], [])
        assert {stored.key: stored.data for stored in await everything(store)} == {
            str(number): data for number, data in enumerate(texts)
        }

    async def test_takes_batches_of_any_size(self, store: Store) -> None:
        for size in (1, 2, 3, 127, 128, 129, 300):
            rows = [item(f"{size}/{number}") for number in range(size)]
            await store.write(rows, [fetch(number, crawl=str(size)) for number in range(size)])
            assert len(await store.fetches(str(size), range(size))) == size
        assert await store.count_items() == 690

    async def test_gives_the_log_lines_of_a_thousand_tasks(self, store: Store) -> None:
        await store.write([], [fetch(number) for number in range(1000)])
        rows = await store.fetches("c1", range(-100, 1100))
        assert sorted(row.key for row in rows) == list(range(1000))
        assert await store.fetches("c1", []) == []

    async def test_gives_a_log_line_once_when_asked_for_it_twice(self, store: Store) -> None:
        await store.write([], [fetch(1)])
        assert await store.fetches("c1", [1] * 1500) == [fetch(1)]

    async def test_deleting_a_crawl_removes_its_log_and_keeps_items(self, store: Store) -> None:
        logged = [fetch(number, crawl=crawl) for crawl in ("c1", "c2") for number in range(700)]
        await store.write([item(crawl="c1")], logged)
        await store.delete_crawl("c1")
        assert await store.fetches("c1", range(700)) == []
        assert len(await store.fetches("c2", range(700))) == 700
        assert await store.count_items(crawl="c1") == 1

    async def test_deleting_an_unknown_crawl_is_harmless(self, store: Store) -> None:
        await store.write([], [fetch()])
        await store.delete_crawl("never")
        assert await store.fetches("c1", [1]) == [fetch()]

    async def test_what_was_written_is_there_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await store.write([item("a")], [fetch()])
        await store.close()
        again = await reopen()
        assert [stored.key for stored in await everything(again)] == ["a"]
        assert await again.fetches("c1", [1]) == [fetch()]

    async def test_fences_hold_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await store.write([item(token=9, data=b"9")], [])
        await store.close()
        again = await reopen()
        await again.write([item(token=8, data=b"8")], [])
        assert [stored.data for stored in await everything(again)] == [b"9"]

    async def test_closing_waits_for_a_write_under_way(self, store: Store, reopen: Reopen) -> None:
        writing = asyncio.ensure_future(store.write([item(str(number)) for number in range(3000)], []))
        await asyncio.sleep(0)
        await store.close()
        await writing
        assert await (await reopen()).count_items() == 3000

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_a_second_handle_sees_what_the_first_wrote(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        await store.write([item("a")], [fetch()])
        assert [stored.key for stored in await everything(other)] == ["a"]
        assert await other.fetches("c1", [1]) == [fetch()]

    async def test_of_writers_at_the_same_time_the_newest_token_wins(self, store: Store, reopen: Reopen) -> None:
        stores = [store, await reopen(), await reopen()]

        async def write_all(writer: int) -> None:
            for token in range(writer, 60, len(stores)):
                rows = [item(str(number), token=token, data=str(token).encode()) for number in range(50)]
                await stores[writer].write(rows, [fetch(number, token=token) for number in range(50)])

        await asyncio.gather(*(write_all(writer) for writer in range(len(stores))))
        assert [stored.data for stored in await everything(store)] == [b"59"] * 50
        assert {row.token for row in await store.fetches("c1", range(50))} == {59}
