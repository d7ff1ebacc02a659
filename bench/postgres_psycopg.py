"""psycopg's part of `bench.postgres`: `executemany` of the statement over the rows in a folder; prints the seconds."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psycopg


def main() -> None:
    how, url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    statement = (folder / "statement.sql").read_text()
    batches = json.loads((folder / "rows.json").read_bytes())
    rows = [[(*row, row[-1], row[-1]) for row in batch] for batch in batches]
    print(asyncio.run(waiting(url, statement, rows)) if how == "async" else blocking(url, statement, rows))


async def waiting(url: str, statement: str, batches: list[list[Any]]) -> float:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        started = time.perf_counter()
        for batch in batches:
            async with connection.transaction(), connection.cursor() as cursor:
                await cursor.executemany(statement, batch)
        return time.perf_counter() - started


def blocking(url: str, statement: str, batches: list[list[Any]]) -> float:
    with psycopg.connect(url) as connection:
        started = time.perf_counter()
        for batch in batches:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(statement, batch)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
