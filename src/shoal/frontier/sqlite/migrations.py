"""The frontier's tables of former versions, brought up to date when the file is opened."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path

from shoal.sqlite_file import VERSIONS, Migration, connect


def open_tables(path: str | Path) -> sqlite3.Connection:
    """Open the file with the frontier's tables in their present form."""
    migrations: dict[int, Migration] = {1: _script("from_1"), 2: _from_2}
    return connect(
        path, part="frontier", version=VERSIONS["frontier"], schema_sql=_script("schema"), migrations=migrations
    )


def _from_2(connection: sqlite3.Connection) -> str:
    """Two forms of the tables were called version 2: those of before exits, and those with exits."""
    has_exits = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'lane_pool'").fetchone()
    return _script("from_2_exits") if has_exits else _script("from_2") + _script("from_2_exits")


def _script(name: str) -> str:
    return resources.files("shoal.frontier.sqlite").joinpath(f"{name}.sql").read_text(encoding="utf-8")
