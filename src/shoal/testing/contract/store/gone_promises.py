"""What every store promises of items that are not seen any more."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.store.base import ItemRule, PageLook, Store
from shoal.testing.contract.store.rows import Reopen, content, everything, fetch, item, kept

PAGE = "https://a.test/list"
RULES = [ItemRule(), ItemRule(merge="fill"), ItemRule(keep_versions=True), ItemRule(freshness=3600.0)]


def look(*keys: str, at: float, **changes: Any) -> PageLook:
    """A look at PAGE, which has the items with these keys."""
    fields: dict[str, Any] = {"spider": "books", "url": PAGE, "keys": keys, "at": at}
    return PageLook(**(fields | changes))


def of_page(key: str = "k", **changes: Any) -> Any:
    """An item of PAGE."""
    return item(key, **({"url": PAGE} | changes))


async def gone(store: Store) -> dict[str, float | None]:
    """Since when each item is gone."""
    return {stored.key: stored.gone_at for stored in await everything(store)}


async def seen(store: Store) -> dict[str, float]:
    """When each item was seen last."""
    return {stored.key: stored.last_seen for stored in await everything(store)}


class GonePromises:
    """Looks at pages, items that go, items that come back."""

    async def test_a_look_moves_when_its_items_were_seen(self, store: Store, reopen: Reopen) -> None:
        await store.write([of_page("a"), of_page("b", url="https://a.test/b"), of_page("c")], [fetch()])
        await store.write([], [], looks=[look("a", "b", at=200.5)])
        assert await seen(await reopen()) == {"a": 200.5, "b": 200.5, "c": 100.0}
        await store.write([], [], looks=[look("a", "b", "c", at=150.0)])
        assert await seen(store) == {"a": 200.5, "b": 200.5, "c": 150.0}

    async def test_a_look_changes_nothing_else(self, store: Store) -> None:
        await store.write([of_page("a", token=4)], [])
        (before,) = await everything(store)
        await store.write([], [], looks=[look("a", at=200.0, token=9)])
        (after,) = await everything(store)
        assert (after.version, after.changed_at, after.crawl, after.data) == (1, 100.0, "c1", before.data)
        await store.write([of_page("a", token=5, data={"n": 2}, at=300.0)], [])
        assert content((await everything(store))[0]) == {"n": 2}

    async def test_items_that_a_look_at_their_page_misses_can_be_marked_gone(
        self, store: Store, reopen: Reopen
    ) -> None:
        await store.write([of_page("a"), of_page("b"), of_page("c", url="https://a.test/c")], [])
        await store.write([of_page("a", spider="films")], [])
        await store.write([], [], looks=[look("a", at=200.0)])
        assert await store.mark_gone("books", missing_before=200.0, at=250.0) == 0
        assert await store.mark_gone("films", missing_before=900.0, at=250.0) == 0
        assert await store.mark_gone("books", missing_before=200.1, at=250.0) == 1
        assert await store.mark_gone("books", missing_before=999.0, at=260.0) == 0
        other = await reopen()
        assert {stored.key: stored.gone_at for stored in await everything(other, spider="books")} == {
            "a": None,
            "b": 250.0,
            "c": None,
        }
        assert [stored.key for stored in await everything(other, gone=True)] == ["b"]
        assert sorted(stored.key for stored in await everything(other, gone=False, spider="books")) == ["a", "c"]
        assert [stored.gone_at for stored in await other.items_named("books", ["a", "b"])] == [None, 250.0]

    async def test_missing_counts_from_the_first_look_that_missed_the_item(self, store: Store) -> None:
        await store.write([of_page("a")], [])
        for at in (200.0, 300.0, 250.0):
            await store.write([], [], looks=[look(at=at)])
        assert await store.mark_gone("books", missing_before=200.5, at=400.0) == 1

    async def test_items_that_a_whole_crawl_did_not_see_can_be_marked_gone(self, store: Store) -> None:
        await store.write([item(f"{number:04}", at=100.0) for number in range(2500)], [])
        await store.write([item("0007", at=200.0, token=2), item("x", spider="films")], [])
        assert await store.mark_gone("books", unseen_since=100.0, at=300.0) == 0
        assert await store.mark_gone("books", unseen_since=200.0, at=300.0) == 2499
        assert await store.mark_gone("books", unseen_since=200.0, at=400.0) == 0
        assert [stored.key for stored in await everything(store, gone=False)] in (["0007", "x"], ["x", "0007"])
        assert {stored.gone_at for stored in await everything(store, gone=True)} == {300.0}

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("is_gone", [True, False])
    async def test_an_item_that_is_written_again_is_back(self, store: Store, rule: ItemRule, is_gone: bool) -> None:
        await store.write([of_page("a", at=1000.0)], [], rule=rule)
        await store.write([], [], looks=[look(at=2000.0)])
        if is_gone:
            assert await store.mark_gone("books", missing_before=3000.0, at=2500.0) == 1
        await store.write([of_page("a", at=3000.0, token=2)], [], rule=rule)
        (stored,) = await everything(store)
        assert (stored.gone_at, stored.last_seen, stored.version, stored.changed_at) == (None, 3000.0, 1, 1000.0)
        assert await store.mark_gone("books", missing_before=9000.0, unseen_since=3000.0, at=9000.0) == 0

    async def test_a_look_that_names_an_item_brings_it_back(self, store: Store) -> None:
        await store.write([of_page("a")], [])
        await store.mark_gone("books", unseen_since=200.0, at=250.0)
        await store.write([], [], looks=[look("a", at=300.0)])
        assert (await gone(store), await seen(store)) == ({"a": None}, {"a": 300.0})

    @pytest.mark.parametrize("rule", RULES)
    async def test_an_older_scrape_brings_nothing_back(self, store: Store, rule: ItemRule) -> None:
        await store.write([of_page("a", token=3, at=1000.0)], [], rule=rule)
        await store.write([], [], looks=[look(at=20_000.0, token=9)])
        await store.mark_gone("books", missing_before=30_000.0, at=30_000.0)
        # Lent before the look and stored after it, by a worker that stood still; with a late time, or with its own.
        await store.write([of_page("a", token=8, at=40_000.0)], [], rule=rule)
        await store.write([], [], looks=[look("a", at=40_000.0, token=8)])
        await store.write([], [], looks=[look("a", at=19_000.0, token=0)])
        await store.write([of_page("a", token=10, at=19_000.0)], [], rule=rule)
        assert await gone(store) == {"a": 30_000.0}
        await store.write([of_page("a", token=11, at=50_000.0)], [], rule=rule)
        assert await gone(store) == {"a": None}

    async def test_a_look_that_is_older_than_the_item_does_not_call_it_missing(self, store: Store) -> None:
        await store.write([of_page("a", token=5, at=200.0)], [])
        await store.write([], [], looks=[look(at=150.0, token=6), look(at=300.0, token=4)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0

    async def test_an_item_that_came_back_before_it_was_gone_is_not_missing(self, store: Store) -> None:
        await store.write([of_page("a")], [])
        await store.write([], [], looks=[look(at=200.0), look("a", at=300.0)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0

    async def test_looks_come_after_the_items_of_the_same_write(self, store: Store) -> None:
        await store.write([of_page("a"), of_page("b")], [])
        rows = [of_page("a", at=200.0, token=2), of_page("c", at=200.0, token=2)]
        await store.write(rows, [], looks=[look("a", "c", at=200.0, token=2)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 1
        assert await gone(store) == {"a": None, "b": 900.0, "c": None}

    async def test_freshness_counts_from_the_last_write_not_the_last_look(self, store: Store) -> None:
        rule = ItemRule(freshness=3600.0)
        await store.write([of_page("a", data={"n": 1}, at=1000.0)], [], rule=rule)
        await store.write([of_page("a", data={"n": 2}, at=4000.0, token=2)], [], rule=rule)
        await store.write([], [], looks=[look("a", at=4500.0)])
        (stored,) = await everything(store)
        assert (content(stored), stored.last_seen) == ({"n": 1}, 4500.0)
        await store.write([of_page("a", data={"n": 3}, at=4600.0, token=3)], [], rule=rule)
        await store.write([of_page("a", data={"n": 4}, at=8000.0, token=4)], [], rule=rule)
        (stored,) = await everything(store)
        assert (content(stored), stored.last_seen) == ({"n": 3}, 8000.0)

    async def test_going_and_coming_back_keeps_no_version(self, store: Store) -> None:
        rule = ItemRule(keep_versions=True)
        await store.write([of_page("a", data={"n": 1})], [], rule=rule)
        await store.mark_gone("books", unseen_since=150.0, at=150.0)
        await store.write([of_page("a", data={"n": 1}, at=200.0, token=2)], [], rule=rule)
        await store.write([of_page("a", data={"n": 2}, at=300.0, token=3)], [], rule=rule)
        assert await kept(store) == [("a", 1, {"n": 1}), ("a", 2, {"n": 2})]

    async def test_looks_take_any_text_and_any_number_of_keys(self, store: Store) -> None:
        keys = [f'é"{number}\\' for number in range(3000)]
        await store.write([of_page(key) for key in keys], [])
        odd = ("half \ud800", "nul \0", "k" * 5000)
        looks = [look(*keys, *odd, at=200.0), look(at=300.0, url="\0"), look(at=300.0, url="https://a.test/\ud800")]
        await store.write([], [], looks=looks)
        assert set((await seen(store)).values()) == {200.0}
        assert await store.mark_gone("books", missing_before=900.0, unseen_since=200.0, at=900.0) == 0

    async def test_a_look_that_is_written_again_is_harmless(self, store: Store) -> None:
        await store.write([of_page("a"), of_page("b")], [])
        first = [look("a", at=200.0, token=2)]
        await store.write([], [], looks=first)
        await store.mark_gone("books", missing_before=300.0, at=300.0)
        await store.write([of_page("b", at=400.0, token=3)], [], looks=[look("a", "b", at=400.0, token=3)])
        await store.write([], [], looks=first)
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0
        assert await seen(store) == {"a": 400.0, "b": 400.0}
