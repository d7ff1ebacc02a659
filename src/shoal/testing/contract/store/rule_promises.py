"""Store promises about writing an item again: change tracking, rules, versions, and refused rows."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest

from shoal.store.base import FetchRow, ItemRow, ItemRule, Store
from shoal.store.rules import MAX_DATA_BYTES, why_unstorable
from shoal.testing.contract.store.rows import Reopen, content, contents, everything, fetch, item, kept, only

FILL = ItemRule(merge="fill")
KEEP = ItemRule(keep_versions=True)
A_DAY = 86_400.0
AN_HOUR = ItemRule(freshness=3600.0)

UNSTORABLE = {
    "a NUL in the key": item("a\0b"),
    "a NUL in the URL": item("bad", url="https://a.test/\0"),
    "a NUL in a value": item("bad", data={"a": ["x\0y"]}),
    "a NUL in a field's name": item("bad", data={"a\0": 1}),
    "half a surrogate pair in the key": item("bad \ud83d"),
    "half a surrogate pair in the URL": item("bad", url="https://a.test/\udc1f"),
    "half a surrogate pair in the data": item("bad", data=b'{"a":"\\ud83d"}'),
    "half a surrogate pair before other text": item("bad", data=b'{"a":"\\ud83d and more \\u0041"}'),
    "the wrong half in the data": item("bad", data=b'{"a":"\\udc1f"}'),
    "bytes that are no text": item("bad", data=b'{"a":"\xff\xed\xa0\xbd"}'),
    "a key of 10 kB": item("k" * 10_000),
    "a key of 2 kB of long letters": item("é" * 1025),
    "not a number": item("bad", data=b'{"a":NaN}'),
    "an infinity": item("bad", data=b'{"a":-Infinity}'),
    "a number that no computer has": item("bad", data=b'{"a":1e999999}'),
    "a list": item("bad", data=b"[]"),
    "a bare number": item("bad", data=b"1"),
    "no JSON": item("bad", data=b'{"a":'),
    "nothing": item("bad", data=b""),
    "JSON and more": item("bad", data=b"{}{}"),
    "nested ten thousand deep": item("bad", data=b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "nested a thousand deep": item("bad", data=b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"),
}


class RulePromises:
    """Changes, freshness, filling, versions, unstorable rows, later attempts."""

    async def test_an_unchanged_item_only_moves_when_and_where_it_was_seen(self, store: Store) -> None:
        await store.write([item(data={"a": 1, "b": [1, {"x": 2, "y": 3}]})], [])
        again = item(
            data=b'{"b": [1, {"y": 3, "x": 2}],\n "a": 1}', token=2, at=250.0, crawl="c2", url="https://b.test/"
        )
        await store.write([again], [])
        stored = await only(store)
        assert (stored.last_seen, stored.crawl, stored.url) == (250.0, "c2", "https://b.test/")
        assert (stored.first_seen, stored.changed_at, stored.version) == (100.0, 100.0, 1)
        await store.write([item(data={"a": 0}, token=1, at=300.0)], [])
        assert content(await only(store)) == {"a": 1, "b": [1, {"x": 2, "y": 3}]}

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"a": 1}, {"a": 2}),
            ({"a": [1, 2]}, {"a": [2, 1]}),
            ({"a": 1}, {"a": "1"}),
            ({"a": 1}, {"a": True}),
            ({"a": None}, {}),
            ({"a": None}, {"a": {}}),
            ({"a": {}}, {"a": []}),
            ({"a": 10**25}, {"a": 10**25 + 1}),
            ({"a": 0.1}, {"a": 0.1000000000000001}),
            ({"a": "é"}, {"a": "e\u0301"}),
            ({"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 1}}}),
        ],
    )
    async def test_a_changed_item_gets_a_new_version(self, store: Store, before: Any, after: Any) -> None:
        await store.write([item(data=before)], [])
        await store.write([item(data=after, token=2, at=200.0)], [])
        await store.write([item(data=after, token=3, at=300.0)], [])
        stored = await only(store)
        assert content(stored) == after
        assert (stored.first_seen, stored.changed_at, stored.last_seen, stored.version) == (100.0, 200.0, 300.0, 2)

    async def test_back_to_a_former_content_is_a_change_too(self, store: Store) -> None:
        for token, letter in enumerate("ABA", start=1):
            await store.write([item(data={"t": letter}, token=token, at=100.0 * token)], [])
        stored = await only(store)
        assert (content(stored), stored.version, stored.changed_at) == ({"t": "A"}, 3, 300.0)

    async def test_rows_of_one_identity_in_one_write_count_one_by_one(self, store: Store) -> None:
        rows = [
            item(data={"t": letter}, token=token, at=float(token)) for token, letter in ((1, "A"), (2, "B"), (3, "B"))
        ]
        await store.write([*rows, item(data={"t": "old"}, token=1, at=9.0)], [])
        stored = await only(store)
        assert (content(stored), stored.version) == ({"t": "B"}, 2)
        assert (stored.first_seen, stored.changed_at, stored.last_seen) == (1.0, 2.0, 3.0)

    async def test_when_an_item_was_last_seen_never_goes_back(self, store: Store) -> None:
        await store.write([item(token=1, at=200.0)], [])
        await store.write([item(token=2, at=150.0)], [])  # by a machine with a slow clock
        assert (await only(store)).last_seen == 200.0

    async def test_a_fresh_item_is_seen_but_not_written_again(self, store: Store) -> None:
        await store.write([item(data={"v": 1}, token=1, at=1000.0)], [], rule=AN_HOUR)
        await store.write([item(data={"v": 2}, token=2, at=1000.0 + 3599)], [], rule=AN_HOUR)
        stored = await only(store)
        assert (content(stored), stored.last_seen, stored.version) == ({"v": 1}, 4599.0, 1)
        await store.write([item(data={"v": 3}, token=3, at=1000.0 + 3600)], [], rule=AN_HOUR)
        stored = await only(store)
        assert (content(stored), stored.last_seen, stored.version) == ({"v": 3}, 4600.0, 2)

    async def test_freshness_counts_from_the_last_write_not_the_last_change(self, store: Store) -> None:
        for token, at in ((1, 0.0), (2, 4000.0)):
            await store.write([item(token=token, at=at)], [], rule=AN_HOUR)
        await store.write([item(data={"v": 2}, token=3, at=5000.0)], [], rule=AN_HOUR)
        assert await contents(store) == [{"title": "A"}]

    async def test_the_same_row_may_be_written_again_within_freshness(self, store: Store) -> None:
        row = item(token=5, at=1000.0)
        for _ in range(2):
            assert await store.write([row, item("new", token=5)], [], rule=AN_HOUR) == {}
        await store.write([item(data={"v": 2}, token=5, at=1000.0)], [], rule=AN_HOUR)
        assert {stored.key: content(stored) for stored in await everything(store)} == {
            "k": {"v": 2},
            "new": {"title": "A"},
        }

    async def test_of_two_rows_in_one_write_freshness_keeps_the_first(self, store: Store) -> None:
        rows = [item(data={"v": token}, token=token, at=1000.0 + token) for token in (1, 2)]
        await store.write(rows, [], rule=AN_HOUR)
        assert await contents(store) == [{"v": 1}]

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    @pytest.mark.parametrize("at_once", [True, False])
    async def test_fields_of_different_pages_fill_one_item(
        self, store: Store, order: tuple[int, ...], at_once: bool
    ) -> None:
        parts = [{"title": "A", "price": None}, {"price": 5}, {"stock": {"x": 1}}]
        rows = [item(data=parts[number], token=number + 1, at=100.0 + number) for number in order]
        for batch in [rows] if at_once else [[row] for row in rows]:
            await store.write(batch, [], rule=FILL)
        stored = await only(store)
        assert content(stored) == {"title": "A", "price": 5, "stock": {"x": 1}}
        assert stored.last_seen == 102.0
        await store.write([item(data={"title": "old"}, token=2, at=1.0)], [], rule=FILL)
        assert content(await only(store))["title"] == "A"

    async def test_a_newer_row_overrides_field_by_field_and_an_older_one_fills_gaps(self, store: Store) -> None:
        await store.write([item(data={"a": 5, "b": {"x": 1}}, token=5, url="https://a.test/5")], [], rule=FILL)
        await store.write([item(data={"a": 3, "c": 3}, token=3, at=150.0, url="https://a.test/3")], [], rule=FILL)
        stored = await only(store)
        assert (content(stored), stored.url) == ({"a": 5, "b": {"x": 1}, "c": 3}, "https://a.test/5")
        assert (stored.version, stored.changed_at, stored.last_seen) == (2, 150.0, 150.0)
        await store.write([item(data={"b": {"y": 2}, "c": None}, token=7, at=200.0)], [], rule=FILL)
        stored = await only(store)
        assert content(stored) == {"a": 5, "b": {"y": 2}, "c": 3}
        await store.write([item(data={"b": 6, "d": 6}, token=6, at=300.0)], [], rule=FILL)
        assert content(await only(store)) == {"a": 5, "b": {"y": 2}, "c": 3, "d": 6}

    async def test_filling_with_nothing_new_is_no_change(self, store: Store) -> None:
        await store.write([item(data={"a": 1, "b": "x"})], [], rule=FILL)
        await store.write([item(data={"b": "x"}, token=2, at=200.0)], [], rule=FILL)
        await store.write([item(data={"a": None, "c": None}, token=3, at=300.0)], [], rule=FILL)
        stored = await only(store)
        assert (stored.version, stored.changed_at, stored.last_seen) == (1, 100.0, 300.0)
        assert {name: value for name, value in content(stored).items() if value is not None} == {"a": 1, "b": "x"}

    async def test_keeps_long_numbers_while_filling(self, store: Store) -> None:
        await store.write([item(data={"id": 10**25 + 1})], [], rule=FILL)
        await store.write([item(data={"b": 0.1}, token=2)], [], rule=FILL)
        assert await contents(store) == [{"id": 10**25 + 1, "b": 0.1}]

    async def test_fills_of_many_writers_lose_no_field(self, store: Store, reopen: Reopen) -> None:
        stores = [store, await reopen(), await reopen()]

        async def write_all(writer: int) -> None:
            for step in range(10):
                rows = [item(str(number), data={f"{writer}.{step}": 1}, token=step + 1) for number in range(20)]
                await stores[writer].write(rows, [], rule=FILL)

        await asyncio.gather(*(write_all(writer) for writer in range(len(stores))))
        whole = {f"{writer}.{step}": 1 for writer in range(3) for step in range(10)}
        assert await contents(store) == [whole] * 20
        assert {stored.version for stored in await everything(store)} == {30}

    async def test_keeps_every_version_when_asked_to(self, store: Store) -> None:
        for token, letter in enumerate("AABBA", start=1):
            await store.write([item(data={"t": letter}, token=token, at=100.0 * token)], [], rule=KEEP)
        assert await kept(store) == [("k", 1, {"t": "A"}), ("k", 2, {"t": "B"}), ("k", 3, {"t": "A"})]
        versions = [row async for row in store.versions()]
        assert [row.changed_at for row in versions] == [100.0, 300.0, 500.0]
        assert {row.first_seen for row in versions} == {100.0}

    async def test_keeps_no_versions_unless_asked_to(self, store: Store) -> None:
        for token in (1, 2):
            await store.write([item(data={"v": token}, token=token)], [])
        assert await kept(store) == []

    async def test_keeps_versions_of_one_write_and_of_fills_too(self, store: Store) -> None:
        rows = [item(data={"v": token}, token=token) for token in (1, 2, 3)]
        await store.write(rows, [], rule=KEEP)
        assert await kept(store) == [("k", number, {"v": number}) for number in (1, 2, 3)]
        rule = ItemRule(merge="fill", keep_versions=True)
        await store.write([item("f", data={"a": 1}), item("f", data={"b": 2})], [], rule=rule)
        assert [row for row in await kept(store) if row[0] == "f"] == [("f", 1, {"a": 1}), ("f", 2, {"a": 1, "b": 2})]

    async def test_what_was_there_before_versions_were_kept_is_the_first_one_kept(self, store: Store) -> None:
        for token in (1, 2):
            await store.write([item(data={"v": token}, token=token)], [])
        await store.write([item(data={"v": 3}, token=3)], [], rule=KEEP)
        assert await kept(store) == [("k", 2, {"v": 2}), ("k", 3, {"v": 3})]

    async def test_writing_again_keeps_no_version_twice(self, store: Store) -> None:
        for _ in range(2):
            await store.write([item(token=1), item("other", token=1)], [], rule=KEEP)
        await store.write([item(data={"v": 0}, token=0)], [], rule=KEEP)
        assert sorted(await kept(store)) == [("k", 1, {"title": "A"}), ("other", 1, {"title": "A"})]

    async def test_gives_the_versions_of_the_items_that_match(self, store: Store) -> None:
        for token in (1, 2):
            rows = [item(key, data={"v": token}, token=token, at=100.0 * token) for key in ("a", "b")]
            await store.write([*rows, item("c", spider="shoes", token=token)], [], rule=KEEP)
        assert await kept(store, url_prefix="https://a.test/b") == [("b", 1, {"v": 1}), ("b", 2, {"v": 2})]
        assert await kept(store, spider="shoes") == [("c", 1, {"title": "A"})]
        assert await kept(store, changed_since=200.5) == []

    async def test_streams_many_versions_once_each(self, store: Store) -> None:
        for token in (1, 2, 3):
            rows = [item(str(number), data={"v": token}, token=token) for number in range(700)]
            await store.write(rows, [], rule=KEEP)
        found = await kept(store)
        assert len(found) == len({row[:2] for row in found}) == 2100
        for key in ("0", "333", "699"):
            assert [version for name, version, _ in found if name == key] == [1, 2, 3]

    @pytest.mark.parametrize("rule", [ItemRule(), FILL, KEEP], ids=["replace", "fill", "versions"])
    async def test_unstorable_items_are_refused_and_the_others_are_stored(self, store: Store, rule: ItemRule) -> None:
        for token in (1, 2):
            rows: list[ItemRow] = []
            for number, bad in enumerate(UNSTORABLE.values()):
                rows += [item(str(number), token=token), msgspec.structs.replace(bad, token=token)]
            refused = await store.write(rows, [fetch(1)], rule=rule)
            assert refused == {index: why_unstorable(rows[index]) for index in range(1, len(rows), 2)}
            assert {stored.key for stored in await everything(store)} == {row.key for row in rows[::2]}
        assert await store.fetches("c1", [1]) == [fetch(1)]

    async def test_an_item_that_is_too_large_is_refused_with_its_size(self, store: Store) -> None:
        large = item("large", data={"text": "x" * (MAX_DATA_BYTES + 1)})
        refused = await store.write([large, item("fits", data={"text": "x" * (MAX_DATA_BYTES - 11)})], [fetch(1)])
        assert refused.keys() == {0}
        assert f"{len(large.data):,}" in refused[0]
        assert [stored.key for stored in await everything(store)] == ["fits"]

    async def test_a_write_of_nothing_but_unstorable_items_is_harmless(self, store: Store) -> None:
        assert (await store.write([item("bad", data=b"1")], [])).keys() == {0}
        assert await store.count_items() == 0

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_a_later_attempt_that_archives_nothing_keeps_what_was_archived(
        self, store: Store, at_once: bool
    ) -> None:
        lines = [
            fetch(token=1, content_hash="aa", archived="pages/aa"),
            fetch(token=2, outcome="retry:timeout"),
            fetch(token=3, outcome="http_404", status=404),
        ]
        for batch in [lines] if at_once else [[line] for line in lines]:
            await store.write([], batch)
        (line,) = await store.fetches("c1", [1])
        assert line == fetch(token=3, outcome="http_404", status=404, content_hash="aa", archived="pages/aa")
        await store.write([], [newer := fetch(token=4, content_hash="bb", archived="pages/bb")])
        assert await store.fetches("c1", [1]) == [newer]

    async def test_a_hash_without_an_archive_belongs_to_its_own_attempt(self, store: Store) -> None:
        lines: list[FetchRow] = [fetch(token=1, content_hash="aa"), fetch(token=2, content_hash="bb"), fetch(token=3)]
        for line in lines:
            await store.write([], [line])
            assert await store.fetches("c1", [1]) == [line]

    async def test_versions_that_were_replaced_long_ago_are_dropped(self, store: Store) -> None:
        now = time.time()
        for version, days in enumerate((400, 300, 200, 100), start=1):
            at = now - days * A_DAY
            await store.write([item(data={"v": version}, token=version, at=at)], [], rule=KEEP)
        # Replaced 300 and 200 days ago: the contents of the last 150 days stay known.
        assert await store.tidy_versions("books", retention=150 * A_DAY) == 2
        assert await kept(store) == [("k", 3, {"v": 3}), ("k", 4, {"v": 4})]
        assert await store.tidy_versions("books", retention=150 * A_DAY) == 0
        found = [one async for one in store.differences("books", since=now - 149 * A_DAY, until=now)]
        assert [msgspec.json.decode(one.before or b"") for one in found] == [{"v": 3}]
        assert await store.tidy_versions("books", retention=1.0) == 1
        assert await kept(store) == [("k", 4, {"v": 4})]

    async def test_the_only_content_of_an_item_is_never_dropped(self, store: Store) -> None:
        await store.write([item("old", at=100.0), item("other", at=100.0)], [], rule=KEEP)
        assert await store.tidy_versions(None, retention=1.0) == 0
        assert len(await kept(store)) == 2

    async def test_versions_go_where_newer_contents_were_not_kept(self, store: Store) -> None:
        await store.write([item(data={"v": 1}, at=100.0)], [], rule=KEEP)
        await store.write([item(data={"v": 2}, token=2, at=200.0)], [])
        assert await store.tidy_versions("books", retention=1.0) == 1
        assert await kept(store) == []
        assert (await only(store)).version == 2

    async def test_versions_of_other_spiders_stay(self, store: Store) -> None:
        for spider in ("books", "films"):
            for token in (1, 2):
                row = item(spider=spider, data={"v": token}, token=token, at=token * 100.0)
                await store.write([row], [], rule=KEEP)
        assert await store.tidy_versions("films", retention=1.0) == 1
        assert sorted(await kept(store, spider="books")) == [("k", 1, {"v": 1}), ("k", 2, {"v": 2})]
        assert await store.tidy_versions(None, retention=1.0) == 1
