"""The keys of a page's items in its log line: all of them, or known to be some."""

from __future__ import annotations

import pytest

from shoal.store.base import ALL_ITEMS_NAMED, ITEMS_NAMED, all_item_keys, named_keys, some_item_keys
from shoal.testing.contract.store.rows import fetch

MANY = [str(number) for number in range(ITEMS_NAMED + 1)]


@pytest.mark.parametrize("keys", [[], ["a"], ['é"\\'], MANY[:9], MANY[:10]])
def test_a_line_with_all_keys_gives_them(keys: list[str]) -> None:
    line = fetch(item_keys=named_keys(keys))
    assert all_item_keys(line) == some_item_keys(line) == keys


def test_a_line_with_some_keys_says_so() -> None:
    line = fetch(item_keys=named_keys(MANY))
    assert all_item_keys(line) is None
    assert some_item_keys(line) == MANY[:ITEMS_NAMED]
    assert all_item_keys(fetch(item_keys=named_keys(MANY, limit=ALL_ITEMS_NAMED))) == MANY


def test_a_page_whose_handler_failed_may_have_more_items_than_it_yielded() -> None:
    line = fetch(item_keys=named_keys(["a"]), error="raised KeyError")
    assert (all_item_keys(line), some_item_keys(line)) == (None, ["a"])


def test_keys_that_are_long_together_are_cut_off() -> None:
    line = fetch(item_keys=named_keys(["k" * 2000] * 9, limit=ALL_ITEMS_NAMED))
    assert (all_item_keys(line), len(some_item_keys(line))) == (None, 8)


def test_a_line_that_names_no_keys_does_not_say_that_there_are_none() -> None:
    assert all_item_keys(fetch()) is None
    assert all_item_keys(fetch(item_keys="[]")) == []


def test_a_key_that_is_no_text_names_nothing() -> None:
    assert named_keys(["a", "half \ud800"]) == ""
