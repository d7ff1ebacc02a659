"""The promises of every archive, one test each. Subclass `ArchiveContract` and give it two fixtures.

python -m shoal.testing.archive_contract URL    writes pages until it is killed, and prints the name of each batch
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from shoal.archive import open_archive
from shoal.archive.base import Archive, Capture, RawPage, packed, task_of
from shoal.errors import StorageError, UsageError

LARGE = 8_000_000
Reopen = Callable[[], Awaitable[Archive]]
ODD_BODIES = {
    "empty": b"",
    "NUL": b"\x00" * 5000 + b"\n\r\x00",
    "not text": bytes(range(256)) * 40,
    "already compressed, 10 MB": random.Random(1).randbytes(10_000_000),
    "easy to compress, 10 MB": b"<p>shoal</p>" * 833_334,
}
ODD_URLS = (
    "https://a.test/%00?q=%2F..%2F#x",
    "https://a.test/" + "long/" * 2000,
    "https://xn--bcher-kva.test/ü/\u2028/\U0001f41f",
    'https://a.test/"quoted"\\back\n\t',
)
ODD_HEADERS = {"set-cookie": 'a="b"; Path=/', "x-odd": "\x00\x01 \u2028 ü \n second line", "": "no name"}


def raw_page(body: bytes = b"<p>a page</p>", **changes: Any) -> RawPage:
    """A page with its capture; `changes` are fields of the capture."""
    url = changes.get("url", "https://a.test/")
    fields: dict[str, Any] = {
        "crawl": "books-1",
        "url": url,
        "final_url": url,
        "key": 1,
        "status": 200,
        "headers": {"content-type": "text/html"},
        "at": 1_700_000_000.25,
        "token": 7,
        "content_hash": hashlib.sha256(body).hexdigest(),
        "size": len(body),
    }
    return RawPage(Capture(**(fields | changes)), body)


async def everything(archive: Archive, crawl: str = "books-1") -> list[Capture]:
    """All captures of a crawl, by key."""
    found = [capture async for captures in archive.scan(crawl) for capture in captures]
    return sorted(found, key=lambda capture: (capture.key, capture.token))


class ArchiveContract:
    """The promises of `Archive`.

    A subclass has two fixtures: `reopen` opens one more handle on the same archive per call, `bodies` returns the names
    of its bodies."""

    @pytest.fixture
    async def archive(self, reopen: Reopen) -> Archive:
        return await reopen()

    @pytest.mark.parametrize("kind", ODD_BODIES)
    async def test_gives_back_the_bytes_that_were_written(self, archive: Archive, reopen: Reopen, kind: str) -> None:
        page = raw_page(ODD_BODIES[kind])
        [name] = await archive.write([page])
        for handle in (archive, await reopen()):
            assert await handle.body(page.capture.content_hash) == page.body
            assert await handle.captures(name) == [page.capture]

    async def test_a_crawl_goes_with_the_bodies_that_no_other_one_needs(
        self, archive: Archive, reopen: Reopen, bodies: Any
    ) -> None:
        own, shared = raw_page(b"its own", key=1), raw_page(b"shared", key=2)
        theirs = raw_page(b"shared", key=2, crawl="books-2", token=9)
        picture = b"\x89PNG"
        seen = raw_page(b"seen", key=3, screenshot=hashlib.sha256(picture).hexdigest())
        await archive.write([own, shared, theirs, RawPage(seen.capture, seen.body, picture)])
        told = await archive.delete_crawl("books-1", counts_only=True)
        assert (told.captures, told.bodies) == (3, 3)
        assert len(await everything(archive)) == 3
        other = await reopen()
        assert await other.delete_crawl("books-1") == told
        assert await everything(archive) == []
        assert await archive.crawls() == ["books-2"]
        assert await everything(await reopen(), "books-2") == [theirs.capture]
        assert await archive.body(theirs.capture.content_hash) == b"shared"
        assert [name for name in await bodies() if theirs.capture.content_hash in name] == await bodies()
        assert (await archive.delete_crawl("books-1")).captures == 0
        # The crawl may resume.
        await other.write([own])
        assert await other.body(own.capture.content_hash) == b"its own"

    async def test_refuses_to_remove_bodies_while_another_crawl_keeps_pages(self, archive: Archive) -> None:
        await archive.write([raw_page(b"old")])
        await archive.write([raw_page(b"new", crawl="books-2", at=time.time() - 60.0)])
        with pytest.raises(UsageError, match="books-2 has kept pages there within the last hour"):
            await archive.delete_crawl("books-1")
        assert await archive.body(hashlib.sha256(b"old").hexdigest()) == b"old"
        assert len(await everything(archive)) == 1
        # No refusal: all bodies of the other crawl stay.
        await archive.write([raw_page(b"old", crawl="books-2", at=time.time() - 60.0, token=8)])
        assert (await archive.delete_crawl("books-1")).bodies == 0
        assert await archive.body(hashlib.sha256(b"old").hexdigest()) == b"old"

    async def test_keeps_the_picture_of_a_rendered_page(self, archive: Archive) -> None:
        picture = b"\x89PNG and so on"
        page = raw_page(screenshot=hashlib.sha256(picture).hexdigest())
        [name] = await archive.write([RawPage(page.capture, page.body, picture)])
        [kept] = await archive.captures(name)
        assert await archive.body(kept.screenshot) == picture

    async def test_gives_back_odd_urls_and_headers(self, archive: Archive) -> None:
        pages = [raw_page(url=url, key=number, headers=ODD_HEADERS) for number, url in enumerate(ODD_URLS)]
        await archive.write(pages)
        assert await everything(archive) == [page.capture for page in pages]

    async def test_half_a_surrogate_pair_keeps_no_page_out(self, archive: Archive) -> None:
        pages = [raw_page(key=1, headers={"x": "\ud800"}), raw_page(key=2)]
        await archive.write(pages)
        assert [capture.headers for capture in await everything(archive)] == [
            {"x": "\\ud800"},
            {"content-type": "text/html"},
        ]

    async def test_keeps_what_a_handler_needs_of_the_task(self, archive: Archive) -> None:
        metas = [None, {"page": 3, "of": ["a", None]}, {"bytes": b"\x00", "at": datetime(2026, 1, 1, tzinfo=UTC)}]
        pages = [
            raw_page(key=number, handler="book", depth=4, priority=-2, method="POST", **packed(meta))
            for number, meta in enumerate(metas)
        ]
        await archive.write(pages)
        tasks = [task_of(capture, lane="a.test") for capture in await everything(archive)]
        assert [task.meta for task in tasks] == metas
        assert {(task.handler, task.depth, task.priority, task.method) for task in tasks} == {("book", 4, -2, "POST")}

    async def test_equal_bodies_are_kept_once(self, archive: Archive, reopen: Reopen, bodies: Any) -> None:
        same = [raw_page(b"same", url=f"https://a.test/{number}", key=number) for number in range(5)]
        await archive.write(same[:3])
        await archive.write(same[3:4])
        await (await reopen()).write(same[4:])
        assert len(await bodies()) == 1
        assert [capture.url for capture in await everything(archive)] == [page.capture.url for page in same]

    async def test_writing_the_same_pages_again_changes_nothing(self, archive: Archive, reopen: Reopen) -> None:
        pages = [raw_page(b"body %d" % number, key=number) for number in range(20)]
        names = await archive.write(pages)
        assert await archive.write(pages) == names
        assert await (await reopen()).write(pages) == names
        assert await everything(archive) == [page.capture for page in pages]

    async def test_handles_that_write_at_once_do_not_disturb_each_other(self, reopen: Reopen, bodies: Any) -> None:
        handles = [await reopen() for _ in range(4)]
        batches = [
            [raw_page(b"body %d" % number, key=number, token=handle) for number in range(30)]
            for handle in range(len(handles))
        ]
        await asyncio.gather(*(handle.write(batch) for handle, batch in zip(handles, batches, strict=True)))
        assert len(await bodies()) == 30
        found = await everything(handles[0])
        assert len(found) == 120
        for capture in found:
            assert await handles[0].body(capture.content_hash) == b"body %d" % capture.key

    @pytest.mark.parametrize("name", ["crawl-127.0.0.1:8000-1", "a/b c%2F#ü*?\\-2", "..", "."])
    async def test_every_crawl_has_its_own_captures(self, archive: Archive, name: str) -> None:
        mine, other = raw_page(crawl=name), raw_page(crawl="books-1")
        first, second = await archive.write([mine, other])
        assert first != second
        assert await archive.captures(first) == [mine.capture] == await everything(archive, name)
        assert await everything(archive) == [other.capture]
        assert await archive.crawls() == sorted([name, "books-1"])

    async def test_an_empty_archive_has_nothing(self, archive: Archive) -> None:
        assert await archive.crawls() == []
        assert await everything(archive) == []
        assert await archive.write([]) == []

    async def test_what_is_missing_is_one_clear_line(self, archive: Archive) -> None:
        with pytest.raises(StorageError, match="is not in the archive"):
            await archive.body(hashlib.sha256(b"never written").hexdigest())
        with pytest.raises(StorageError, match="is not in the archive"):
            await archive.captures("captures/books-1/never.jsonl.zst")
        with pytest.raises(StorageError, match="is not in the archive"):
            await archive.read_log("log/week=2026-03-02/never.parquet")

    async def test_files_of_the_log_are_kept_beside_the_pages(self, archive: Archive, reopen: Reopen) -> None:
        name = "log/week=2026-03-02/0123456789abcdef.parquet"
        await archive.write([raw_page()])
        await archive.write_log(name, b"former content")
        octets = ODD_BODIES["already compressed, 10 MB"]
        await archive.write_log(name, octets)
        assert await (await reopen()).read_log(name) == octets
        assert await archive.crawls() == ["books-1"]
        await archive.delete_crawl("books-1")
        assert await archive.read_log(name) == octets

    @pytest.mark.parametrize("name", ["", "log", "captures/x/y", "log/../bodies/x", "/log/x", "log/week/"])
    async def test_a_file_of_the_log_goes_nowhere_else(self, archive: Archive, name: str) -> None:
        with pytest.raises(UsageError, match="no name for a file of the log"):
            await archive.write_log(name, b"x")
        with pytest.raises(UsageError, match="no name for a file of the log"):
            await archive.read_log(name)


async def write_for_ever(url: str) -> None:
    """Write pages until this process is killed. Its bodies differ from those of other processes."""
    archive, noise = await open_archive(url, create=True), random.Random(2).randbytes(LARGE)
    for first in count(step=2):
        pages = [raw_page(b"%d %d " % (os.getpid(), key) + noise, key=key) for key in range(first, first + 2)]
        names = await archive.write(pages)
        sys.stdout.write(names[0] + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write_for_ever(sys.argv[1]))
