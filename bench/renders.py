"""Pages made by scripts, rendered by `shoal run` with one worker or by a bare loop of Playwright: pages per minute, and
the memory of the browser meanwhile."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import HERE, fresh_folder
from shoal.browser.chromium import processes_below

SAMPLE_SECONDS = 0.5
LINKS = 32
ROOT = HERE.parent
PAGE = """<!doctype html><title>Page %(number)d</title><body><img src="dot.png"><script>
const links = %(links)s;
fetch("text-%(number)05d.txt").then(answer => answer.text()).then(text => {
    document.body.append(Object.assign(document.createElement("p"), {textContent: text}));
    for (const link of links) document.body.append(Object.assign(document.createElement("a"), {href: link}));
    document.body.prepend(Object.assign(document.createElement("h1"), {textContent: "Page %(number)d"})); });
</script>"""
WORDS = "harbour lantern archive orchard compass winter atlas tide garden paper river station signal window market "


class Rendering(NamedTuple):
    """One run: its pages, its time from start to exit, and the browser's memory at each look."""

    pages: int
    seconds: float
    browser_bytes: list[int]

    @property
    def per_minute(self) -> float:
        return self.pages / self.seconds * 60

    @property
    def most_bytes(self) -> int:
        return max(self.browser_bytes, default=0)


def build_site(folder: Path, *, pages: int) -> None:
    """A list of pages, and each page as a script with 16 kB of text that it asks for."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"page-{number:05d}.html" for number in range(pages)]
    (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names))
    for number, name in enumerate(names):
        links = [names[(number + step) % pages] for step in range(1, LINKS + 1)]
        (folder / name).write_text(PAGE % {"number": number, "links": links})
        (folder / f"text-{number:05d}.txt").write_text(WORDS * 150)
    (folder / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")


def by_shoal(url: str, *, pages: int, at_once: int, name: str) -> Rendering:
    """`shoal run` with one worker; `at_once` 0: fetched without a browser. Fails unless each page has its item."""
    folder = fresh_folder(name)
    command = [sys.executable, "-m", "shoal", "run", str(HERE / "render_spider.py"), "--workers", "1"]
    if at_once:
        command += ["--kinds", "http,browser", "--set", f"render_pages={at_once}"]
    environment = {"BENCH_URL": f"{url}index.html", "BENCH_RENDER": "1" if at_once else ""}
    found = _watched(command, environment=environment, pages=pages, folder=folder)
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        made = "json_extract(data, '$.links') = ?" if at_once else "json_extract(data, '$.links') <> ?"
        (items,) = database.execute(f"SELECT count(*) FROM items WHERE {made}", (LINKS,)).fetchone()  # one of ours
    _check(items, pages=pages, folder=folder)
    return found


def by_bare_loop(url: str, *, pages: int, at_once: int, name: str) -> Rendering:
    """Playwright alone. Fails unless each page was made."""
    folder = fresh_folder(name)
    command = [sys.executable, "-m", "bench.bare_renders", url, str(pages), str(at_once)]
    found = _watched(command, environment={"PYTHONPATH": str(ROOT)}, pages=pages, folder=folder)
    _check((folder / "output.log").read_text().count(f'"links": {LINKS}}}'), pages=pages, folder=folder)
    return found


def _watched(command: Sequence[str], *, environment: Mapping[str, str], pages: int, folder: Path) -> Rendering:
    looks: list[int] = []
    with (folder / "output.log").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                looks.append(browser_bytes(process.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise SystemExit(f"return code {process.returncode}: see {folder / 'output.log'}")
    return Rendering(pages, time.perf_counter() - began, looks)


def browser_bytes(pid: int) -> int:
    """The memory of the browser's processes below this one; what several of them share counts once in all."""
    return sum(_proportional(process) for process in processes_below(pid) if b"chromium" in _command(process))


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _check(items: int, *, pages: int, folder: Path) -> None:
    if items != pages:
        raise SystemExit(f"{items:,} of {pages:,} pages: see {folder}")
