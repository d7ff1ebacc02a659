"""Whole crawls of a site by shoal, each checked: exactly one item per page, or it does not count."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from bench.measure import Cost, run_measured

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"


def shoal_crawl(start: str, *flags: str, total: int, folder: Path) -> Cost:
    """`shoal run` over the whole site, items in the folder's shoal.db."""
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "run", str(HERE / "shoal_spider.py"), *flags]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": start})
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    if found != total:
        raise SystemExit(f"shoal has items of {found:,} pages instead of {total:,}")
    return cost


def fresh_folder(name: str) -> Path:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
