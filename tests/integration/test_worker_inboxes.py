"""What one worker process does for the inboxes of its spiders: who begins a crawl, and what is noted of it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.cli.process.worker_inboxes import WorkerInboxes
from shoal.cli.process.worker_process import WorkerJob
from shoal.crawl.beginning import RunOf, begin_run
from shoal.crawl.code import NO_CODE
from shoal.crawl.folder_inbox import FolderInbox
from shoal.crawl.inbox import Listener
from shoal.crawl.inbox_readers import KEPT_SECONDS, READ_SECONDS, ReaderNotes, read_now, read_readers
from shoal.crawl.opening import Places, shared_results
from shoal.crawl.record import record_of
from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.run.intakes import intake_of
from shoal.settings.table import Settings
from shoal.spider.spider import Spider
from shoal.testing.clock import FakeClock

INCOMING = os.path.abspath("incoming")


class Books(Spider):
    def parse(self, page: object) -> None:
        """Nothing."""


@pytest.fixture
async def frontier(tmp_path: Path) -> AsyncIterator[Frontier]:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    yield frontier
    await frontier.close()


async def test_entries_go_to_a_crawl_that_began_since_the_last_look_and_leave_it_as_it_is(
    frontier: Frontier, tmp_path: Path
) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("https://a.test/1\n")
    inbox = FolderInbox(tmp_path, clock=lambda: time.time() + 60)
    listener = Listener(inbox, frontier=frontier, intake_of=intake_of, say=print)
    places = Places(frontier=str(tmp_path / "shoal.db"), store=str(tmp_path / "shoal.db"))
    said: list[str] = []
    # `shoal run books.py` of somebody else: it ends when its start is done.
    run = RunOf("books.py", places)
    await begin_run(frontier, Books(), settings=Settings(), run=run)
    async with shared_results() as results:
        job = WorkerJob(reference="books.py", places=places)
        worker = WorkerInboxes(
            job, spiders={"books": Books}, code=NO_CODE, frontier=frontier, results=results, say=said.append
        )
        assert await worker.begin([], listener) == 1
    (crawl,) = await frontier.crawls()
    assert (crawl.id, (await frontier.progress("books-1")).queued) == ("books-1", 1)
    assert not record_of(crawl).stays
    assert said == []
    assert list(await read_readers(frontier)) == ["books"]
    await inbox.close()


async def test_entries_are_left_to_a_crawl_of_another_file_with_a_spider_of_this_name(
    frontier: Frontier, tmp_path: Path
) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("https://a.test/1\n")
    inbox, theirs = (FolderInbox(tmp_path, clock=lambda: time.time() + 60) for _ in range(2))
    places = Places(frontier=str(tmp_path / "shoal.db"), store=str(tmp_path / "shoal.db"))
    crawl, _ = await begin_run(frontier, Books(), settings=Settings(), run=RunOf("shop.py", places, stays=True))
    async with shared_results() as results:
        worker = WorkerInboxes(
            WorkerJob(reference="books.py", places=places),
            spiders={"books": Books}, code=NO_CODE, frontier=frontier, results=results, say=pytest.fail,
        )  # fmt: skip
        assert await worker.begin([crawl], Listener(inbox, frontier=frontier, intake_of=intake_of, say=print)) == 0
    assert await Listener(theirs, frontier=frontier, intake_of=intake_of, say=print).take_in([crawl]) == 1
    await theirs.close()


async def test_processes_that_read_the_same_inboxes_share_a_note(frontier: Frontier) -> None:
    clock = FakeClock()
    first, second = ReaderNotes(frontier, clock=clock), ReaderNotes(frontier, clock=clock)
    await first.renew({"books": "", "shop": "incoming"})
    began = clock()
    clock.advance(READ_SECONDS / 4)
    await second.renew({"books": ""})
    readers = await read_readers(frontier)
    assert {name: (reader.noted, reader.folder) for name, reader in readers.items()} == {
        "books": (began, ""),
        "shop": (began, INCOMING),
    }
    assert read_now(readers, now=clock()) == ["books", "shop"]
    clock.advance(READ_SECONDS)
    await second.renew({"books": ""})
    assert read_now(await read_readers(frontier), now=clock()) == ["books"]
    # A folder elsewhere is still known for a while.
    assert (await read_readers(frontier))["shop"].folder == INCOMING
    clock.advance(KEPT_SECONDS)
    await second.renew({"books": ""})
    assert list(await read_readers(frontier)) == ["books"]
