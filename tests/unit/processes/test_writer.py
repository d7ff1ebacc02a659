"""The writer: order, batches, a full buffer, and stores that fail."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.errors import ServerUnreachable, StorageError
from shoal.journey.results import KEY_SHOWN, Finished, unstorable_item
from shoal.model import Crawl, Done, Lease, Result, SettleReport
from shoal.settings.table import Settings
from shoal.store.base import FetchRow, ItemRow, ItemRule
from shoal.testing.archive_contract import everything, raw_page
from shoal.testing.fakes import Watched, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.memory_store import MemoryStore
from shoal.testing.waiting import SECONDS, eventually, loop_turns
from shoal.worker.writer import BATCH_BYTES, FOUND_PER_PUT, LINK_BYTES, Writer, rule_of


class Bench:
    """A writer between a store and a frontier in memory, and everything that was called on them."""

    def __init__(self, *, pages: int = 4, seconds: float = 30.0, archive: Archive | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.said: list[str] = []
        self.added = 0
        self.settled: list[tuple[list[Result], SettleReport]] = []
        self.memory = MemoryFrontier(clock=time.time)
        self.store = MemoryStore()
        self.watched_store: Any = Watched(self.store, self.calls)
        self.frontier: Any = Watched(self.memory, self.calls)
        self.archive: Any = None if archive is None else Watched(archive, self.calls)
        self.writer = Writer(
            store=self.watched_store,
            frontier=self.frontier,
            pages=pages,
            seconds=seconds,
            settled=lambda results, report: self.settled.append((results, report)),
            say=self.said.append,
            archive=self.archive,
            rule=ItemRule(merge="fill"),
        )

    async def leases(self, count: int) -> list[Lease]:
        await self.memory.open_crawl(Crawl(id="c", spider="s", interval=0.0, cap=1000))
        await self.memory.put("c", [task_for(f"https://a.test/{number}") for number in range(count)])
        batch = await self.memory.lease(["c"], count, worker="w", seconds=60, horizon=0)
        return batch.leases

    async def add_all(self, pages: list[Finished]) -> None:
        """Add one page after the other; `added` counts those that the writer has taken."""
        for page in pages:
            await self.writer.add(page)
            self.added += 1

    def verbs(self) -> list[str]:
        return [name for name, _ in self.calls]


def finished(lease: Lease, **done: Any) -> Finished:
    url, key = lease.task.url, lease.task.key
    item = ItemRow(spider="s", key=url, crawl="c", url=url, data=b"{}", token=lease.token, at=1.0)
    row = FetchRow(crawl="c", key=key, url=url, outcome="ok", token=lease.token, attempt=1, at=1.0)
    return Finished(Done(lease=lease, **done), [item], row)


async def test_the_store_is_written_before_anything_is_settled() -> None:
    bench = Bench()
    writing = asyncio.create_task(bench.writer.run())
    for lease in await bench.leases(4):
        await bench.writer.add(finished(lease))
    bench.writer.close()
    await writing
    assert bench.verbs() == ["write", "settle"]
    assert len(bench.store.rows) == len(bench.store.log) == 4
    assert (await bench.memory.progress("c")).done == 4
    [(results, report)] = bench.settled
    assert (len(results), report.stale) == (4, [])


async def test_a_batch_is_written_as_soon_as_it_is_full() -> None:
    bench = Bench(pages=2, seconds=3600.0)
    leases = await bench.leases(3)
    writing = asyncio.create_task(bench.writer.run())
    await bench.writer.add(finished(leases[0]))
    await loop_turns()
    assert bench.calls == []
    await bench.writer.add(finished(leases[1]))
    await eventually(lambda: bench.settled)
    await bench.writer.add(finished(leases[2]))
    await loop_turns()
    assert len(bench.settled) == 1
    bench.writer.close()
    await writing
    assert len(bench.settled) == 2


async def test_a_lone_page_waits_no_longer_than_the_flush_time() -> None:
    bench = Bench(pages=100, seconds=0.05)
    [lease] = await bench.leases(1)
    writing = asyncio.create_task(bench.writer.run())
    await bench.writer.add(finished(lease))
    await eventually(lambda: bench.settled)
    bench.writer.close()
    await writing


async def test_flush_ends_the_wait_for_more_pages() -> None:
    bench = Bench(pages=100, seconds=3600.0)
    [lease] = await bench.leases(1)
    writing = asyncio.create_task(bench.writer.run())
    bench.writer.flush()
    await bench.writer.add(finished(lease))
    bench.writer.flush()
    await eventually(lambda: bench.settled)
    bench.writer.close()
    await writing


async def test_a_slow_store_pushes_back() -> None:
    bench = Bench(pages=2)
    gate = asyncio.Event()
    bench.watched_store.meddle = lambda name, *_: gate.wait() if name == "write" else None
    leases = await bench.leases(10)
    writing = asyncio.create_task(bench.writer.run())
    adding = asyncio.create_task(bench.add_all([finished(lease) for lease in leases]))
    await eventually(lambda: bench.calls and not bench.writer.has_room)
    await loop_turns()
    # Two batches of two at the store, two in the buffer, and not one page more.
    assert bench.added == 8
    assert not adding.done()
    gate.set()
    await adding
    bench.writer.close()
    await writing
    assert (await bench.memory.progress("c")).done == 10


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ServerUnreachable("no server")])
@pytest.mark.parametrize("verb", ["write", "settle"])
async def test_a_side_that_fails_for_a_moment_is_waited_for(verb: str, error: Exception) -> None:
    bench = Bench()
    failures = [error, error]

    def meddle(name: str, *_: Any) -> None:
        if name == verb and failures:
            raise failures.pop()

    bench.watched_store.meddle = bench.frontier.meddle = meddle
    [lease] = await bench.leases(1)
    await bench.writer.add(finished(lease))
    bench.writer.close()
    await bench.writer.run()
    assert bench.said == [f"{error}; waiting"]
    assert bench.verbs().count(verb) == 3
    assert bench.verbs()[-1] == "settle"
    assert (await bench.memory.progress("c")).done == 1


async def test_a_store_that_keeps_failing_ends_the_writer_and_nothing_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.worker.outages.STORAGE_PATIENCE_SECONDS", 0.2)
    bench = Bench(pages=1)

    def meddle(name: str, *_: Any) -> None:
        raise StorageError("the disk is full")

    bench.watched_store.meddle = meddle
    leases = await bench.leases(9)
    writing = asyncio.create_task(bench.writer.run())
    adding = asyncio.create_task(bench.add_all([finished(lease) for lease in leases]))
    with pytest.raises(StorageError, match="the disk is full"):
        await writing
    # A page that waited for room is not left waiting.
    async with asyncio.timeout(SECONDS):
        await adding
    assert "settle" not in bench.verbs()
    assert (await bench.memory.progress("c")).leased == 9
    assert bench.settled == []


async def test_a_long_list_of_links_ends_with_its_page_in_one_step() -> None:
    bench = Bench()
    [lease] = await bench.leases(1)
    found = [task_for(f"https://b.test/{number}") for number in range(2 * FOUND_PER_PUT + 7)]
    await bench.writer.add(finished(lease, found=found))
    bench.writer.close()
    await bench.writer.run()
    # Links that were put ahead could be lost with a server's last second, and their page be settled after that.
    assert bench.verbs() == ["write", "settle"]
    assert (await bench.memory.progress("c")).known == len(found) + 1


async def test_a_result_the_frontier_cannot_take_ends_as_a_failed_attempt() -> None:
    bench = Bench()
    good, bad = await bench.leases(2)
    broken = task_for("https://b.test/", meta={"a": object()})
    await bench.writer.add(finished(bad, found=[broken]))
    await bench.writer.add(finished(good))
    bench.writer.close()
    await bench.writer.run()
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.delayed, progress.leased, progress.retried) == (1, 1, 0, 1)
    status = await bench.memory.look_up("c", bad.task.key)
    assert status.reason.startswith("unsettled: ")
    assert [isinstance(result, Done) for results, _ in bench.settled for result in results] == [True, False]


async def test_a_lost_lease_is_reported_and_changes_nothing() -> None:
    bench = Bench()
    [lease] = await bench.leases(1)
    await bench.memory.evict("w")
    await bench.writer.add(finished(lease, found=[task_for("https://b.test/")]))
    bench.writer.close()
    await bench.writer.run()
    [(_, report)] = bench.settled
    assert report.stale == [lease]
    assert (await bench.memory.progress("c")).known == 1


async def archive_in(folder: Path) -> Archive:
    return await open_archive(str(folder / "pages"), create=True)


def with_page(lease: Lease, body: bytes = b"<p>raw</p>") -> Finished:
    page = raw_page(body, crawl="c", url=lease.task.url, key=lease.task.key, token=lease.token)
    return msgspec.structs.replace(finished(lease), page=page)


async def test_raw_pages_are_kept_before_anything_is_stored_or_settled(tmp_path: Path) -> None:
    archive = await archive_in(tmp_path)
    bench = Bench(archive=archive)
    first, second, third = await bench.leases(3)
    for one in (with_page(first), finished(second), with_page(third)):
        await bench.writer.add(one)
    bench.writer.close()
    await bench.writer.run()
    assert [argument[0].__class__.__name__ for _, argument in bench.calls] == ["RawPage", "ItemRow", "Done"]
    assert {capture.url for capture in await everything(archive, "c")} == {first.task.url, third.task.url}
    rows = {row.url: row.archived for row in bench.store.log.values()}
    assert rows[second.task.url] == ""
    assert rows[first.task.url] == rows[third.task.url]
    assert len(await archive.captures(rows[first.task.url])) == 2


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ServerUnreachable("no server")])
async def test_an_archive_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, error: Exception) -> None:
    archive = await archive_in(tmp_path)
    bench = Bench(archive=archive)
    failures = [error, error]

    def meddle(name: str, *_: Any) -> None:
        if failures:
            raise failures.pop()

    bench.archive.meddle = meddle
    [lease] = await bench.leases(1)
    await bench.writer.add(with_page(lease))
    bench.writer.close()
    await bench.writer.run()
    assert bench.said == [f"{error}; waiting"]
    assert bench.verbs() == ["write", "write", "write", "write", "settle"]
    assert len(await everything(archive, "c")) == 1


async def test_long_items_and_many_links_push_back_by_their_bytes() -> None:
    bench = Bench(pages=100)
    for number, lease in enumerate(await bench.leases(4)):
        page = finished(lease, found=[lease.task] * (BATCH_BYTES // 2 // LINK_BYTES + 1))
        if number % 2:
            large = b'{"a":"%b"}' % (b"x" * (BATCH_BYTES // 2))
            page = msgspec.structs.replace(finished(lease), items=[msgspec.structs.replace(page.items[0], data=large)])
        assert bench.writer.has_room
        await bench.writer.add(page)
    # Long before there are a hundred pages.
    assert not bench.writer.has_room


async def test_large_pages_push_back_by_their_bytes(tmp_path: Path) -> None:
    bench = Bench(pages=100, archive=await archive_in(tmp_path))
    gate = asyncio.Event()
    bench.archive.meddle = lambda *_: gate.wait()
    leases = await bench.leases(12)
    body = bytes(BATCH_BYTES // 2)
    writing = asyncio.create_task(bench.writer.run())
    adding = asyncio.create_task(bench.add_all([with_page(lease, body) for lease in leases]))
    await eventually(lambda: bench.calls and not bench.writer.has_room)
    await loop_turns()
    # Two batches on their way to the archive, two in the buffer: long before there are a hundred pages.
    assert (bench.added, bench.verbs()) == (8, ["write"])
    assert not adding.done()
    gate.set()
    await adding
    bench.writer.close()
    await writing
    assert (await bench.memory.progress("c")).done == 12


async def test_a_page_with_an_item_that_no_store_takes_is_a_dead_letter_and_loses_nothing_else() -> None:
    bench = Bench()
    good, bad = await bench.leases(2)
    found = [task_for(f"https://b.test/{number}") for number in range(FOUND_PER_PUT + 7)]
    page = finished(bad, found=found, notes={"items": 2, "keyless": 1})
    items = [*page.items, msgspec.structs.replace(page.items[0], key="nul", data=b'{"a":"\\u0000"}')]
    await bench.writer.add(msgspec.structs.replace(page, items=items))
    await bench.writer.add(finished(good))
    bench.writer.close()
    await bench.writer.run()
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.dead, progress.retried) == (1, 1, 0)
    assert progress.queued == len(found)
    assert {key for _, key in bench.store.rows} == {good.task.url, bad.task.url}
    status = await bench.memory.look_up("c", bad.task.key)
    assert status.reason == "unstorable: item 'nul': a NUL character in its data"
    assert bench.store.outcomes() == {good.task.url: "ok", bad.task.url: "unstorable"}
    # The item that was refused is not among those that the page yielded.
    assert progress.notes == {"items": 1, "keyless": 1}
    # The links are safe before the page that found them is given up.
    assert bench.verbs() == ["write", "put", "put", "write", "settle"]


async def test_a_page_whose_handler_gave_an_unstorable_item_ends_the_same_way() -> None:
    bench = Bench()
    [lease] = await bench.leases(1)
    page = finished(lease, found=[task_for("https://b.test/")])
    await bench.writer.add(msgspec.structs.replace(page, unstorable="unstorable: item 'k': not finite"))
    bench.writer.close()
    await bench.writer.run()
    progress = await bench.memory.progress("c")
    assert (progress.dead, progress.queued, len(bench.store.rows)) == (1, 1, 1)
    assert (await bench.memory.look_up("c", lease.task.key)).reason == "unstorable: item 'k': not finite"


async def test_items_are_written_by_the_rule_of_the_settings() -> None:
    bench = Bench()
    for number, lease in enumerate(await bench.leases(2)):
        page = finished(lease)
        row = msgspec.structs.replace(page.items[0], key="one", data=msgspec.json.encode({str(number): number}))
        await bench.writer.add(msgspec.structs.replace(page, items=[row]))
    bench.writer.close()
    await bench.writer.run()
    assert [msgspec.json.decode(row.data) for row in bench.store.rows.values()] == [{"0": 0, "1": 1}]
    settings = Settings(freshness="1h", keep_versions=True)
    assert rule_of(settings) == ItemRule(merge="replace", freshness=3600.0, keep_versions=True)


def test_a_long_key_is_shown_shortened_and_printable() -> None:
    reason = unstorable_item("k\ud800" * KEY_SHOWN, "it is long")
    assert len(reason) < 500
    assert reason.endswith("…': it is long")
    reason.encode()


async def test_a_start_url_whose_item_no_store_takes_has_failed() -> None:
    bench = Bench()
    (lease,) = await bench.leases(1)
    result = Done(lease=lease, notes={"start ok": 1})
    await bench.writer.add(Finished(result, unstorable="unstorable: item 'k': not finite"))
    bench.writer.close()
    await bench.writer.run()
    assert (await bench.memory.progress("c")).notes == {"start failed unstorable": 1}
