"""What pages have in common, counted for the summary: which notes a page carries, and how many names there can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.notes import FOLLOWED_SAID, MOST_KEYS, MOST_PAIRS
from shoal.journey.sitemaps import PAGES
from shoal.policy.failures import LONGEST_NAME
from shoal.settings.table import Settings
from shoal.testing.fakes import make_page
from shoal.urls.canonical import UrlRules


class Lists(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        yield page.follow("li.next  a")

    def iterated(self, page: Page) -> Iterator[Any]:
        yield from page.follow("li.next a", self.parse)

    def all_links(self, page: Page) -> Iterator[Any]:
        yield page.follow()

    def other_option(self, page: Page) -> Iterator[Any]:
        yield page.follow("li.next a", dedup=False)

    def url(self, page: Page) -> Iterator[Any]:
        yield page.follow(url=page.attr("li.next a", "href"))

    def forgetful(self, page: Page) -> Iterator[Any]:
        yield {"title": page.text("h1")}
        page.follow("li.next a")
        page.follow(url="/2")

    def choosy(self, page: Page) -> Iterator[Any]:
        links = page.follow("li.next a")
        if page.text("li"):
            yield links

    def many(self, page: Page) -> Iterator[Any]:
        for number in range(2 * MOST_PAIRS):
            yield page.follow(f".c{number} a")

    def long(self, page: Page) -> Iterator[Any]:
        yield page.follow(f"li.{'x' * 500} a")

    def items(self, page: Page) -> Iterator[Any]:
        for key in page.meta["keys"]:
            yield Item(key=key, a=1)


LINK = "<li class=next><a href=/2>next</a>"


def handlers() -> Handlers:
    intake = Intake(UrlRules(Settings(), start_hosts=["a.test"]), Settings())
    return Handlers(Lists(), intake=intake, item_key="", seconds=5.0)


async def notes(*bodies: str, handler: str = "parse", by: Handlers | None = None, **task: Any) -> Counter[str]:
    by = by or handlers()
    total: Counter[str] = Counter()
    for body in bodies:
        total.update((await by.run(make_page(body, handler=handler, **task))).notes)
    return total


async def test_a_selector_that_finds_no_link_is_counted_page_by_page() -> None:
    assert await notes("", "", "<li class=next><a>no href</a>") == {"follow parse li.next a": 3}


async def test_a_selector_that_has_found_links_is_not_counted_for_ever() -> None:
    total = await notes("", *[LINK] * 10, "", "")
    assert total == {"follow parse li.next a": 1, "followed parse li.next a": FOLLOWED_SAID}


async def test_links_that_a_handler_does_not_yield_are_counted() -> None:
    assert await notes("", LINK, handler="forgetful") == {
        "items": 2,
        "unused forgetful li.next a": 2,
        "unused forgetful url=…": 2,
    }
    worker = handlers()
    assert await notes("", handler="choosy", by=worker) == {"unused choosy li.next a": 1}
    assert await notes(LINK, "", handler="choosy", by=worker) == {"followed choosy li.next a": 1}


async def test_a_follow_counts_however_it_is_yielded() -> None:
    assert await notes("", handler="iterated") == {"follow iterated li.next a": 1}
    assert await notes(LINK, handler="iterated") == {"followed iterated li.next a": 1}
    assert await notes("", handler="other_option") == {"follow other_option li.next a": 1}
    assert await notes("", handler="all_links") == {"follow all_links a[href]": 1}
    assert await notes("", LINK, handler="url") == {"follow url url=…": 1, "followed url url=…": 1}


async def test_the_first_page_of_a_range_counts_for_its_handler() -> None:
    meta = {"handler": "parse", "template": "https://a.test/{}", "first": 1, "last": 1, "meta": {}}
    assert await notes("", handler=PAGES, meta=meta) == {"follow parse li.next a": 1}


async def test_the_names_of_selectors_are_bounded() -> None:
    total = await notes("", "", handler="many")
    assert len(total) == MOST_PAIRS
    [name] = await notes("", handler="long")
    assert len(name) <= LONGEST_NAME


async def test_items_are_counted_and_two_of_one_key_on_a_page_are_named() -> None:
    assert await notes("", handler="items", meta={"keys": ["a", "b"]}) == {"items": 2}
    assert await notes("", handler="items", meta={"keys": []}) == {}
    worker = handlers()
    for number in (1, 2):
        url = f"https://a.test/{number}"
        total = await notes("", handler="items", by=worker, url=url, meta={"keys": ["a", "b", "a", "a"]})
        # One name for a key, whatever page it is met on: the first.
        assert total == {"items": 4, "same key a on https://a.test/1": 1}
    assert await notes("", handler="items", meta={"keys": ["", "k"]}) == {"items": 2, "keyless": 1}


async def test_the_name_of_a_note_is_text_that_every_frontier_keeps() -> None:
    total = await notes("", handler="items", meta={"keys": ["a\ud800\0", "a\ud800\0"]})
    assert total == {"items": 2, "same key a\\ud800\\0 on https://a.test/dir/page": 1}


async def test_the_names_of_keys_are_bounded() -> None:
    keys = [f"{number}-{'x' * 500}" for number in range(2 * MOST_KEYS)]
    total = await notes("", handler="items", meta={"keys": keys * 2})
    assert len([name for name in total if name.startswith("same key ")]) == MOST_KEYS
    assert max(map(len, total)) <= LONGEST_NAME
