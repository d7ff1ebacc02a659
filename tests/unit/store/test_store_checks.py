"""What no store takes, and what an item becomes when it is written again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.store.base import ItemRow, ItemRule, StoredItem
from shoal.store.rules import (
    MAX_DATA_BYTES,
    MAX_KEY_BYTES,
    MAX_NESTING,
    Folded,
    fingerprint,
    fold,
    mended,
    why_unstorable,
)
from shoal.testing.contract.store.rows import fetch, item
from shoal.testing.memory_store import MemoryStore


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (item("a\0"), "a NUL character in its key"),
        (item("k" * (MAX_KEY_BYTES + 1)), "its key is 2,049 bytes long, more than 2,048"),
        (item(url="\0"), "a NUL character in its URL"),
        (item(data={"a": "\0"}), "a NUL character in its data"),
        (item(data=b'{"a":"\\\\\\u0000"}'), "a NUL character in its data"),
        (item(data=b'{"a":"' + b"x" * MAX_DATA_BYTES + b'"}'), "its data is 16,777,224 bytes, more than 16,777,216"),
        (item(data=b"[1]"), "its data is not a JSON object"),
        (item(data=b'{"a":NaN}'), "its data is not JSON: JSON is malformed: invalid character (byte 5)"),
        (item(data={"a": [[[]]] * 10} | {"b": "x"}), None),
        (item("k" * MAX_KEY_BYTES), None),
        (item(data=b'{"a":"\\\\u0000"}'), None),
        (item(data=b'{"a":"\\\\\\\\u0000"}'), None),
        (item(data=b'{"a":"\\ud83d\\udc1f"}'), None),
        (item(data=[]), "its data is not a JSON object"),
        (item(data={"a": [[1]] * 5000}), None),
        (item(data=b'{"a":' + b"[" * (MAX_NESTING - 1) + b"]" * (MAX_NESTING - 1) + b"}"), None),
        (
            item(data=b'{"a":' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}"),
            f"its data is nested deeper than {MAX_NESTING} levels",
        ),
    ],
)
def test_says_why_a_row_can_never_be_stored(row: ItemRow, why: str | None) -> None:
    assert why_unstorable(row) == why


def test_a_log_line_without_fault_is_handed_on_as_it_is() -> None:
    line = fetch(error="plain")
    assert mended(line) is line
    assert mended(fetch(error="café")) == fetch(error="café")
    assert mended(fetch(worker="\ud800", exit="\0")) == fetch(worker="\\ud800", exit="\\x00")


def test_the_same_json_has_one_fingerprint_however_it_is_spelled() -> None:
    assert fingerprint(b'{"a":1.50,"b":{"x":"\\u00e9","y":[1,2]}}') == fingerprint(
        '{ "b":{"y":[1, 2],"x":"é"}, "a":1.5 }'.encode()
    )
    assert fingerprint(b'{"a":[1,2]}') != fingerprint(b'{"a":[2,1]}')


_values = st.sampled_from([None, 1, 2, "x", [1], {"y": 1}])
_rows = st.builds(
    lambda key, data, token, at: item(
        key, data=data, token=token, at=at, crawl=f"c{token}", url=f"https://a.test/{at}"
    ),
    key=st.sampled_from(["a", "b"]),
    data=st.dictionaries(st.sampled_from(["f", "g", "h"]), _values, max_size=3),
    token=st.integers(1, 4),
    at=st.sampled_from([100.0, 100.25, 101.0, 105.5]),
)
_rules = st.sampled_from(
    [
        ItemRule(),
        ItemRule(freshness=2.0),
        ItemRule(freshness=2.0, keep_versions=True),
        ItemRule(merge="fill"),
        ItemRule(merge="fill", keep_versions=True),
        ItemRule(keep_versions=True),
    ]
)


@settings(max_examples=150)
@given(batches=st.lists(st.tuples(st.lists(_rows, max_size=6), _rules), max_size=6))
def test_sql_and_python_fold_items_alike(batches: list[tuple[list[ItemRow], ItemRule]]) -> None:
    asyncio.run(check_alike(batches))


async def test_an_item_in_another_order_of_fields_stays_as_it_was_spelled() -> None:
    first, again, later = {"a": 1, "b": 2}, {"b": 2, "a": 1}, {}
    await check_alike(
        [
            ([item(data=data, token=1, at=100.0)], ItemRule(keep_versions=data is later))
            for data in (first, again, later)
        ]
    )


async def check_alike(batches: list[tuple[list[ItemRow], ItemRule]]) -> None:
    """The embedded store's statements against the pure rules, on any rows in any batches."""
    folded, kept = dict[str, Folded](), dict[tuple[str, int], Folded]()
    store = MemoryStore()
    for rows, rule in batches:
        assert await store.write(rows, [], rule=rule) == {}
        for row in rows:
            before = folded.get(row.key)
            folded[row.key] = after = fold(before, row, rule=rule)
            if rule.keep_versions:
                for one in (before, after):
                    if one is not None:
                        kept.setdefault((row.key, one.version), one)
    assert [_plain(one.key, one) async for one in store.items()] == [_plain(key, one) for key, one in folded.items()]
    versions = [(one.key, one.version, one.changed_at, one.data) async for one in store.versions()]
    assert sorted(versions) == sorted((*name, one.changed_at, one.data) for name, one in kept.items())


def _plain(key: str, one: StoredItem | Folded) -> list[Any]:
    times = [one.first_seen, one.last_seen, one.changed_at, one.gone_at]
    return [key, one.crawl, one.url, one.version, *times, msgspec.json.decode(one.data)]
