"""The files store: what lies in its folder, torn tails, full disks, the index, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.errors import StorageError
from shoal.store import open_store
from shoal.store.base import ItemFilter, ItemRule, SinkPlace, Store
from shoal.store.files import segments as segments_module
from shoal.store.files.store import FilesStore
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.clock import FakeClock
from shoal.testing.contract.store.rows import everything, fetch, files_no_larger_than, item, kept

WRITER = """
import asyncio, sys
from pathlib import Path
from shoal.store.files.store import FilesStore
from shoal.store.base import SinkPlace
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.rows import fetch, item

async def main():
    store = await FilesStore.open(Path(sys.argv[1]), open_index=SqliteStore.open)
    for batch in range(100_000):
        rows = [item(f"{sys.argv[2]}/{batch}/{number}", token=batch + 1) for number in range(50)]
        await store.write(rows, [fetch(batch * 50 + number, crawl=sys.argv[2]) for number in range(50)])
        print(batch, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[FilesStore]:
    store = await open_files(folder)
    yield store
    await store.close()


async def open_files(folder: Path) -> FilesStore:
    return await FilesStore.open(folder, open_index=SqliteStore.open)


def named(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def lines_of(folder: Path, which: str) -> list[dict[str, object]]:
    files = named(folder, f"{which}-*.jsonl")
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


def killed_writers(folder: Path, names: list[str]) -> dict[str, int]:
    """Processes that write until they are killed; gives the last batch that each is known to have written."""
    writers = {
        name: subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name], stdout=subprocess.PIPE)
        for name in names
    }
    done: dict[str, int] = {}
    try:
        for name, writer in writers.items():
            assert writer.stdout is not None
            for line in writer.stdout:
                done[name] = int(line)
                if done[name] >= 20:
                    break
    finally:
        for writer in writers.values():
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    return done


async def keys_in(folder: Path) -> set[str]:
    store = await open_files(folder)
    keys = {stored.key for stored in await everything(store)}
    await store.close()
    return keys


async def test_every_written_row_is_a_line_that_any_tool_reads(store: Store, folder: Path) -> None:
    await store.write([item("a", data=b'{\n "v": 1}'), item("b\u2028")], [fetch(7, status=200)])
    await store.write([item("a", data={"v": 2}, token=2)], [])
    rows = lines_of(folder, "items")
    assert [(row["key"], row["data"], row["token"]) for row in rows] == [
        ("a", {"v": 1}, 1),
        ("b\u2028", {"title": "A"}, 1),
        ("a", {"v": 2}, 2),
    ]
    assert {"spider", "url", "crawl", "at"} < rows[0].keys()
    [line] = lines_of(folder, "fetches")
    assert (line["key"], line["status"], line["outcome"]) == (7, 200, "ok")


