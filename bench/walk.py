"""`make walk`: the files and functions that one page passes on SQLite and on Redis, and what commands load.

It prints what the next person reads who changes the way of a page: `--files` names each file."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bench.guard.hot_path import FollowFrom, ReadyFetcher
from bench.redis_server import redis_server
from bench.site import SitePlan, build_site
from shoal.crawl.beginning import begin
from shoal.crawl.feeder import Feeder
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Done
from shoal.run.building import worker_for
from shoal.run.intakes import intake_of, settings_of
from shoal.store.sqlite.store import SqliteStore

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'src' / 'shoal'}{os.sep}"
# The run refuses its one address, which is private, and leaves a crawl behind.
COMMANDS = {"shoal run": "run spider.py", "shoal status": "status"}
SPIDER = """from shoal import Spider


class One(Spider):
    start = ["http://127.0.0.1:9/"]

    def parse(self, page):
        yield {"url": page.url}
"""


class Verbs(FollowFrom):
    """The same spider in a crawl of its own, for calls of single verbs."""


class Walk:
    """The functions of the package that ran, in the order of their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))

    def __str__(self) -> str:
        switches = sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:], strict=False))
        return f"{len(self.files):3} files, {len(set(self.calls)):4} functions, {switches:5} switches between files"


class Recorder:
    """Notes calls in all threads that begin after it was made: SQLite works in a thread of its own."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def recorded(self, walk: Walk) -> Iterator[None]:
        self._walk = walk
        try:
            yield
        finally:
            self._walk = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self._walk is not None and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._walk.calls.append((frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname))


async def verbs(frontier: Frontier, crawl: str, *, recorder: Recorder) -> dict[str, Walk]:
    """One lease and one settle with nothing else going on."""
    walks = {"lease": Walk(), "settle": Walk()}
    with recorder.recorded(walks["lease"]):
        batch = await frontier.lease([crawl], limit=1, worker="walk:1:1", seconds=60.0, horizon=1.0)
    with recorder.recorded(walks["settle"]):
        await frontier.settle([Done(lease=batch.leases[0])])
    return walks


async def page(url: str, site: Path, folder: Path, *, recorder: Recorder) -> dict[str, Walk]:
    """A crawl with one worker, to its end; then the verbs alone."""
    frontier, store = await open_frontier(url), await SqliteStore.open(folder / "store.db")
    whole = Walk()
    for spider in (Verbs(), FollowFrom()):
        settings = settings_of(type(spider), {}, folder=folder).values
        begun, _ = await begin(frontier, spider, settings=settings, reference="walk.py")
        feeder = Feeder(begun.id, frontier=frontier, say=print)
        await feeder.begin()
        await feeder.feed(spider, intake=intake_of(begun))
        if isinstance(spider, Verbs):
            walks = await verbs(frontier, begun.id, recorder=recorder)
            continue
        parts: dict[str, Any] = {"frontier": frontier, "store": store, "fetcher": ReadyFetcher(site), "say": print}
        async with worker_for(begun, spider, name="walk:1:1", **parts) as worker:
            with recorder.recorded(whole):
                await worker.run(asyncio.Event())
    await store.close()
    await frontier.close()
    return {"a page": whole, **walks}


def run(found: Awaitable[dict[str, Walk]]) -> dict[str, Walk]:
    async def main() -> dict[str, Walk]:
        return await found

    return asyncio.run(main())


def loaded(arguments: str, folder: Path) -> str:
    """How many modules of shoal a command loads, and the CPU-seconds that it takes."""
    command = ["-m", "shoal", *arguments.split()]
    before = os.times()
    subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, check=False)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    timed = [sys.executable, "-X", "importtime", *command]
    lines = subprocess.run(timed, cwd=folder, capture_output=True, text=True, check=False).stderr.splitlines()
    modules = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    return f"{sum(name.startswith('shoal') for name in modules)} modules of shoal, {spent:.2f} CPU-seconds"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("--files", action="store_true", help="name each file, in the order in which it is reached")
    flags = parser.parse_args()
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="walk") as name:
        folder = Path(name)
        site = folder / "site"
        build_site(SitePlan(pages=1), folder=site)
        walks = {"SQLite": run(page(str(folder / "walk.db"), site, folder, recorder=recorder))}
        if shutil.which("redis-server"):
            with redis_server(folder / "redis") as server:
                walks["Redis"] = run(page(server.url, site, folder, recorder=recorder))
        for backend, found in walks.items():
            for what, walk in found.items():
                print(f"{backend:6} {what:7} {walk}")
                if flags.files:
                    print("".join(f"         {file}\n" for file in walk.files), end="")
        (folder / "spider.py").write_text(SPIDER)
        for command, arguments in COMMANDS.items():
            print(f"{command}: {loaded(arguments, folder)}")


if __name__ == "__main__":
    main()
