"""The frontier's tables of former versions, brought up to date when the file is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from shoal.sqlite_file import VERSIONS, Migration, connect


def open_tables(path: str | Path) -> sqlite3.Connection:
    """Open the file with the frontier's tables in their present form."""
    migrations: dict[int, Migration] = {number: _script(f"from_{number}") for number in (1, 3, 4, 5, 6, 7, 8, 9)} | {
        2: _from_2
    }
    return connect(
        path, part="frontier", version=VERSIONS["frontier"], schema_sql=_script("schema"), migrations=migrations
    )


def _from_2(connection: sqlite3.Connection) -> str:
    """Three forms of the tables were called version 2: with keys that expire, with exits, and with both."""
    has_exits = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'lane_pool'").fetchone()
    has_expiry = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'past'").fetchone()
    steps = ["from_1"] * (not has_expiry) + ["from_2"] * (not has_exits) + ["from_2_exits"]
    return "".join(map(_script, steps))


def _script(name: str) -> str:
    # Not importlib.resources: to load it takes as long as to make the tables.
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
