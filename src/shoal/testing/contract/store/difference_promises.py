"""What every store promises of the differences between two moments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.store.base import ItemRule, Store
from shoal.testing.contract.store.rows import item

KEEP = ItemRule(keep_versions=True)


async def differing(store: Store, since: float, until: float) -> dict[str, tuple[str, float, Any, Any]]:
    """By key: the change, when, what the item was and what it is."""
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
