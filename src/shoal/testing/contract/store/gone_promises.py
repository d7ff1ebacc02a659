"""Store promises about items that are missing, gone or back, and about differences between two moments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.store.base import ItemRule, ScrapedPage, Store
from shoal.testing.contract.store.rows import Reopen, content, everything, fetch, item, kept

PAGE = "https://a.test/list"
RULES = [ItemRule(), ItemRule(merge="fill"), ItemRule(keep_versions=True), ItemRule(freshness=3600.0)]


def page(*keys: str, at: float, **changes: Any) -> ScrapedPage:
    """PAGE, scraped with exactly the items with these keys."""
    fields: dict[str, Any] = {"spider": "books", "url": PAGE, "keys": keys, "at": at}
    return ScrapedPage(**(fields | changes))


def of_page(key: str = "k", **changes: Any) -> Any:
    """An item of PAGE."""
    return item(key, **({"url": PAGE} | changes))


async def gone(store: Store) -> dict[str, float | None]:
    """Since when each item is gone."""
    return {stored.key: stored.gone_at for stored in await everything(store)}


async def seen(store: Store) -> dict[str, float]:
    """When each item was last seen."""
    return {stored.key: stored.last_seen for stored in await everything(store)}


class GonePromises:
    """Scraped pages, items that go, items that come back."""

    async def test_a_look_moves_when_its_items_were_seen(self, store: Store, reopen: Reopen) -> None:
        await store.write([of_page("a"), of_page("b", url="https://a.test/b"), of_page("c")], [fetch()])
        await store.write([], [], pages=[page("a", "b", at=200.5)])
        assert await seen(await reopen()) == {"a": 200.5, "b": 200.5, "c": 100.0}
        await store.write([], [], pages=[page("a", "b", "c", at=150.0)])
        assert await seen(store) == {"a": 200.5, "b": 200.5, "c": 150.0}

    async def test_a_look_changes_nothing_else(self, store: Store) -> None:
        await store.write([of_page("a", token=4)], [])
        (before,) = await everything(store)
        await store.write([], [], pages=[page("a", at=200.0, token=9)])
        (after,) = await everything(store)
        assert (after.version, after.changed_at, after.crawl, after.data) == (1, 100.0, "c1", before.data)
        await store.write([of_page("a", token=5, data={"n": 2}, at=300.0)], [])
        assert content((await everything(store))[0]) == {"n": 2}

    async def test_items_that_a_look_at_their_page_misses_can_be_marked_gone(
        self, store: Store, reopen: Reopen
    ) -> None:
        await store.write([of_page("a"), of_page("b"), of_page("c", url="https://a.test/c")], [])
        await store.write([of_page("a", spider="films")], [])
        await store.write([], [], pages=[page("a", at=200.0)])
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
            await store.write([], [], pages=[page(at=at)])
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
        await store.write([], [], pages=[page(at=2000.0)])
        if is_gone:
            assert await store.mark_gone("books", missing_before=3000.0, at=2500.0) == 1
        await store.write([of_page("a", at=3000.0, token=2)], [], rule=rule)
        (stored,) = await everything(store)
        assert (stored.gone_at, stored.last_seen, stored.version, stored.changed_at) == (None, 3000.0, 1, 1000.0)
        assert await store.mark_gone("books", missing_before=9000.0, unseen_since=3000.0, at=9000.0) == 0

    async def test_a_look_that_names_an_item_brings_it_back(self, store: Store) -> None:
        await store.write([of_page("a")], [])
        await store.mark_gone("books", unseen_since=200.0, at=250.0)
        await store.write([], [], pages=[page("a", at=300.0)])
        assert (await gone(store), await seen(store)) == ({"a": None}, {"a": 300.0})

    @pytest.mark.parametrize("rule", RULES)
    async def test_an_older_scrape_brings_nothing_back(self, store: Store, rule: ItemRule) -> None:
        await store.write([of_page("a", token=3, at=1000.0)], [], rule=rule)
        await store.write([], [], pages=[page(at=20_000.0, token=9)])
        await store.mark_gone("books", missing_before=30_000.0, at=30_000.0)
        # Leased before the scrape and stored after it, by a worker that was stopped; with a late time, or with its own.
        await store.write([of_page("a", token=8, at=40_000.0)], [], rule=rule)
        await store.write([], [], pages=[page("a", at=40_000.0, token=8)])
        await store.write([], [], pages=[page("a", at=19_000.0, token=0)])
        await store.write([of_page("a", token=10, at=19_000.0)], [], rule=rule)
        assert await gone(store) == {"a": 30_000.0}
        await store.write([of_page("a", token=11, at=50_000.0)], [], rule=rule)
        assert await gone(store) == {"a": None}

    async def test_a_look_that_is_older_than_the_item_does_not_call_it_missing(self, store: Store) -> None:
        await store.write([of_page("a", token=5, at=200.0)], [])
        await store.write([], [], pages=[page(at=150.0, token=6), page(at=300.0, token=4)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0

    async def test_an_item_that_came_back_before_it_was_gone_is_not_missing(self, store: Store) -> None:
        await store.write([of_page("a")], [])
        await store.write([], [], pages=[page(at=200.0), page("a", at=300.0)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0

    async def test_looks_come_after_the_items_of_the_same_write(self, store: Store) -> None:
        await store.write([of_page("a"), of_page("b")], [])
        rows = [of_page("a", at=200.0, token=2), of_page("c", at=200.0, token=2)]
        await store.write(rows, [], pages=[page("a", "c", at=200.0, token=2)])
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 1
        assert await gone(store) == {"a": None, "b": 900.0, "c": None}

    async def test_freshness_counts_from_the_last_write_not_the_last_scrape(self, store: Store) -> None:
        rule = ItemRule(freshness=3600.0)
        await store.write([of_page("a", data={"n": 1}, at=1000.0)], [], rule=rule)
        await store.write([of_page("a", data={"n": 2}, at=4000.0, token=2)], [], rule=rule)
        await store.write([], [], pages=[page("a", at=4500.0)])
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
        pages = [page(*keys, *odd, at=200.0), page(at=300.0, url="\0"), page(at=300.0, url="https://a.test/\ud800")]
        await store.write([], [], pages=pages)
        assert set((await seen(store)).values()) == {200.0}
        assert await store.mark_gone("books", missing_before=900.0, unseen_since=200.0, at=900.0) == 0

    async def test_a_look_that_is_written_again_is_harmless(self, store: Store) -> None:
        await store.write([of_page("a"), of_page("b")], [])
        first = [page("a", at=200.0, token=2)]
        await store.write([], [], pages=first)
        await store.mark_gone("books", missing_before=300.0, at=300.0)
        await store.write([of_page("b", at=400.0, token=3)], [], pages=[page("a", "b", at=400.0, token=3)])
        await store.write([], [], pages=first)
        assert await store.mark_gone("books", missing_before=900.0, at=900.0) == 0
        assert await seen(store) == {"a": 400.0, "b": 400.0}


KEEP = ItemRule(keep_versions=True)


async def differing(store: Store, since: float, until: float) -> dict[str, tuple[str, float, Any, Any]]:
    """By key: the change, its time, and the contents before and after."""
    found = [one async for one in store.differences("books", since=since, until=until)]
    assert len({one.key for one in found}) == len(found)
    return {one.key: (one.change, one.at, _decoded(one.before), _decoded(one.after)) for one in found}


def _decoded(data: bytes | None) -> Any:
    return None if data is None else msgspec.json.decode(data)


class DifferencePromises:
    """Items that are new, changed or gone between two moments."""

    async def test_tells_new_changed_and_gone_items(self, store: Store) -> None:
        await store.write([item(key, data={"n": 1}, at=100.0) for key in ("same", "changed", "gone")], [], rule=KEEP)
        await store.write([item("other", spider="films", at=200.0)], [])
        rows = [item("changed", data={"n": 2}, at=200.0, token=2), item("new", data={"n": 1}, at=210.0, token=2)]
        await store.write([*rows, item("same", data={"n": 1}, at=200.0, token=2)], [], rule=KEEP)
        await store.mark_gone("books", unseen_since=150.0, at=220.0)
        assert await differing(store, 100.0, 300.0) == {
            "changed": ("changed", 200.0, {"n": 1}, {"n": 2}),
            "new": ("new", 210.0, None, {"n": 1}),
            "gone": ("gone", 220.0, {"n": 1}, None),
        }
        assert set(await differing(store, 50.0, 100.0)) == {"same", "changed", "gone"}
        assert await differing(store, 50.0, 99.0) == {}
        assert await differing(store, 220.0, 300.0) == {}
        assert set(await differing(store, 200.0, 210.0)) == {"new"}

    async def test_tells_contents_of_moments_long_past_where_versions_are_kept(self, store: Store) -> None:
        for number in range(1, 6):
            await store.write([item(data={"n": number}, at=number * 100.0, token=number)], [], rule=KEEP)
        assert await differing(store, 150.0, 350.0) == {"k": ("changed", 300.0, {"n": 1}, {"n": 3})}
        assert await differing(store, 50.0, 250.0) == {"k": ("new", 100.0, None, {"n": 2})}
        assert await differing(store, 310.0, 390.0) == {}

    async def test_a_content_that_came_back_is_no_difference(self, store: Store) -> None:
        for at, number in ((100.0, 1), (200.0, 2), (300.0, 1)):
            await store.write([item(data={"n": number}, at=at, token=int(at))], [], rule=KEEP)
        assert await differing(store, 150.0, 350.0) == {}
        assert set(await differing(store, 150.0, 250.0)) == {"k"}

    async def test_says_where_a_change_cannot_be_told_without_versions(self, store: Store) -> None:
        for number in range(1, 4):
            await store.write([item(data={"n": number}, at=number * 100.0, token=number)], [])
        assert await differing(store, 150.0, 250.0) == {"k": ("untold", 300.0, None, None)}
        assert await differing(store, 150.0, 350.0) == {"k": ("changed", 300.0, None, {"n": 3})}
        assert await differing(store, 50.0, 250.0) == {"k": ("new", 100.0, None, None)}

    async def test_a_gap_between_kept_versions_is_not_papered_over(self, store: Store) -> None:
        for number, rule in ((1, KEEP), (2, ItemRule()), (3, ItemRule()), (4, KEEP)):
            await store.write([item(data={"n": number}, at=number * 100.0, token=number)], [], rule=rule)
        assert await differing(store, 110.0, 250.0) == {"k": ("untold", 400.0, None, None)}
        assert await differing(store, 310.0, 450.0) == {"k": ("changed", 400.0, {"n": 3}, {"n": 4})}

    @pytest.mark.parametrize("rule", [ItemRule(), ItemRule(merge="fill"), KEEP, ItemRule(freshness=9e9)])
    async def test_an_item_that_came_back_is_new_again(self, store: Store, rule: ItemRule) -> None:
        await store.write([item(data={"n": 1}, at=100.0)], [], rule=rule)
        await store.mark_gone("books", unseen_since=150.0, at=200.0)
        await store.write([item(data={"n": 1}, at=300.0, token=2)], [], rule=rule)
        assert await differing(store, 250.0, 350.0) == {"k": ("new", 300.0, None, {"n": 1})}
        assert await differing(store, 150.0, 350.0) == {}
        assert await differing(store, 150.0, 250.0) == {"k": ("gone", 200.0, {"n": 1}, None)}
        assert await differing(store, 50.0, 250.0) == {}
        await store.mark_gone("books", unseen_since=350.0, at=400.0)
        assert await differing(store, 350.0, 450.0) == {"k": ("gone", 400.0, {"n": 1}, None)}
        assert await differing(store, 150.0, 250.0) == {"k": ("gone", 200.0, {"n": 1}, None)}

    async def test_says_where_an_earlier_absence_cannot_be_told(self, store: Store) -> None:
        for at in (100.0, 300.0, 500.0):
            await store.write([item(at=at, token=int(at))], [])
            if at < 500.0:
                await store.mark_gone("books", unseen_since=at + 1, at=at + 100)
        assert await differing(store, 250.0, 600.0) == {"k": ("untold", 400.0, None, None)}
        assert {change for change, *_ in (await differing(store, 450.0, 600.0)).values()} == {"new"}

    async def test_streams_any_number_of_differences(self, store: Store) -> None:
        large = "x" * 100_000
        rows = [item(f"{number:04}", data={"n": 1, "t": large if number < 3 else ""}) for number in range(1001)]
        await store.write(rows, [], rule=KEEP)
        await store.write(
            [item(row.key, data={"n": 2, "t": large}, at=200.0, token=2) for row in rows[:250]], [], rule=KEEP
        )
        found = await differing(store, 150.0, 250.0)
        assert sorted(found) == [row.key for row in rows[:250]]
        assert {(change, before["n"], after["n"]) for change, _, before, after in found.values()} == {("changed", 1, 2)}
        assert len(await differing(store, 50.0, 250.0)) == 1001

    async def test_refuses_moments_in_the_wrong_order(self, store: Store) -> None:
        with pytest.raises(UsageError, match="the earlier one first"):
            await differing(store, 200.0, 100.0)
