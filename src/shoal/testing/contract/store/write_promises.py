"""Store promises about writing: all or nothing, once, and newer before older."""

from __future__ import annotations

import asyncio

import msgspec

from shoal.store.base import Store, StoredItem
from shoal.testing.contract.store.rows import Reopen, content, contents, everything, fetch, item, only


class WritePromises:
    """Identity, fences, text, sizes, handles."""

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
            changed_at=7.5,
            version=1,
        )
        stored = await only(store)
        assert content(stored) == {"price": 1.5}
        assert msgspec.structs.replace(stored, data=expected.data) == expected

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
            content_hash="ab" * 32,
            archived="pages/ab/cd.zst",
            request="POST 3 B abc",
            item_keys='["a"]',
            etag='W/"é-1"',
            last_modified="Wed, 18 Nov 2026 09:00:00 GMT",
        )
        await store.write([], [full, fetch(2)])
        assert await store.fetches("c1", [-(2**63)]) == [full]
        assert await store.fetches("c1", [2]) == [fetch(2)]

    async def test_keeps_no_validator_that_could_not_be_sent_back(self, store: Store) -> None:
        lines = [
            fetch(1, etag="x" * 500, last_modified="y" * 501),
            fetch(2, etag="x" * 501, last_modified="y" * 500),
            fetch(3, etag="a\nb", last_modified="c\0"),
            fetch(4, etag="\ud800", last_modified="\r"),
        ]
        await store.write([], lines)
        found = {row.key: (row.etag, row.last_modified) for row in await store.fetches("c1", [1, 2, 3, 4])}
        assert found == {1: ("x" * 500, ""), 2: ("", "y" * 500), 3: ("", ""), 4: ("", "")}

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
        stored = await only(store)
        assert (content(stored), stored.crawl, stored.url) == ({"v": 2}, "c2", "https://a.test/new")

    async def test_an_older_token_changes_nothing(self, store: Store) -> None:
        newer = item(data=b'{"v":2}', token=2, at=200.0)
        await store.write([newer], [fetch(outcome="ok", token=2)])
        await store.write([item(data=b'{"v":1}', token=1, at=300.0)], [fetch(outcome="timeout", token=1)])
        stored = await only(store)
        assert (content(stored), stored.last_seen, stored.version) == ({"v": 2}, 200.0, 1)
        assert await store.fetches("c1", [1]) == [fetch(outcome="ok", token=2)]

    async def test_an_older_row_does_not_keep_out_its_neighbours(self, store: Store) -> None:
        await store.write([item("a", token=5)], [fetch(1, token=5)])
        await store.write([item("a", token=4), item("b", token=4)], [fetch(1, token=4), fetch(2, token=4)])
        assert [stored.key for stored in await everything(store)] == ["a", "b"]
        assert {row.token for row in await store.fetches("c1", [1, 2])} == {5, 4}

    async def test_an_equal_token_writes_again(self, store: Store) -> None:
        await store.write([item(data=b'{"v":1}')], [fetch(outcome="ok")])
        await store.write([item(data=b'{"v":2}')], [fetch(outcome="skipped")])
        assert await contents(store) == [{"v": 2}]
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["skipped"]

    async def test_of_duplicates_in_one_write_the_newest_token_wins(self, store: Store) -> None:
        tokens = [1, 3, 2]
        await store.write(
            [item(token=token, data={"v": token}) for token in tokens],
            [fetch(token=token, outcome=str(token)) for token in tokens],
        )
        assert await contents(store) == [{"v": 3}]
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["3"]

    async def test_of_equal_tokens_in_one_write_the_last_row_wins(self, store: Store) -> None:
        await store.write([item(data={"v": 1}), item(data={"v": 2})], [fetch(outcome="a"), fetch(outcome="b")])
        assert await contents(store) == [{"v": 2}]
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["b"]

    async def test_keeps_when_an_item_was_first_seen_and_moves_when_it_was_last_seen(self, store: Store) -> None:
        await store.write([item(token=1, at=100.0)], [])
        await store.write([item(token=2, at=250.0)], [])
        stored = await only(store)
        assert (stored.first_seen, stored.last_seen) == (100.0, 250.0)

    async def test_two_spiders_may_use_the_same_key(self, store: Store) -> None:
        await store.write([item(spider="books", data={"v": 1}), item(spider="shoes", data={"v": 2})], [])
        assert await contents(store, spider="books") == [{"v": 1}]
        assert await contents(store, spider="shoes") == [{"v": 2}]

    async def test_two_crawls_may_log_the_same_task(self, store: Store) -> None:
        await store.write([], [fetch(1, crawl="c1"), fetch(1, crawl="c2", outcome="http_404")])
        assert [row.outcome for row in await store.fetches("c1", [1])] == ["ok"]
        assert [row.outcome for row in await store.fetches("c2", [1])] == ["http_404"]

    async def test_keeps_any_text(self, store: Store) -> None:
        texts = ["", " ", "é", "e\u0301", "日本語", "🐟🏽", "'; DROP TABLE item; --", "%_\\", "\u2028"]
        rows = [item(text, url=text, data=msgspec.json.encode({"t": text}), token=5) for text in texts]
        await store.write(rows, [fetch(number, error=text, url=text) for number, text in enumerate(texts)])
        stored = await everything(store)
        assert {row.key for row in stored} == set(texts)
        assert all(row.url == row.key == content(row)["t"] for row in stored)
        logged = await store.fetches("c1", range(len(texts)))
        assert {row.key: row.error for row in logged} == dict(enumerate(texts))

    async def test_keeps_long_keys_and_urls_apart(self, store: Store) -> None:
        key, url = "é" * 1023, "https://a.test/" + "é" * 20_000
        assert await store.write([item(key + "1", url=url), item(key + "2", url=url)], [fetch(url=url)]) == {}
        assert {stored.key for stored in await everything(store)} == {key + "1", key + "2"}
        assert {stored.url for stored in await everything(store)} == {url}
        assert [row.url for row in await store.fetches("c1", [1])] == [url]

    async def test_gives_back_any_json_object(self, store: Store) -> None:
        texts = [
            b"{}",
            b'{"a":"\\\\u0000"}',
            '{"a":"🐟","日本":null}'.encode(),
            b'{"a":123456789012345678901234567890}',
            b'{"a":0.1,"b":-1e-7,"c":1.7976931348623157e308}',
            b'{"b":{"":[true,false,null,[]]},"a":2}',
        ]
        await store.write([item(str(number), data=data) for number, data in enumerate(texts)], [])
        assert {stored.key: content(stored) for stored in await everything(store)} == {
            str(number): msgspec.json.decode(data) for number, data in enumerate(texts)
        }

    async def test_a_log_line_is_kept_whatever_its_text(self, store: Store) -> None:
        lines = [
            fetch(1),
            fetch(2, error="\udc1f", url="https://a.test/\ud83d"),
            fetch(3, error="a\0b", final_url="\0"),
        ]
        assert await store.write([item("good")], lines) == {}
        logged = {row.key: row for row in await store.fetches("c1", [1, 2, 3])}
        assert logged[1] == fetch(1)
        assert (logged[2].error, logged[2].url) == ("\\udc1f", "https://a.test/\\ud83d")
        assert (logged[3].error, logged[3].final_url) == ("a\\x00b", "\\x00")

    async def test_takes_batches_of_any_size(self, store: Store) -> None:
        for size in (1, 2, 3, 127, 128, 129, 300):
            rows = [item(f"{size}/{number}") for number in range(size)]
            await store.write(rows, [fetch(number, crawl=str(size)) for number in range(size)])
            assert len(await store.fetches(str(size), range(size))) == size
        assert await store.count_items() == 690

    async def test_what_was_written_is_there_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await store.write([item("a")], [fetch()])
        await store.close()
        again = await reopen()
        assert [stored.key for stored in await everything(again)] == ["a"]
        assert await again.fetches("c1", [1]) == [fetch()]

    async def test_fences_hold_after_reopening(self, store: Store, reopen: Reopen) -> None:
        await store.write([item(token=9, data={"v": 9})], [])
        await store.close()
        again = await reopen()
        await again.write([item(token=8, data={"v": 8})], [])
        assert await contents(again) == [{"v": 9}]

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
                rows = [item(str(number), token=token, data={"v": token}) for number in range(50)]
                await stores[writer].write(rows, [fetch(number, token=token) for number in range(50)])

        await asyncio.gather(*(write_all(writer) for writer in range(len(stores))))
        assert await contents(store) == [{"v": 59}] * 50
        assert {row.token for row in await store.fetches("c1", range(50))} == {59}
