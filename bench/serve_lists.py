"""How long the lists of `shoal serve` take over 50 crawls, 100,000 hosts and 10,000 dead letters.

`python -m bench.serve_lists`, with `--redis` on a Redis server of its own. It prints milliseconds: the first answer,
the median and the slowest of twenty."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from shoal import Spider
from shoal.crawl.record import describe_crawl
from shoal.frontier import open_frontier
from shoal.model import Task
from shoal.settings.table import Settings
from shoal.testing.servers.redis_server import RedisServer
from shoal.urls.canonical import UrlRules

CRAWLS, HOSTS, LETTERS = 50, 100_000, 10_000
CRAWL = f"shop-{CRAWLS}"
TIMES = 20
PAUSE_SECONDS = 1.1  # what was read a moment ago is not read again: ask later
LISTS = (
    "/crawls?limit=50",
    f"/crawls/{CRAWL}/hosts?limit=50",
    f"/crawls/{CRAWL}/hosts?limit=50&search=host99999",
    f"/crawls/{CRAWL}/dead?limit=50",
    f"/crawls/{CRAWL}/dead?limit=50&host=dead7.test",
    f"/crawls/{CRAWL}/dead?limit=50&reason=http_503",
)


class Shop(Spider):
    """Never run: its crawls are filled by hand."""

    name = "shop"
    start = ("https://shop.test/",)


async def fill(place: str) -> None:
    """The crawls, one of them with hosts and dead letters."""
    rules = UrlRules(Settings(), start_hosts=["shop.test"])

    def task(url: str) -> Task:
        link = rules.resolve(url)
        return Task(url=link.url, key=link.key, lane=link.lane)

    frontier = await open_frontier(place)
    for number in range(1, CRAWLS + 1):
        described = describe_crawl(
            f"shop-{number}", Shop(), settings=Settings(obey_robots=False), reference="shop.py", pools={}
        )
        await frontier.open_crawl(described)
    for first in range(0, HOSTS, 5000):
        await frontier.put(CRAWL, [task(f"https://host{number}.test/") for number in range(first, first + 5000)])
    for first in range(0, LETTERS, 1000):
        letters = [(task(f"https://dead{n % 500}.test/{n}"), f"http_{500 + n % 4}") for n in range(first, first + 1000)]
        await frontier.bury(CRAWL, letters)
    await frontier.close()


@contextlib.contextmanager
def serving(folder: str, place: str) -> Iterator[int]:
    """The port of a serving process."""
    command = [sys.executable, "-m", "shoal", "serve", "--port", "0", "--frontier", place]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split()[1].rstrip("/").rpartition(":")[2])
        finally:
            process.kill()


def asked(port: int, path: str) -> float:
    """Milliseconds until the whole answer was there."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    began = time.perf_counter()
    line.request("GET", f"/api/v1{path}")
    answer = line.getresponse()
    answer.read()
    took = 1000 * (time.perf_counter() - began)
    line.close()
    assert answer.status == 200, (path, answer.status)
    return took


def measure(folder: str, place: str) -> None:
    """Print a line per list."""
    asyncio.run(fill(place))
    with serving(folder, place) as port:
        print(f"{'list':<50} {'first':>8} {'median':>8} {'slowest':>8}")
        for path in LISTS:
            times = []
            for _ in range(TIMES):
                times.append(asked(port, path))
                time.sleep(PAUSE_SECONDS)
            print(f"{path:<50} {times[0]:>8.0f} {statistics.median(times):>8.0f} {max(times):>8.0f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--redis", action="store_true", help="on a Redis server of its own, not on SQLite")
    with tempfile.TemporaryDirectory() as folder:
        if not options.parse_args().redis:
            measure(folder, str(Path(folder) / "shoal.db"))
            return
        server = RedisServer(Path(folder) / "redis").start()
        try:
            measure(folder, server.url)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
