"""Rows per second into PostgreSQL, and whole crawls that store there: `python -m bench.postgres`.

shoal's store beside `executemany` of asyncpg and of psycopg with the same guarded upsert into the same table, and
beside a bare COPY into a table without any index. One connection each, durable server, interleaved; the table shows
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import uvloop

from bench.crawl import prepare_site
from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import run_measured
from bench.nginx import serve
from shoal.store.base import ItemRow
from shoal.store.postgres.store import PostgresStore
from shoal.testing.servers.postgres_server import PostgresServer

BATCH_ROWS = 500
ITEM_BYTES = 1000

GUARDED = """
    INSERT INTO shoal.items AS old (spider, key, crawl, url, host, data, fence, first_seen, last_seen, changed_at)
    VALUES ({marks}) ON CONFLICT (spider, key) DO UPDATE SET
        crawl = excluded.crawl, url = excluded.url, host = excluded.host, fence = excluded.fence,
        last_seen = greatest(old.last_seen, excluded.last_seen),
        data = CASE WHEN old.data = excluded.data THEN old.data ELSE excluded.data END,
        version = old.version + CASE WHEN old.data = excluded.data THEN 0 ELSE 1 END,
        changed_at = CASE WHEN old.data = excluded.data THEN old.changed_at ELSE excluded.changed_at END
    WHERE excluded.fence >= old.fence"""
NUMBERED = GUARDED.format(
    marks="$1, $2, $3, $4, $5, $6::text::jsonb, $7, to_timestamp($8), to_timestamp($8), to_timestamp($8)"
)
BARE = """
    DROP TABLE IF EXISTS bare;
    CREATE TABLE bare (spider text, key text, crawl text, url text, host text, data jsonb, fence bigint, at float8)"""

Batches = list[list[ItemRow]]
Write = Callable[[Batches], Awaitable[float]]


class Speed(NamedTuple):
    """What one way of writing reached."""

    name: str
    rows_per_second: float


def main() -> None:
    options = _options()
    server = PostgresServer(durable=True).start()
    try:
        speeds = uvloop.run(_rows(server, options))
        print_rows(speeds, options)
        crawls = {} if options.no_crawls else _crawls(server, options)
    finally:
        server.remove()
    if options.json:
        report = {"rows": [speed._asdict() for speed in speeds], "crawls": crawls}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description="the PostgreSQL store's speed")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each run, half of them updates")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way, interleaved")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the site that is crawled")
    parser.add_argument("--crawl-rounds", type=int, default=3, help="crawls into each store, interleaved")
    parser.add_argument("--no-crawls", action="store_true", help="leave out the crawls")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


async def _rows(server: PostgresServer, options: argparse.Namespace) -> list[Speed]:
    python = psycopg_python()
    ways: dict[str, Write] = {
        "shoal": lambda batches: with_shoal(server, batches),
        "asyncpg executemany": lambda batches: with_asyncpg(server, batches),
        "psycopg executemany, async": lambda batches: with_psycopg(python, server, batches, "async"),
        "psycopg executemany, sync": lambda batches: with_psycopg(python, server, batches, "sync"),
        "bare COPY": lambda batches: with_copy(server, batches),
    }
    store = await PostgresStore.open(server.url())
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1, options.rounds + 1):
        for name, write in ways.items():
            former, batches = make_rows(options.rows)
            server.call("TRUNCATE shoal.items; CHECKPOINT")
            for batch in former:
                await store.write(batch, [])
            found[name].append(options.rows / await write(batches))
            print(f"round {number}: {name} {found[name][-1]:,.0f} rows/s", flush=True)
    await store.close()
    return [Speed(name, statistics.median(speeds)) for name, speeds in found.items()]


def psycopg_python() -> Path:
    """psycopg in a virtual environment of its own, made when it is not there."""
    folder, requirements = WORK / "psycopg-venv", HERE / "postgres-requirements.txt"
    marker = folder / "installed.txt"
    if not marker.exists() or marker.read_text() != requirements.read_text():
        print(f"installing psycopg into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", "-r", requirements], check=True, cwd=WORK)
        marker.write_text(requirements.read_text())
    return folder / "bin" / "python"


def make_rows(total: int) -> tuple[Batches, Batches]:
    """The rows that are there, and the rows to be written: half of those again with new content, half of them new."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 10))) for _ in range(5000)]
    half = total // 2
    former = [_row(number, 1, chance, words) for number in range(half)]
    rows = [_row(number, 2, chance, words) for number in range(total)]
    chance.shuffle(rows)
    return _batches(former), _batches(rows)


