"""Whole crawls of a site by shoal, each checked: exactly one item per page, or it does not count."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import venv
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
