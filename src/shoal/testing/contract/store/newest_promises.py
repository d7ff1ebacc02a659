"""What every store promises about its newest items: pages, filters, search."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.store.base import LOOKED_THROUGH, ItemFilter, Store, StoredItem
from shoal.testing.contract.store.rows import item


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
