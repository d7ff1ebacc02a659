"""Store promises about the outbox: changes that wait until their sinks have them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from shoal.store.base import READ_BYTES, ItemRule, Outgoing, ScrapedPage, SinkPlace, Store
from shoal.testing.contract.store.rows import Reopen, item
from shoal.testing.waiting import eventually

PLACE = SinkPlace(spider="books", url="redis://queue.test/0?list=books")
OTHER = SinkPlace(spider="books", url="https://hooks.test/books", has_secret=True)


class OutboxPromises:
    """Changes are queued with their items, and stay until they are delivered."""

    async def test_new_and_changed_items_wait_for_the_sink(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", data={"n": 1}, at=100.0)], [])
        now = 1767225600.123457
        await store.write([item("a", data={"n": 2}, at=now, token=2, crawl="c2", url="https://a.test/now")], [])
        first, second = await store.outbox.read(sink, limit=10)
        assert (first.key, first.version, first.change, first.at, first.crawl) == ("a", 1, "new", 100.0, "c1")
        assert (second.key, second.version, second.change, second.at, second.crawl) == ("a", 2, "changed", now, "c2")
        assert (first.url, second.url) == ("https://a.test/a", "https://a.test/now")
        assert [change.data.replace(b" ", b"") for change in (first, second)] == [b'{"n":1}', b'{"n":2}']
        assert first.position < second.position

    async def test_an_item_that_stays_the_same_is_no_change(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", data=b'{"n":1,"m":2}')], [])
        await store.write([item("a", data=b'{"n":1,"m":2}')], [])
        await store.write([item("a", data=b'{"m":2, "n":1}', token=2, at=200.0)], [])
        assert await waiting(store, sink) == [("a", 1)]

    async def test_an_older_scrape_that_overwrites_nothing_is_no_change(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", data={"n": 2}, token=5)], [])
        await store.write([item("a", data={"n": 1}, token=4)], [])
        fresh = ItemRule(freshness=1000.0)
        await store.write([item("a", data={"n": 3}, token=6)], [], rule=fresh)
        assert await waiting(store, sink) == [("a", 1)]

    async def test_every_rule_for_items_keeps_their_changes(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        for rule in (ItemRule(merge="fill"), ItemRule(keep_versions=True), ItemRule(freshness=1.0)):
            key = repr(rule)
            await store.write([item(key, data={"n": 1})], [], rule=rule)
            await store.write([item(key, data={"n": 2}, token=2, at=300.0)], [], rule=rule)
            assert await waiting(store, sink) == [(key, 1), (key, 2)]
            await store.outbox.passed(sink, await store.outbox.read(sink, limit=10))

    async def test_a_sink_begins_with_what_comes_after_it(self, store: Store) -> None:
        await store.write([item("before", data={"n": 1})], [])
        sink = await store.outbox.add(PLACE)
        assert await waiting(store, sink) == []
        await store.write([item("after"), item("before", data={"n": 2}, token=2)], [])
        assert sorted(await waiting(store, sink)) == [("after", 1), ("before", 2)]

    async def test_a_sink_that_is_added_again_goes_on(self, store: Store, reopen: Reopen) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a")], [])
        again = await reopen()
        assert await again.outbox.add(PLACE) == sink
        assert await waiting(again, sink) == [("a", 1)]
        assert [state.id for state in await again.outbox.sinks()] == [sink]

    async def test_only_the_items_of_its_spider_wait_for_a_sink(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a"), item("a", spider="films")], [])
        assert await waiting(store, sink) == [("a", 1)]
        assert await store.outbox.sinks("films") == []

    async def test_what_has_passed_is_dropped_and_the_rest_waits(self, store: Store, reopen: Reopen) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item(str(number)) for number in range(5)], [])
        batch = await store.outbox.read(sink, limit=3)
        assert [change.key for change in await store.outbox.read(sink, limit=3)] == [change.key for change in batch]
        await store.outbox.passed(sink, batch)
        rest = await (await reopen()).outbox.read(sink, limit=10)
        assert {change.key for change in (*batch, *rest)} == {str(number) for number in range(5)}
        assert len(rest) == 2
        await store.outbox.passed(sink, batch)
        assert len(await store.outbox.read(sink, limit=10)) == 2
        await store.outbox.passed(sink, [])

    async def test_two_sinks_go_on_each_by_itself(self, store: Store) -> None:
        one, other = await store.outbox.add(PLACE), await store.outbox.add(OTHER)
        await store.write([item("a"), item("b")], [])
        await store.outbox.passed(one, await store.outbox.read(one, limit=10))
        assert await waiting(store, one) == []
        assert sorted(await waiting(store, other)) == [("a", 1), ("b", 1)]

    async def test_changes_that_were_not_read_survive_the_process(self, store: Store, reopen: Reopen) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a")], [])
        await store.close()
        assert await waiting(await reopen(), sink) == [("a", 1)]

    async def test_a_read_is_bounded_by_rows_and_bytes(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        text = "x" * (READ_BYTES // 2)
        await store.write([item(f"large {number}", data={"text": text}) for number in range(6)], [])
        assert len(await store.outbox.read(sink, limit=2)) == 2
        batch = await store.outbox.read(sink, limit=100)
        assert 1 <= len(batch) <= 4
        found = await drained(store, sink)
        assert sorted(change.key for change in found) == [f"large {number}" for number in range(6)]

    async def test_the_changes_of_an_item_come_in_order_from_writers_at_once(self, reopen: Reopen) -> None:
        stores = [await reopen(), await reopen(), await reopen()]
        sink = await stores[0].outbox.add(PLACE)
        is_over = asyncio.Event()
        found: list[Outgoing] = []

        async def write(writer: int, store: Store) -> None:
            for number in range(40):
                rows = [
                    item(key, data={"n": number, "by": writer}, token=3 * number + writer)
                    for key in ("a", f"{writer}-{number}", "b")
                ]
                await store.write(rows, [])

        async def read() -> None:
            while not is_over.is_set():
                found.extend(await drained(stores[2], sink))

        reading = asyncio.create_task(read())
        await asyncio.gather(write(1, stores[0]), write(2, stores[1]))
        is_over.set()
        await reading
        found += await drained(stores[2], sink)
        for key in ("a", "b"):
            versions = [change.version for change in found if change.key == key]
            assert versions == list(range(1, len(versions) + 1))
            (stored,) = await stores[0].items_named("books", [key])
            assert versions[-1] == stored.version
        assert len({change.key for change in found}) == 2 + 80

    async def test_the_state_of_a_sink_says_what_waits_and_why(self, store: Store) -> None:
        now = time.time()
        sink = await store.outbox.add(OTHER)
        (state,) = await store.outbox.sinks("books")
        assert (state.id, state.place, state.sent, state.waiting, state.oldest) == (sink, OTHER, 0, 0, 0.0)
        assert abs(state.added - now) < 60
        await store.write([item("a"), item("b")], [])
        await store.outbox.failed(sink, "it answered 503")
        (began,) = await store.outbox.sinks()
        await store.outbox.failed(sink, "it answered 502")
        (state,) = await store.outbox.sinks()
        assert (state.trouble, state.trouble_since) == ("it answered 502", began.trouble_since)
        assert (state.waiting, state.sent, state.sent_at) == (2, 0, 0.0)
        assert abs(state.oldest - now) < 60
        assert [(one.waiting, one.oldest) for one in await store.outbox.sinks(counted=1)] == [(1, state.oldest)]
        await store.outbox.passed(sink, await store.outbox.read(sink, limit=1))
        (state,) = await store.outbox.sinks()
        assert (state.trouble, state.trouble_since, state.waiting, state.sent) == ("", 0.0, 1, 1)
        assert abs(state.sent_at - now) < 60

    async def test_one_process_at_a_time_has_the_duty_to_send(self, store: Store, reopen: Reopen) -> None:
        sink = await store.outbox.add(PLACE)
        other = await reopen()
        assert await store.outbox.hold(sink, "one", seconds=60.0)
        assert not await other.outbox.hold(sink, "two", seconds=60.0)
        assert [state.holder for state in await other.outbox.sinks()] == ["one"]
        assert await store.outbox.hold(sink, "one", seconds=60.0)
        assert await store.outbox.hold(sink, "one", seconds=0.0)
        assert await other.outbox.hold(sink, "two", seconds=0.2)

        async def is_free() -> bool:
            return await store.outbox.hold(sink, "one", seconds=60.0)

        await eventually(is_free)
        assert not await store.outbox.hold(sink + 1000, "one", seconds=60.0)

    async def test_a_replay_queues_all_items_as_they_are_behind_what_waits(self, store: Store) -> None:
        await store.write([item(f"{number:04}", at=100.0) for number in range(1200)], [])
        await store.write([item("other", spider="films")], [])
        sink = await store.outbox.add(PLACE)
        await store.write([item("0007", data={"n": 2}, token=2, at=200.0)], [])
        assert await store.outbox.replay(sink) == 1200
        found = await drained(store, sink)
        assert (found[0].key, found[0].version, found[0].change) == ("0007", 2, "changed")
        again = {change.key: (change.version, change.change) for change in found[1:]}
        assert len(again) == 1200
        assert (again["0007"], again["0008"]) == ((2, "new"), (1, "new"))
        assert await store.outbox.replay(sink, since=150.0) == 1
        assert await waiting(store, sink) == [("0007", 2)]

    async def test_items_that_go_and_come_back_are_changes_once_each_and_in_order(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", data={"n": 1}, at=100.0)], [])
        for _ in range(2):
            await store.mark_gone("books", unseen_since=200.0, at=250.5)
        await store.write([item("a", data={"n": 1}, at=300.0, token=2, crawl="c2")], [])
        await store.write([item("a", data={"n": 2}, at=400.0, token=3)], [])
        await store.write([], [], pages=[gone_page(at=500.0)])
        for _ in range(2):
            await store.mark_gone("books", missing_before=900.0, at=600.0)
        await store.write([item("a", data={"n": 3}, at=700.0, token=4)], [])
        await store.mark_gone("books", unseen_since=900.0, at=910.0)
        await store.write([], [], pages=[gone_page("a", at=920.0)])
        found = await drained(store, sink)
        assert [(change.change, change.at, change.data.replace(b" ", b"")) for change in found] == [
            ("new", 100.0, b'{"n":1}'),
            ("gone", 250.5, b'{"n":1}'),
            ("new", 300.0, b'{"n":1}'),
            ("changed", 400.0, b'{"n":2}'),
            ("gone", 600.0, b'{"n":2}'),
            ("new", 700.0, b'{"n":3}'),
            ("gone", 910.0, b'{"n":3}'),
            ("new", 920.0, b'{"n":3}'),
        ]
        numbers = [change.version for change in found]
        assert numbers == sorted(set(numbers))
        assert {change.key for change in found} == {"a"}

    @pytest.mark.parametrize("rule", [ItemRule(merge="fill"), ItemRule(keep_versions=True), ItemRule(freshness=9.0)])
    async def test_every_rule_for_items_keeps_their_coming_back(self, store: Store, rule: ItemRule) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", at=100.0)], [], rule=rule)
        await store.mark_gone("books", unseen_since=101.0, at=101.0)
        await store.write([item("a", at=102.0, token=2)], [], rule=rule)
        found = [(change.change, change.version) for change in await drained(store, sink)]
        assert found == [("new", 1), ("gone", 2), ("new", 3)]

    async def test_two_that_mark_at_once_mark_each_item_once(self, store: Store, reopen: Reopen) -> None:
        sink, other = await store.outbox.add(PLACE), await reopen()
        await store.write([item(f"{number:04}") for number in range(1500)], [])
        await drained(store, sink)
        pages = [gone_page(at=200.0)]
        marks = [one.mark_gone("books", missing_before=900.0, unseen_since=150.0, at=300.0) for one in (store, other)]
        writes = asyncio.gather(*(one.write([], [], pages=pages) for one in (store, other)))
        assert sum(await asyncio.gather(*marks)) == 1500
        await writes
        found = await drained(store, sink)
        assert sorted((change.key, change.change) for change in found) == [(f"{n:04}", "gone") for n in range(1500)]

    async def test_an_item_that_is_gone_and_stays_so_is_not_sent(self, store: Store) -> None:
        sink = await store.outbox.add(PLACE)
        await store.write([item("a", data={"n": 1}, at=100.0), item("b", at=900.0)], [])
        await store.mark_gone("books", unseen_since=800.0, at=900.0)
        await drained(store, sink)
        await store.write([item("a", data={"n": 2}, at=700.0, token=2)], [])
        assert await waiting(store, sink) == []
        assert await store.outbox.replay(sink) == 1
        assert [key for key, _ in await waiting(store, sink)] == ["b"]

    async def test_a_removed_sink_is_forgotten_with_what_waited(self, store: Store, reopen: Reopen) -> None:
        sink, other = await store.outbox.add(PLACE), await store.outbox.add(OTHER)
        await store.write([item("a")], [])
        await store.outbox.remove(sink)
        await store.write([item("b")], [])
        again = await reopen()
        assert await waiting(again, sink) == []
        assert [state.id for state in await again.outbox.sinks()] == [other]
        assert sorted(await waiting(again, other)) == [("a", 1), ("b", 1)]
        assert await again.outbox.replay(sink) == 0
        assert await again.outbox.add(PLACE) != sink


def gone_page(*keys: str, at: float) -> ScrapedPage:
    """A page at the page of the item "a"."""
    return ScrapedPage(spider="books", url="https://a.test/a", keys=keys, at=at)


async def waiting(store: Store, sink: int) -> list[tuple[str, int]]:
    """Keys and versions of the waiting changes, at most a hundred."""
    return [(change.key, change.version) for change in await store.outbox.read(sink, limit=100)]


async def drained(store: Store, sink: int) -> Sequence[Outgoing]:
    """All waiting changes, deleted as they are read."""
    found: list[Outgoing] = []
    while batch := await store.outbox.read(sink, limit=500):
        found += batch
        await store.outbox.passed(sink, batch)
    return found