@pytest.mark.parametrize("cut", [1, 20, 400])
async def test_a_torn_tail_is_ignored_and_cut_off_by_the_next_writer(folder: Path, cut: int) -> None:
    first = await open_files(folder)
    await first.write([item("a"), item("b")], [fetch(1)])
    await first.write([item("c"), item("d")], [fetch(2)])
    await first.close()
    [path] = named(folder, "items-*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert await keys_in(folder) == {"a", "b"}
    second = await open_files(folder)
    await second.write([item("e")], [])
    await second.close()
    assert await keys_in(folder) == {"a", "b", "e"}
    assert [row["key"] for row in lines_of(folder, "items")] == ["a", "b", "e"]


async def test_a_full_disk_leaves_nothing_behind_and_the_same_write_succeeds_later(store: Store, folder: Path) -> None:
    await store.write([item("kept")], [fetch(1)])
    rows = [item(str(number), data={"text": "x" * 2000}) for number in range(400)]
    with files_no_larger_than(200_000), pytest.raises(StorageError, match="nothing that was saved is lost"):
        await store.write(rows, [fetch(2)])
    assert [row["key"] for row in lines_of(folder, "items")] == ["kept"]
    assert await store.fetches("c1", [1, 2]) == [fetch(1)]
    await store.write(rows, [fetch(2)])
    assert await store.count_items() == 401


async def test_a_full_segment_is_followed_by_a_new_one(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 2000)
    for token in range(1, 31):
        await store.write([item(data={"v": token}, token=token), item(str(token))], [fetch(token)])
    assert len(named(folder, "items-*.jsonl")) > 3
    assert await store.count_items() == 31
    assert len(await store.fetches("c1", range(40))) == 30


async def test_the_index_can_be_deleted_at_any_time(folder: Path) -> None:
    rule = ItemRule(keep_versions=True)
    first, second = await open_files(folder), await open_files(folder)
    for token in range(1, 9):
        store = first if token % 2 else second
        await store.write([item(data={"v": token}, token=token, at=float(token))], [fetch(token)], rule=rule)
        if token == 4:
            await first.delete_crawl("c1")
    before = await everything(first), await kept(first), await first.fetches("c1", range(9))
    await first.close()
    await second.close()
    for path in named(folder, "index.db*"):
        path.unlink()
    again = await open_files(folder)
    assert (await everything(again), await kept(again), await again.fetches("c1", range(9))) == before
    assert [version for _, version, _ in before[1]] == list(range(1, 9))
    assert [row.key for row in before[2]] == [5, 6, 7, 8]
    await again.close()


async def test_what_another_process_appends_is_folded_from_where_the_index_ended(store: Store, folder: Path) -> None:
    other = await open_files(folder)
    for number in range(5):
        await other.write([item(str(number))], [])
        assert await store.count_items() == number + 1
    await other.close()


async def test_files_of_the_log_that_nobody_appends_to_go_whole(folder: Path) -> None:
    first = await open_files(folder)
    await first.write([item("a")], [fetch(1, at=1.0)])
    await first.close()
    [log] = named(folder, "fetches-*.jsonl")
    os.utime(log, (1, 1))
    second = await open_files(folder)
    assert await second.tidy(retention=3600) >= 1
    assert named(folder, log.name) == []
    assert await second.fetches("c1", [1]) == []
    await second.write([item("b")], [fetch(2)])
    assert await second.fetches("c1", [1, 2]) == [fetch(2)]
    await second.close()
    assert await keys_in(folder) == {"a", "b"}


async def test_lines_and_file_names_tell_the_time_of_the_clock_given(folder: Path) -> None:
    clock = FakeClock(86_400.0)
    store = await FilesStore.open(folder, open_index=SqliteStore.open, clock=clock)
    await store.write([item("a")], [fetch(1, at=5.0)])
    clock.advance(60.0)
    await store.delete_crawl("c1")
    assert [path.name[:21] for path in named(folder, "items-*.jsonl")] == ["items-19700102T000000"]
    assert [line["written"] for line in lines_of(folder, "items")] == [86_400.0]
    assert [line["written"] for line in lines_of(folder, "fetches")] == [86_400.0, 86_460.0]
    await store.close()


async def test_lines_with_fields_of_a_later_version_are_read(store: Store, folder: Path) -> None:
    await store.write([item("a")], [])
    [path] = named(folder, "items-*.jsonl")
    later = path.read_bytes().replace(b'"spider":', b'"planet":"earth","spider":')
    path.write_bytes(later)
    assert b"planet" in later
    assert await store.count_items() == 1


async def test_an_index_of_a_newer_version_is_refused_and_one_that_is_gone_is_made_anew(folder: Path) -> None:
    first = await open_files(folder)
    await first.write([item("a")], [])
    assert await first.count_items() == 1
    await first.close()
    with sqlite3.connect(folder / "index.db") as db:
        db.execute("UPDATE shoal_schema SET version = 99 WHERE part = 'segments'")
    db.close()
    second = await open_files(folder)
    with pytest.raises(StorageError, match=r"index\.db was written by a newer shoal: upgrade shoal"):
        await second.count_items()
    await second.close()
    (folder / "index.db").unlink()
    assert await keys_in(folder) == {"a"}


async def test_a_damaged_line_is_named(store: Store, folder: Path) -> None:
    await store.write([item("a")], [])
    [path] = named(folder, "items-*.jsonl")
    with path.open("ab") as file:
        file.write(b"not JSON\n")
    with pytest.raises(StorageError, match=r"items-.*\.jsonl is damaged near byte \d+: restore a copy"):
        await store.count_items()


@pytest.mark.timeout(60)
async def test_writers_that_are_killed_lose_nothing_that_was_written(folder: Path) -> None:
    names = ["one", "two", "three"]
    done = await asyncio.to_thread(killed_writers, folder, names)
    store = await open_files(folder)
    keys = {stored.key async for stored in store.items(ItemFilter(spider="books"))}
    for name, last in done.items():
        assert {f"{name}/{batch}/{number}" for batch in range(last + 1) for number in range(50)} <= keys
        assert len(await store.fetches(name, range((last + 1) * 50))) == (last + 1) * 50
    # Whole batches only, and the next writer goes on where a killed one was torn.
    assert len(keys) % 50 == 0
    await store.write([item("after")], [])
    assert await store.count_items() == len(keys) + 1
    await store.close()
    assert len(named(folder, "items-*.jsonl")) == len(names)


async def test_a_url_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("files:here", f"files://{tmp_path}/there"):
        store = await open_store(url)
        await store.write([item()], [])
        assert await store.count_items() == 1
        await store.close()
    assert named(tmp_path, "here/items-*")
    assert named(tmp_path, "there/items-*")


async def test_a_file_where_the_folder_should_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(StorageError, match="cannot be made: File exists; choose another folder"):
        await open_files(tmp_path / "out")


async def test_a_batch_that_was_read_and_then_undone_does_no_harm(store: Store, folder: Path) -> None:
    await store.write([item("a")], [])
    [path] = named(folder, "items-*.jsonl")
    before = path.read_bytes()
    await store.write([item("undone"), item("too")], [])
    assert await store.count_items() == 3
    path.write_bytes(before)
    await store.write([item("x" * 500), item("b")], [])
    assert {stored.key for stored in await everything(store)} > {"a", "b", "x" * 500}


async def test_a_sink_gets_everything_again_when_the_index_was_deleted(folder: Path, store: FilesStore) -> None:
    place = SinkPlace(spider="books", url="redis://queue.test/0?list=books")
    await store.write([item("before")], [])
    sink = await store.outbox.add(place)
    await store.write([item("sent"), item("waits")], [])
    await store.outbox.passed(sink, (await store.outbox.read(sink, limit=1)))
    await store.close()
    delete_index(folder)
    again = await open_files(folder)
    (state,) = await again.outbox.sinks()
    assert state.place == place
    found = await again.outbox.read(state.id, limit=9)
    assert sorted(change.key for change in found) == ["before", "sent", "waits"]
    await again.outbox.remove(state.id)
    await again.close()
    delete_index(folder)
    empty = await open_files(folder)
    assert await empty.outbox.sinks() == []
    await empty.close()


def delete_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink()


async def test_a_damaged_list_of_sinks_is_one_clear_line(folder: Path, store: FilesStore) -> None:
    await store.outbox.add(SinkPlace(spider="books", url="-"))
    (folder / "sinks.json").write_text("[{")
    again = await open_files(folder)
    with pytest.raises(StorageError, match=r"sinks\.json is damaged: restore a copy; or delete it"):
        await again.count_items()
    await again.close()
