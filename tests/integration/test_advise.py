"""`shoal advise` on crawls that are truly bound by each thing: it names that thing, and what doubling would bring."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SECONDS, Folder

from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.narrow_site import narrow_site
from shoal.testing.sites.site_process import SiteProcess, site_process

PAGES = 4_000
# How far what is said of twice the workers may be from what they bring.
WITHIN = 0.25
# Both are measured again where they differ by more: other programs on this machine take its cores when they like.
TRIES = 3
SPIDER = """
import time

from shoal import Item, Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "{rate}"
    settings = {settings!r}

    def parse(self, page):
        ends = time.process_time() + {burn}
        while time.process_time() < ends:
            pass
        yield Item(key=page.url)
        yield page.follow("a")
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path_factory.mktemp("graph") / "hits.jsonl") as site:
        yield site


def write(folder: Folder, url: str, *, rate: str = "unlimited", burn: float = 0.0, **settings: Any) -> str:
    always = {"allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64}
    text = SPIDER.format(url=url, rate=rate, burn=burn, settings={**always, **settings})
    (folder.path / "graph.py").write_text(text)
    return "graph.py"


def advice_during(folder: Folder, *command: str, pages: int = 40) -> Any:
    """What is advised while the crawl runs, from the moment on in which so many pages are done."""
    with folder.start("run", *command) as running:
        folder.wait_for_pages(pages, crawl="graph-1")
        told = asked(folder)
        running.kill()
    return told


def asked(folder: Folder, *, seconds: int = 4) -> Any:
    return json.loads(folder.run("advise", "graph-1", "--for", str(seconds), "--json").stdout)["advice"]


def advice_and_gain(folder: Folder, *command: str, pages: int = 40) -> tuple[Any, float]:
    """The same, and how many times as fast the crawl is when a second worker has joined it."""
    # A group of processes: it has a supervisor.
    with folder.start("run", *command, start_new_session=True) as running:
        folder.wait_for_pages(pages, crawl="graph-1")
        for _ in range(TRIES):
            told = asked(folder)
            gain = rate_of_two(folder, *command, pages=pages + 1) / told["rate"]
            if told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN):
                break
        os.killpg(running.pid, signal.SIGKILL)
    return told, gain


def rate_of_two(folder: Folder, *command: str, pages: int) -> float:
    """Pages per second while a second worker is there."""
    flags = command[1:] if "--store" in command else ()
    with folder.start("worker", command[0], "--crawl", "graph-1", *flags) as second:
        folder.wait_for_pages(pages, crawl="graph-1", workers=2)
        # Its first pages are no measure: the connections are made, its share of the work is settled.
        asked(folder, seconds=1)
        twice = asked(folder)
        second.terminate()
        second.communicate(timeout=SECONDS)
    assert twice["workers"] == 2
    return float(twice["rate"])


# Each takes about ten seconds: a start, a few pages, and four seconds to measure; those that double twenty.
def test_a_paced_site(folder: Folder, graph: SiteProcess) -> None:
    told, gain = advice_and_gain(folder, write(folder, graph.url, rate="15/s"))
    assert (told["bound"], told["is_certain"], told["workers_wanted"]) == ("pace", True, 1)
    assert told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN)


def test_a_heavy_handler(folder: Folder, graph: SiteProcess) -> None:
    # Few at once: pages are written together, and on a busy machine many of them take longer than is measured.
    told = advice_during(folder, write(folder, graph.url, burn=0.03, concurrency=4))
    assert told["bound"] == "cpu"
    assert "handlers" in told["lines"][0]
    assert told["workers_wanted"] > 1


@pytest.mark.full
def test_what_a_deadline_costs_at_the_prices_of_today(folder: Folder, graph: SiteProcess) -> None:
    with folder.start("run", write(folder, graph.url, burn=0.005, concurrency=4)) as running:
        folder.wait_for_pages(40, crawl="graph-1")
        # Not those that the crawl was begun with: it goes on, and they change.
        (folder.path / "shoal.toml").write_text('machines = ["1 core 1 GB 2/h"]\n')
        lines = folder.run("advise", "graph-1", "--for", "3", "--deadline", "3h").stdout.splitlines()
        running.kill()
    assert lines[-1].startswith("within 3h, for the ")
    assert lines[-1].endswith("1 machine of 1 core and 1 GB does it: about 6.00")


@pytest.mark.full
def test_slots_that_are_taken(folder: Folder, tmp_path: Path) -> None:
    # Short beside the time that is measured: all slots land together, and a wave more or less is much of a few.
    with site_process("--graph", str(PAGES), "--latency", "0.4", log=tmp_path / "hits.jsonl") as site:
        told, gain = advice_and_gain(folder, write(folder, site.url, concurrency=8), pages=40)
    assert (told["bound"], told["is_certain"]) == ("slots", False)
    assert told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN)


@pytest.mark.full
def test_few_exits(folder: Folder, graph: SiteProcess) -> None:
    # Enough of them that one which fails, and rests for a minute, changes little.
    proxies = [Tinyproxy(folder.path, address=f"127.0.3.{number}").start() for number in range(1, 9)]
    try:
        urls = [proxy.url for proxy in proxies]
        (folder.path / "shoal.toml").write_text(f'[proxies.few]\nurls = {urls!r}\nrate = "2/s"\n')
        told, gain = advice_and_gain(folder, write(folder, graph.url, pool="few"), pages=20)
    finally:
        for proxy in proxies:
            proxy.stop()
    assert told["bound"] == "exits"
    assert told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN)


@pytest.mark.full
def test_a_slow_store(folder: Folder, graph: SiteProcess, postgres: PostgresServer, database: str) -> None:
    store = postgres.url(database)
    folder.run("store", "init", "--store", store)
    # Every write of items takes a while, as over a long line.
    sleep = "BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END"
    postgres.call(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{sleep}'", database=database)
    trigger = "CREATE TRIGGER slow AFTER INSERT ON shoal.items FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    postgres.call(trigger, database=database)
    told, gain = advice_and_gain(folder, write(folder, graph.url, flush_pages=4), "--store", store)
    assert told["bound"] == "store"
    assert "a faster store helps" in told["lines"][1]
    assert told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN)


@pytest.mark.full
def test_little_bandwidth(folder: Folder) -> None:
    with narrow_site(bytes_per_second=1_000_000) as url:
        told, gain = advice_and_gain(folder, write(folder, url, concurrency=16), pages=30)
    assert (told["bound"], told["is_certain"]) == ("line", False)
    assert told["gain_of_doubling"] == pytest.approx(gain, rel=WITHIN)
