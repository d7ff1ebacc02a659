"""Archived pages through a spider's handlers once more: which pages, which handler, and whose items win."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Item, Page, Spider
from shoal.archive import open_archive
from shoal.archive.base import Archive, RawPage, packed
from shoal.results.replay import ReplayReport
from shoal.run.building import replay_for
from shoal.run.intakes import settings_of
from shoal.store.base import Store
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.archive_contract import raw_page
from shoal.testing.store_contract import everything, item


class Books(Spider):
    name = "books"
    start = ("https://a.test/",)

    def parse(self, page: Page) -> Iterator[Any]:
        yield page.follow("a")
        yield Item(key=page.url, title=page.text("h1"))

    async def book(self, page: Page) -> list[Any]:
        return [Item(key=page.meta["id"], title=page.text("h1"), depth=page.depth, handler=page.task.handler)]

    def element(self, page: Page) -> Iterator[Any]:
        yield Item(key="good", title=page.text("h1"))
        yield Item(key="bad", title=page.css("h1")[0])

    def broken(self, page: Page) -> None:
        raise ValueError("no such price")


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Archive]:
    archive = await open_archive(str(tmp_path / "pages"), create=True)
    yield archive
    await archive.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    yield store
    await store.close()


def book(number: int, title: str, *, token: int = 1, **changes: Any) -> RawPage:
    fields = {"handler": "book", "url": f"https://a.test/{number}", "key": number, "token": token, "depth": 2}
    return raw_page(f"<h1>{title}</h1>".encode(), **(fields | packed({"id": str(number)}) | changes))


async def replay(archive: Archive, store: Store, *, limit: int = 0, **settings: Any) -> ReplayReport:
    values = settings_of(Books, settings).values
    job = replay_for("books-1", Books(), settings=values, archive=archive, store=store, say=print)
    return await job.run(limit=limit, show=lambda report: None)


async def stored(store: Store) -> dict[str, Any]:
    return {one.key: msgspec.json.decode(one.data) for one in await everything(store)}


async def test_each_page_goes_to_its_handler_with_its_task(archive: Archive, store: Store) -> None:
    await archive.write([book(1, "One"), raw_page(b"<h1>Home</h1><a href=/2>2</a><a href=/3>3</a>", key=9)])
    report = await replay(archive, store)
    assert await stored(store) == {
        "1": {"title": "One", "depth": 2, "handler": "book"},
        "https://a.test/": {"title": "Home"},
    }
    assert (report.total, report.pages, report.items, report.links, report.failed) == (2, 2, 2, 2, 0)
    [one, _] = await everything(store)
    assert (one.spider, one.crawl) == ("books", "books-1")


async def test_of_each_task_the_latest_capture_counts(archive: Archive, store: Store) -> None:
    await archive.write([book(1, "newest", token=30)])
    await archive.write([book(1, "older", token=10), book(1, "old", token=20)])
    report = await replay(archive, store)
    assert (await stored(store))["1"]["title"] == "newest"
    assert report.pages == report.items == 1


async def test_among_pages_of_one_item_the_latest_scrape_wins_as_it_did_in_the_crawl(
    archive: Archive, store: Store
) -> None:
    same = packed({"id": "x"})
    for token, title in ((30, "third"), (10, "first"), (20, "second")):
        await archive.write([book(token, title, token=token, **same)])
    await replay(archive, store)
    assert (await stored(store))["x"]["title"] == "third"


async def test_a_replay_wins_over_the_crawl_and_a_later_scrape_over_the_replay(archive: Archive, store: Store) -> None:
    now = int(time.time() * 1000) * 1024
    old = item("1", spider="books", data=b'{"title":"wrong"}', token=now - 1024)
    await store.write([old], [])
    await archive.write([book(1, "right", token=now - 1024)])
    await replay(archive, store)
    assert (await stored(store))["1"]["title"] == "right"
    await store.write([old], [])
    assert (await stored(store))["1"]["title"] == "right"
    later = (int(time.time() * 1000) + 10) * 1024
    await store.write([item("1", spider="books", data=b'{"title":"newer"}', token=later)], [])
    assert (await stored(store))["1"]["title"] == "newer"


async def test_a_page_that_fails_is_named_and_the_others_are_stored(archive: Archive, store: Store) -> None:
    pages = [book(1, "One"), book(2, "Two", handler="broken"), book(3, "Three", handler="gone"), book(4, "Four")]
    await archive.write(pages)
    report = await replay(archive, store)
    assert sorted(await stored(store)) == ["1", "4"]
    assert (report.pages, report.failed) == (4, 2)
    assert dict(report.failures) == {
        "https://a.test/2": "handler: ValueError: no such price",
        "https://a.test/3": "handler: UsageError: Books has no handler 'gone': write one, or name another",
    }


async def test_an_item_without_a_meaning_in_json_is_named(archive: Archive, store: Store) -> None:
    await archive.write([book(1, "One", handler="element")])
    report = await replay(archive, store)
    assert sorted(await stored(store)) == ["good"]
    why = "unstorable: item 'bad': field title is an Element: did you mean page.text(…) or element.text()?"
    assert report.failures == [("https://a.test/1", why)]


async def test_a_body_that_is_gone_is_one_page_less(archive: Archive, store: Store, tmp_path: Path) -> None:
    lost = book(1, "One")
    await archive.write([lost, book(2, "Two")])
    [file] = (tmp_path / "pages" / "bodies").rglob(f"{lost.capture.content_hash}.zst")
    file.unlink()
    report = await replay(archive, store)
    assert list(await stored(store)) == ["2"]
    [(url, reason)] = report.failures
    assert url == lost.capture.url
    assert reason.startswith("archive: bodies/")


async def test_an_item_that_cannot_be_stored_is_named(archive: Archive, store: Store) -> None:
    await archive.write([book(1, "One", **packed({"id": "k" * 100_000})), book(2, "Two")])
    report = await replay(archive, store)
    assert list(await stored(store)) == ["2"]
    [(url, reason)] = report.failures
    assert (url, report.items) == ("https://a.test/1", 1)
    assert reason.startswith("item 'kkk")


async def test_what_a_status_kept_from_the_handler_is_replayed_when_it_is_asked_for(
    archive: Archive, store: Store
) -> None:
    await archive.write([book(1, "One"), book(2, "Not found", status=404)])
    redirect = book(3, "Moved", status=301, headers={"location": "/1"})
    await archive.write([redirect])
    report = await replay(archive, store)
    assert (report.pages, report.skipped, list(await stored(store))) == (1, 2, ["1"])
    report = await replay(archive, store, handle_statuses=(404,))
    assert (report.pages, report.skipped, list(await stored(store))) == (2, 1, ["1", "2"])


async def test_the_limit_ends_it(archive: Archive, store: Store) -> None:
    await archive.write([book(number, "A", token=number) for number in range(1, 60)])
    report = await replay(archive, store, limit=20)
    assert (report.total, report.pages) == (20, 20)
    assert sorted(await stored(store), key=int) == [str(number) for number in range(1, 21)]