def _row(number: int, token: int, chance: random.Random, words: list[str]) -> ItemRow:
    url = f"https://shop.example/item/{number * 7919 % 1_000_003}"
    item: dict[str, Any] = {
        "title": " ".join(chance.choices(words, k=8)),
        "price": round(chance.random() * 100, 2),
        "stock": number % 100,
        "seen": token,
        "tags": chance.choices(words, k=10),
    }
    text: list[str] = []
    while sum(map(len, text)) + len(text) + len(msgspec.json.encode(item)) + 20 < ITEM_BYTES:
        text.append(chance.choice(words))
    item["description"] = " ".join(text)
    data = msgspec.json.encode(item)
    return ItemRow(spider="shop", key=url, crawl="shop-1", url=url, data=data, token=token, at=1e9 + token)


def _batches(rows: list[ItemRow]) -> Batches:
    return [rows[start : start + BATCH_ROWS] for start in range(0, len(rows), BATCH_ROWS)]


async def with_shoal(server: PostgresServer, batches: Batches) -> float:
    store = await PostgresStore.open(server.url(), connections=1)
    started = time.perf_counter()
    for batch in batches:
        await store.write(batch, [])
    seconds = time.perf_counter() - started
    await store.close()
    return seconds


async def with_asyncpg(server: PostgresServer, batches: Batches) -> float:
    connection = await asyncpg.connect(server.url())
    started = time.perf_counter()
    for batch in batches:
        async with connection.transaction():
            await connection.executemany(NUMBERED, [plain(row) for row in batch])
    seconds = time.perf_counter() - started
    await connection.close()
    return seconds


async def with_copy(server: PostgresServer, batches: Batches) -> float:
    connection = await asyncpg.connect(server.url())
    await connection.execute(BARE)
    started = time.perf_counter()
    for batch in batches:
        await connection.copy_records_to_table("bare", records=[plain(row) for row in batch])
    seconds = time.perf_counter() - started
    await connection.close()
    return seconds


async def with_psycopg(python: Path, server: PostgresServer, batches: Batches, how: str) -> float:
    """In an environment of its own: it prints the seconds it took."""
    folder = fresh_folder("psycopg-run")
    (folder / "rows.json").write_bytes(msgspec.json.encode([[plain(row) for row in batch] for batch in batches]))
    marks = "%s, %s, %s, %s, %s, %s::text::jsonb, %s, to_timestamp(%s), to_timestamp(%s), to_timestamp(%s)"
    (folder / "statement.sql").write_text(GUARDED.format(marks=marks))
    command = [str(python), str(HERE / "postgres_psycopg.py"), how, server.url(), str(folder)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"psycopg failed:\n{ran.stderr}")
    return float(ran.stdout)


def plain(row: ItemRow) -> tuple[Any, ...]:
    return (row.spider, row.key, row.crawl, row.url, "shop.example", row.data.decode(), row.token, row.at)


def print_rows(speeds: list[Speed], options: argparse.Namespace) -> None:
    ours = speeds[0].rows_per_second
    print(f"\n{options.rows:,} items of 1 kB, half of them updates, {BATCH_ROWS} per transaction, one connection")
    print(f"{'':30}{'rows/s':>10}{'shoal against it':>20}")
    for speed in speeds:
        print(f"{speed.name:30}{speed.rows_per_second:10,.0f}{ours / speed.rows_per_second:19.2f}x")


def _crawls(server: PostgresServer, options: argparse.Namespace) -> dict[str, float]:
    """Pages per second of the same crawl into the embedded store and into PostgreSQL, interleaved."""
    plan = prepare_site(options.pages)
    found: dict[str, list[float]] = {"embedded": [], "PostgreSQL": []}
    with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
        start = f"{address}/{plan.path(0)}"
        for number in range(1, options.crawl_rounds + 1):
            for name, speeds in found.items():
                server.call("DROP SCHEMA IF EXISTS shoal CASCADE; CHECKPOINT")
                speeds.append(plan.pages / _crawl(start, server=None if name == "embedded" else server))
                print(f"round {number}: {name} {speeds[-1]:,.0f} pages/s", flush=True)
                if name != "embedded" and (stored := _stored(server)) != plan.pages:
                    raise SystemExit(f"{stored:,} items instead of {plan.pages:,}")
    medians = {name: statistics.median(speeds) for name, speeds in found.items()}
    share = medians["PostgreSQL"] / medians["embedded"]
    print(
        f"\na crawl of {plan.pages:,} pages: " + ", ".join(f"{name} {median:,.0f}" for name, median in medians.items())
    )
    print(f"pages per second with --store postgresql://, of those with the embedded store: {share:.0%}")
    return medians


def _crawl(start: str, *, server: PostgresServer | None) -> float:
    """The seconds of one crawl."""
    store = [] if server is None else ["--store", server.url()]
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "run", str(HERE / "shoal_spider.py"), "--workers", "1", *store]
    return run_measured(command, folder=fresh_folder("postgres-run"), environment={"BENCH_URL": start}).seconds


def _stored(server: PostgresServer) -> int:
    return int(server.call("SELECT count(*) FROM shoal.items"))


if __name__ == "__main__":
    main()
