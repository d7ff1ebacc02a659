"""Between pages and the stores: order, batches, pushing back, and what happens when a store fails."""

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
from shoal.processes.writer import BATCH_BYTES, FOUND_PER_PUT, LINK_BYTES, Writer, rule_of
from shoal.settings import Settings
from shoal.store.base import FetchRow, ItemRow, ItemRule
from shoal.testing.archive_contract import everything, raw_page
from shoal.testing.fakes import MemoryStore, Watched, task_for
from shoal.testing.model.memory_frontier import MemoryFrontier


class ShardRunner:
    """A writer with its two sides, and everything that was called."""

    def __init__(self, *, pages: int = 4, seconds: float = 30.0, archive: Archive | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.said: list[str] = []
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

    def verbs(self) -> list[str]:
        return [name for name, _ in self.calls]


def finished(lease: Lease, **done: Any) -> Finished:
    url, key = lease.task.url, lease.task.key
    item = ItemRow(spider="s", key=url, crawl="c", url=url, data=b"{}", token=lease.token, at=1.0)
    row = FetchRow(crawl="c", key=key, url=url, outcome="ok", token=lease.token, attempt=1, at=1.0)
    return Finished(Done(lease=lease, **done), [item], row)


async def soon(check: Any, seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 -- what is awaited has no event
            await asyncio.sleep(0.005)


async def test_the_store_is_written_before_anything_is_settled() -> None:
    runner = ShardRunner()
    writing = asyncio.create_task(runner.writer.run())
    for lease in await runner.leases(4):
        await runner.writer.add(finished(lease))
    runner.writer.close()
    await writing
    assert runner.verbs() == ["write", "settle"]
    assert len(runner.store.rows) == len(runner.store.log) == 4
    assert (await runner.memory.progress("c")).done == 4
    [(results, report)] = runner.settled
    assert (len(results), report.stale) == (4, [])


async def test_a_batch_is_written_as_soon_as_it_is_full() -> None:
    runner = ShardRunner(pages=2, seconds=30.0)
    leases = await runner.leases(3)
    writing = asyncio.create_task(runner.writer.run())
    await runner.writer.add(finished(leases[0]))
    await asyncio.sleep(0.03)
    assert runner.calls == []
    await runner.writer.add(finished(leases[1]))
    await soon(lambda: runner.settled)
    await runner.writer.add(finished(leases[2]))
    await asyncio.sleep(0.03)
    assert len(runner.settled) == 1
    runner.writer.close()
    await writing
    assert len(runner.settled) == 2


async def test_a_lone_page_waits_no_longer_than_the_flush_time() -> None:
    runner = ShardRunner(pages=100, seconds=0.05)
    [lease] = await runner.leases(1)
    writing = asyncio.create_task(runner.writer.run())
    await runner.writer.add(finished(lease))
    await soon(lambda: runner.settled, 1.0)
    runner.writer.close()
    await writing


async def test_hurry_ends_the_wait_for_more_pages() -> None:
    runner = ShardRunner(pages=100, seconds=30.0)
    [lease] = await runner.leases(1)
    writing = asyncio.create_task(runner.writer.run())
    runner.writer.hurry()
    await runner.writer.add(finished(lease))
    runner.writer.hurry()
    await soon(lambda: runner.settled, 1.0)
    runner.writer.close()
    await writing


async def test_a_slow_store_pushes_back() -> None:
    runner = ShardRunner(pages=2)
    gate = asyncio.Event()
    runner.watched_store.meddle = lambda name, *_: gate.wait() if name == "write" else None
    leases = await runner.leases(10)
    writing = asyncio.create_task(runner.writer.run())

    async def add_all() -> None:
        for lease in leases:
            await runner.writer.add(finished(lease))

    adding = asyncio.create_task(add_all())
    await asyncio.sleep(0.05)
    assert not adding.done()
    # One batch in the store's hands, twice a batch in the buffer, and not one page more.
    assert runner.writer.backlog == 4
    assert not runner.writer.has_room
    gate.set()
    await adding
    runner.writer.close()
    await writing
    assert (await runner.memory.progress("c")).done == 10


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ServerUnreachable("no server")])
@pytest.mark.parametrize("verb", ["write", "settle"])
async def test_a_side_that_fails_for_a_moment_is_waited_for(verb: str, error: Exception) -> None:
    runner = ShardRunner()
    failures = [error, error]

    def meddle(name: str, *_: Any) -> None:
        if name == verb and failures:
            raise failures.pop()

    runner.watched_store.meddle = runner.frontier.meddle = meddle
    [lease] = await runner.leases(1)
    await runner.writer.add(finished(lease))
    runner.writer.close()
    await runner.writer.run()
    assert runner.said == [f"{error}; waiting"]
    assert runner.verbs().count(verb) == 3
    assert runner.verbs()[-1] == "settle"
    assert (await runner.memory.progress("c")).done == 1


