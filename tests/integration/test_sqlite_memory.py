"""What `shoal.db` takes of a process's memory, measured in a process of its own: it does not grow with the file."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shoal.store.base import ItemFilter
from shoal.store.sqlite import read
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.rows import item
from shoal.worker.retirement import resident_bytes

MIB = 1024 * 1024
READER = """
import asyncio, json, sys
from shoal.worker.retirement import resident_bytes
from shoal.store.base import ItemFilter
from shoal.store.sqlite.store import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    found = [await store.count_items(ItemFilter(spider="nobody", crawl="none")), resident_bytes()]
    found.append(await store.count_items(ItemFilter(spider="books", crawl="c1")))
    found.append(sum((await store.count_by_crawl("books")).values()))
    print(json.dumps([*found, resident_bytes()]))
    await store.close()

asyncio.run(main())
"""
WRITER = """
import asyncio, json, sys
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, Task
from shoal.worker.retirement import resident_bytes
from shoal.urls.canonical import key_of

async def main():
    frontier = await SqliteFrontier.open(sys.argv[1])
    await frontier.open_crawl(Crawl(id="c1", spider="books"))
    found = []
    for first in range(0, 120_000, 1000):
        urls = [f"https://books.test/shelf-{number}/book.html" for number in range(first, first + 1000)]
        await frontier.put("c1", [Task(url=url, key=key_of(url), lane="books.test", depth=1) for url in urls])
        if first in (19_000, 119_000):
            found.append(resident_bytes())
    print(json.dumps([(await frontier.progress("c1")).left, *found]))
    await frontier.close()

asyncio.run(main())
"""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not resident_bytes(), reason="this system does not tell a process its memory"),
]


def numbers_of(program: str, path: Path) -> list[int]:
    """What the program prints when it has worked on the file."""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True, timeout=300)
    return list(map(int, json.loads(done.stdout)))


async def test_reading_every_item_does_not_fill_the_memory_with_them(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    store = await SqliteStore.open(path)
    for first in range(0, 10_000, 500):
        rows = [item(str(number), data={"text": "x" * 3000}) for number in range(first, first + 500)]
        await store.write(rows, [])
    await store.write([item("1", spider="shoes")], [])
    await store.close()
    assert path.stat().st_size > 32 * MIB
    nobody, before, own, of_all_crawls, after = numbers_of(READER, path)
    assert (nobody, own, of_all_crawls) == (0, 10_000, 10_000)
    assert after - before < 4 * MIB


# Three seconds of CPU: memory that grows with the file shows only when the file has grown, here to 120,000 tasks.
async def test_writing_many_tasks_takes_no_more_memory_than_writing_some(tmp_path: Path) -> None:
    left, some, many = numbers_of(WRITER, tmp_path / "shoal.db")
    assert left == 120_000
    assert many < 1.05 * some


async def test_the_items_of_a_files_only_spider_are_counted_without_reading_them(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    await store.write([item("1"), item("2"), item("3", crawl="c2")], [])
    statements: list[str] = []
    with closing(read.reading_connection(tmp_path / "shoal.db")) as connection:
        connection.set_trace_callback(statements.append)
        assert read.count(connection, ItemFilter(spider="books", crawl="c1")) == 2
        connection.set_trace_callback(None)
        connection.set_authorizer(None)
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall() for statement in statements]
    steps = [step for plan in plans for *_, step in plan if "item" in step]
    assert len(steps) == 3
    assert all("USING COVERING INDEX" in step for step in steps), steps
    await store.close()
