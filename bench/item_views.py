"""What a table of items costs those who write them: `python -m bench.item_views`.

The same items, of ten fields and about 1 kB, are written without a table (`shoal store view --table`), with one, and
with one that has two indexes, in turns, to a store in a file and to PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.postgres_cpu import postgres_cpu_seconds
from shoal.store import open_store
from shoal.store.base import Store
from shoal.store.item_views import ItemView, Kind, named_columns
from shoal.testing.contract.store.rows import item
from shoal.testing.servers.postgres_server import PostgresServer

FIELDS: list[tuple[str, Kind]] = [
    ("title", "text"), ("price", "number"), ("sku", "text"), ("stock", "boolean"), ("pages", "integer"), ("at", "time"),
    ("brand", "text"), ("rating", "number"), ("category", "text"), ("description", "text"),
]  # fmt: skip
WITHOUT, TABLE, INDEXED = "no table", "table", "table, two indexes"
BATCH = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.item_views", description=__doc__)
    parser.add_argument("--items", type=int, default=4000, help="items per round")
    parser.add_argument("--rounds", type=int, default=6, help="rounds; the middle one counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure("SQLite", str(Path(folder, "shoal.db")), time.process_time, options))
    server = PostgresServer().start()
    try:
        asyncio.run(_measure("PostgreSQL, its own", server.url(), lambda: postgres_cpu_seconds(server), options))
    finally:
        server.remove()


async def _measure(name: str, url: str, cpu: Callable[[], float], options: argparse.Namespace) -> None:
    store = await open_store(url)
    for spider, indexed in ((TABLE, ()), (INDEXED, ("price", "sku"))):
        columns = named_columns(FIELDS, indexed=indexed)
        await store.views.make(ItemView(name=spider, spider=spider, columns=columns, is_table=True))
        _ = [some async for some in store.views.fill(spider)]
    taken: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for token, what in enumerate(("new", "changed", "the same"), start=1):
            for spider in (WITHOUT, TABLE, INDEXED):
                began = cpu()
                await _write(store, spider, number * options.items, options.items, token=token)
                taken.setdefault((what, spider), []).append((cpu() - began) / options.items * 1e6)
    await store.close()
    print(f"{name}: microseconds of CPU per item")
    for (what, spider), values in taken.items():
        print(f"  {what:9} {spider:20} {statistics.median(values):6.0f}")


async def _write(store: Store, spider: str, first: int, number: int, *, token: int) -> None:
    for start in range(first, first + number, BATCH):
        rows = [
            item(f"{key:07}", spider=spider, token=token, at=float(token), data=_data(key, token))
            for key in range(start, start + BATCH)
        ]
        await store.write(rows, [])


def _data(key: int, token: int) -> bytes:
    return msgspec.json.encode(
        {
            "title": f"Title {key}", "price": key / 7 + min(token, 2), "sku": f"S-{key}", "stock": True, "pages": key,
            "at": "2026-05-01T10:00:00Z", "brand": "Brand", "rating": 4.5, "category": "books",
            "description": "x" * 700,
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