async def test_a_store_that_keeps_failing_ends_the_writer_and_nothing_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.processes.patience.STORAGE_PATIENCE_SECONDS", 0.2)
    runner = ShardRunner(pages=1)

    def meddle(name: str, *_: Any) -> None:
        raise StorageError("the disk is full")

    runner.watched_store.meddle = meddle
    leases = await runner.leases(9)
    writing = asyncio.create_task(runner.writer.run())

    async def add_all() -> None:
        for lease in leases:
            await runner.writer.add(finished(lease))

    adding = asyncio.create_task(add_all())
    with pytest.raises(StorageError, match="the disk is full"):
        await writing
    # Whoever waited for room is not left waiting.
    async with asyncio.timeout(1):
        await adding
    assert "settle" not in runner.verbs()
    assert (await runner.memory.progress("c")).leased == 9
    assert runner.settled == []


async def test_a_long_list_of_links_ends_with_its_page_in_one_step() -> None:
    runner = ShardRunner()
    [lease] = await runner.leases(1)
    found = [task_for(f"https://b.test/{number}") for number in range(2 * FOUND_PER_PUT + 7)]
    await runner.writer.add(finished(lease, found=found))
    runner.writer.close()
    await runner.writer.run()
    # Links that were put ahead could be lost with a server's last second, and their page be settled after that.
    assert runner.verbs() == ["write", "settle"]
    assert (await runner.memory.progress("c")).known == len(found) + 1


async def test_a_result_the_frontier_cannot_take_ends_as_a_failed_attempt() -> None:
    runner = ShardRunner()
    good, bad = await runner.leases(2)
    broken = task_for("https://b.test/", meta={"a": object()})
    await runner.writer.add(finished(bad, found=[broken]))
    await runner.writer.add(finished(good))
    runner.writer.close()
    await runner.writer.run()
    progress = await runner.memory.progress("c")
    assert (progress.done, progress.delayed, progress.leased, progress.retried) == (1, 1, 0, 1)
    status = await runner.memory.look_up("c", bad.task.key)
    assert status.reason.startswith("unsettled: ")
    assert [isinstance(result, Done) for results, _ in runner.settled for result in results] == [True, False]


async def test_a_lost_lease_is_reported_and_changes_nothing() -> None:
    runner = ShardRunner()
    [lease] = await runner.leases(1)
    await runner.memory.evict("w")
    await runner.writer.add(finished(lease, found=[task_for("https://b.test/")]))
    runner.writer.close()
    await runner.writer.run()
    [(_, report)] = runner.settled
    assert report.stale == [lease]
    assert (await runner.memory.progress("c")).known == 1


async def archive_in(folder: Path) -> Archive:
    return await open_archive(str(folder / "pages"), create=True)


def with_page(lease: Lease, body: bytes = b"<p>raw</p>") -> Finished:
    page = raw_page(body, crawl="c", url=lease.task.url, key=lease.task.key, token=lease.token)
    return msgspec.structs.replace(finished(lease), page=page)


async def test_raw_pages_are_kept_before_anything_is_stored_or_settled(tmp_path: Path) -> None:
    archive = await archive_in(tmp_path)
    runner = ShardRunner(archive=archive)
    first, second, third = await runner.leases(3)
    for one in (with_page(first), finished(second), with_page(third)):
        await runner.writer.add(one)
    runner.writer.close()
    await runner.writer.run()
    assert [argument[0].__class__.__name__ for _, argument in runner.calls] == ["RawPage", "ItemRow", "Done"]
    assert {capture.url for capture in await everything(archive, "c")} == {first.task.url, third.task.url}
    rows = {row.url: row.archived for row in runner.store.log.values()}
    assert rows[second.task.url] == ""
    assert rows[first.task.url] == rows[third.task.url]
    assert len(await archive.captures(rows[first.task.url])) == 2


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ServerUnreachable("no server")])
async def test_an_archive_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, error: Exception) -> None:
    archive = await archive_in(tmp_path)
    runner = ShardRunner(archive=archive)
    failures = [error, error]

    def meddle(name: str, *_: Any) -> None:
        if failures:
            raise failures.pop()

    runner.archive.meddle = meddle
    [lease] = await runner.leases(1)
    await runner.writer.add(with_page(lease))
    runner.writer.close()
    await runner.writer.run()
    assert runner.said == [f"{error}; waiting"]
    assert runner.verbs() == ["write", "write", "write", "write", "settle"]
    assert len(await everything(archive, "c")) == 1


