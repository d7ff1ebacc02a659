"""Whole crawls of a site by shoal and by Scrapy, each checked: exactly one item per page, or it does not count."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import venv
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.measure import Cost, run_measured

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"


class Limit(NamedTuple):
    """How many pages a crawl has to fetch, of those that the site has."""

    pages: int
    total: int


def shoal_crawl(start: str, *flags: str, total: int, folder: Path) -> Cost:
    """`shoal run` over the whole site, items in the folder's shoal.db."""
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "run", str(HERE / "shoal_spider.py"), *flags]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": start})
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    _check("shoal", found=found, limit=Limit(total, total))
    return cost


def scrapy_crawl(
    program: Path, spider: str, *settings: str, start: str, limit: Limit, folder: Path
) -> tuple[int, Cost]:
    """A Scrapy spider of ours over the site, or the first pages of it: how many pages, and the cost."""
    items = folder / "items.jsonl"
    command = [str(program), "runspider", str(HERE / spider), "-a", f"url={start}", "-O", str(items)]
    if limit.pages < limit.total:
        settings = (*settings, f"CLOSESPIDER_PAGECOUNT={limit.pages}")
    for setting in settings:
        command += ["-s", setting]
    cost = run_measured(command, folder=folder)
    with items.open("rb") as lines:
        urls = {json.loads(line)["url"] for line in lines}
    _check(spider, found=len(urls), limit=limit)
    return len(urls), cost


def scrapy_program(name: str) -> Path:
    """Scrapy, as `NAME-requirements.txt` wants it, in a virtual environment of its own, made when it is not there."""
    folder = WORK / f"{name}-venv"
    requirements = HERE / f"{name}-requirements.txt"
    marker = folder / "installed.txt"
    if not marker.exists() or marker.read_text() != requirements.read_text():
        print(f"installing {name} into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", "-r", requirements], check=True, cwd=WORK)
        marker.write_text(requirements.read_text())
    return folder / "bin" / "scrapy"


def fresh_folder(name: str) -> Path:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _check(system: str, *, found: int, limit: Limit) -> None:
    if found < limit.pages or (limit.pages == limit.total and found != limit.pages):
        raise SystemExit(f"{system} has items of {found:,} pages instead of {limit.pages:,}")
