"""What the summary says of selectors without a link and of items that share a key: nothing it is not certain of."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cli.display.slips import LINES_SHOWN, slip_lines, slips_of
from shoal.settings.table import Settings


def lines(notes: dict[str, int], *, stored: int = 0, **settings: Any) -> list[str]:
    return [text for _, text in slip_lines(slips_of(notes, Settings(**settings)), stored=stored)]


def test_a_selector_that_never_found_a_link_is_named() -> None:
    notes = {
        "follow parse li.next a": 40,
        "follow book .also a": 3,
        "followed book .also a": 1,
        "followed parse article a": 3,
        "follow book a[href]": 900,
        "raised KeyError books.py:3": 2,
    }
    assert lines(notes) == ["li.next a matched on 0 of 40 pages (parse)"]
    assert lines({"follow book .x a": 1}) == [".x a matched on 0 of 1 page (book)"]


def test_pages_without_any_link_are_named_only_if_all_are() -> None:
    assert lines({"follow parse a[href]": 1}) == ["a[href] matched on 0 of 1 page (parse)"]
    assert lines({"follow book a[href]": 9, "followed parse li a": 1}) == []


def test_links_that_are_never_yielded_are_named() -> None:
    assert lines({"unused parse li.next a": 40, "unused parse url=…": 1}) == [
        "page.follow('li.next a') was called on 40 pages and never yielded (parse)",
        "page.follow(url=…) was called on 1 page and never yielded (parse)",
    ]
    assert lines({"unused parse li.next a": 40, "followed parse li.next a": 1}) == []


def test_hrefs_that_lead_nowhere_are_the_end_of_a_list() -> None:
    assert lines({"follow parse url=…": 3}) == []


def test_many_selectors_are_cut_short() -> None:
    said = lines({f"follow parse .c{number} a": number + 1 for number in range(LINES_SHOWN + 5)})
    assert len(said) == LINES_SHOWN + 1
    assert (said[0], said[-1]) == (".c14 a matched on 0 of 15 pages (parse)", "and 5 more selectors")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "499 items replaced by later ones with the same key"),
        ({"merge": "fill"}, "499 items merged into others with the same key"),
        ({"freshness": "1h"}, "the spider yielded 2,000 items, the store has 1,501 of this crawl"),
        ({"dedup_ttl": "1h"}, "the spider yielded 2,000 items, the store has 1,501 of this crawl"),
    ],
)
def test_fewer_items_than_were_yielded_are_explained_as_far_as_is_certain(settings: dict[str, Any], line: str) -> None:
    assert lines({"items": 2000}, stored=1501, **settings) == [line]
    assert lines({"items": 2000}, stored=2000, **settings) == []
    assert lines({}, stored=5, **settings) == []


def test_items_that_may_lie_elsewhere_are_not_called_replaced() -> None:
    slips = slips_of({"items": 60}, Settings(), is_whole=False)
    said = "the spider yielded 60 items, the store has 23 of this crawl"
    assert list(slip_lines(slips, stored=23)) == [("", said)]


def test_one_replaced_item_is_told_as_one() -> None:
    assert lines({"items": 2}, stored=1) == ["1 item replaced by a later one with the same key"]


def test_items_of_one_page_with_one_key_are_named_with_a_page() -> None:
    notes = {
        "items": 4,
        "same key A-1 on https://a.test/1": 8,
        "same key A-1 on https://a.test/7": 4,
        "same key on \x1b on https://a.test/2": 1,
    }
    assert lines(notes, stored=4) == [
        "several items with the key 'A-1' on one page (12 pages): only the last is kept, as on https://a.test/1",
        "several items with the key 'on \\\\x1b' on one page (1 page): only the last is kept, as on https://a.test/2",
    ]
    assert "(12 pages): they are merged, as on" in lines(notes, stored=4, merge="fill")[0]


def test_items_with_an_empty_key_are_counted() -> None:
    assert lines({"items": 2, "keyless": 1}, stored=2) == ["1 item has an empty key: stored under the page's URL"]
    assert lines({"items": 2, "keyless": 2}, stored=2) == ["2 items have an empty key: stored under the page's URL"]