async def test_long_items_and_many_links_push_back_by_their_bytes() -> None:
    runner = ShardRunner(pages=100)
    for number, lease in enumerate(await runner.leases(4)):
        page = finished(lease, found=[lease.task] * (BATCH_BYTES // 2 // LINK_BYTES + 1))
        if number % 2:
            large = b'{"a":"%b"}' % (b"x" * (BATCH_BYTES // 2))
            page = msgspec.structs.replace(finished(lease), items=[msgspec.structs.replace(page.items[0], data=large)])
        assert runner.writer.has_room
        await runner.writer.add(page)
    # Long before there are a hundred pages.
    assert not runner.writer.has_room


async def test_large_pages_push_back_by_their_bytes(tmp_path: Path) -> None:
    runner = ShardRunner(pages=100, archive=await archive_in(tmp_path))
    gate = asyncio.Event()
    runner.archive.meddle = lambda *_: gate.wait()
    leases = await runner.leases(12)
    body = bytes(BATCH_BYTES // 2)
    writing = asyncio.create_task(runner.writer.run())

    async def add_all() -> None:
        for lease in leases:
            await runner.writer.add(with_page(lease, body))

    adding = asyncio.create_task(add_all())
    await asyncio.sleep(0.05)
    # One batch on its way to the archive, two in the buffer: long before there are a hundred pages.
    assert not adding.done()
    assert (runner.writer.backlog, runner.verbs()) == (4, ["write"])
    assert not runner.writer.has_room
    gate.set()
    await adding
    runner.writer.close()
    await writing
    assert (await runner.memory.progress("c")).done == 12


async def test_a_page_with_an_item_that_no_store_takes_is_a_dead_letter_and_loses_nothing_else() -> None:
    runner = ShardRunner()
    good, bad = await runner.leases(2)
    found = [task_for(f"https://b.test/{number}") for number in range(FOUND_PER_PUT + 7)]
    page = finished(bad, found=found)
    items = [*page.items, msgspec.structs.replace(page.items[0], key="nul", data=b'{"a":"\\u0000"}')]
    await runner.writer.add(msgspec.structs.replace(page, items=items))
    await runner.writer.add(finished(good))
    runner.writer.close()
    await runner.writer.run()
    progress = await runner.memory.progress("c")
    assert (progress.done, progress.dead, progress.retried) == (1, 1, 0)
    assert progress.queued == len(found)
    assert {key for _, key in runner.store.rows} == {good.task.url, bad.task.url}
    status = await runner.memory.look_up("c", bad.task.key)
    assert status.reason == "unstorable: item 'nul': a NUL character in its data"
    assert runner.store.outcomes() == {good.task.url: "ok", bad.task.url: "unstorable"}
    # The links are safe before the page that found them is given up.
    assert runner.verbs() == ["write", "put", "put", "write", "settle"]


async def test_a_page_whose_handler_gave_an_unstorable_item_ends_the_same_way() -> None:
    runner = ShardRunner()
    [lease] = await runner.leases(1)
    page = finished(lease, found=[task_for("https://b.test/")])
    await runner.writer.add(msgspec.structs.replace(page, unstorable="unstorable: item 'k': not finite"))
    runner.writer.close()
    await runner.writer.run()
    progress = await runner.memory.progress("c")
    assert (progress.dead, progress.queued, len(runner.store.rows)) == (1, 1, 1)
    assert (await runner.memory.look_up("c", lease.task.key)).reason == "unstorable: item 'k': not finite"


async def test_items_are_written_by_the_rule_of_the_settings() -> None:
    runner = ShardRunner()
    for number, lease in enumerate(await runner.leases(2)):
        page = finished(lease)
        row = msgspec.structs.replace(page.items[0], key="one", data=msgspec.json.encode({str(number): number}))
        await runner.writer.add(msgspec.structs.replace(page, items=[row]))
    runner.writer.close()
    await runner.writer.run()
    assert [msgspec.json.decode(row.data) for row in runner.store.rows.values()] == [{"0": 0, "1": 1}]
    settings = Settings(freshness="1h", keep_versions=True)
    assert rule_of(settings) == ItemRule(merge="replace", freshness=3600.0, keep_versions=True)


def test_a_long_key_is_shown_shortened_and_printable() -> None:
    reason = unstorable_item("k\ud800" * KEY_SHOWN, "it is long")
    assert len(reason) < 500
    assert reason.endswith("…': it is long")
    reason.encode()
