"""A crawl by one worker, which reaches its frontier directly or through RabbitMQ. The crawl is begun before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.contest import Crawl
from bench.crawlers import HERE, fresh_folder
from bench.grounds import Ground
from bench.measure import run_measured
from bench.own_crawls import README_FORM, check_file
from shoal.crawl.beginning import begin
from shoal.crawl.opening import frontier_at
from shoal.crawl.sources import feed, requests_of
from shoal.run.intakes import intake_of, settings_of
from shoal.spider.loading import load_spider
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.waiting import wait_until

SERVED = "workers are served at"


def directly(ground: Ground) -> Crawl:
    folder, crawl = _begun("piped-directly", ground)
    return _work(ground, crawl, "--frontier", str(folder / "frontier.db"), folder=folder)


def through_rabbitmq(ground: Ground, *, server: RabbitServer) -> Crawl:
    folder, crawl = _begun("piped-through", ground)
    pipe = server.at(f"bench-{os.getpid()}-{crawl}"[:40].rstrip("-"))
    with _coordinator(folder, pipe):
        return _work(ground, crawl, "--pipe", pipe, folder=folder)


def _begun(name: str, ground: Ground) -> tuple[Path, str]:
    """A folder with a frontier in which a crawl waits for its worker."""
    folder = fresh_folder(name)
    os.environ["BENCH_URL"] = ground.start
    return folder, asyncio.run(_begin(str(folder / "frontier.db")))


async def _begin(frontier_url: str) -> str:
    reference = str(HERE / README_FORM)
    kind = load_spider(reference)
    spider = kind()
    async with frontier_at(frontier_url) as frontier:
        crawl, _ = await begin(frontier, spider, settings=settings_of(kind, {}).values, reference=reference)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake_of(crawl), max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, "bench", seconds=0)
        return crawl.id


def _work(ground: Ground, crawl: str, *flags: str, folder: Path) -> Crawl:
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "worker", str(HERE / README_FORM), "--burst", "--crawl", crawl, "--store", "shoal.db", *flags]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": ground.start})
    check_file(folder, ground)
    return Crawl(cost)


@contextlib.contextmanager
def _coordinator(folder: Path, pipe: str) -> Iterator[None]:
    shoal, log = str(Path(sys.executable).with_name("shoal")), folder / "coordinator.log"
    command = [shoal, "serve", "--port", "0", "--frontier", "frontier.db", "--pipe", pipe]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait_until(lambda: SERVED in log.read_text(), otherwise="the coordinator does not serve")
        yield
    finally:
        process.terminate()
        process.wait()
