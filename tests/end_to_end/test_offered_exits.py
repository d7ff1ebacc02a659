"""Exits that belong to a machine: only workers there use them, and tasks for their region wait while nobody has any."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crawl_commands import Commands, ended
from exit_crawl import ExitCrawl, graph, pages_of
from exit_crawl import site as loopback_site

from shoal import Item, Spider
from shoal.fetch.addresses import has_address
from shoal.settings.table import EXITS_VARIABLE
from shoal.testing.servers.programs import find_program
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.loopback import Hit, Reply, Request, reply
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually

PAGES = 60
PASSWORD = "0nly-fra-kn0ws-17"
HERE = "127.0.0.1"
WAITING = " for the region eu, and no worker offers an exit there: `shoal worker graph.py --exits FILE` does"
SPIDER = """
from shoal import Item, Spider


class Graph(Spider):
    name = "graph"
    start = "{url}"
    rate = "60/s"
    obey_robots = False
    allow_private = True
    lease_seconds = 2.0
    horizon_seconds = 0.2
    per_host = 4
    max_exit_tries = 20

    def parse(self, page):
        yield Item(key=page.url)
        for request in page.follow("a"):
            if int(request.url.rpartition("/")[2]) % 3 == 0:
                request.region = "eu"
            yield request
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


@pytest.fixture
def folder(tmp_path: Path, site: SiteProcess) -> Path:
    folder = tmp_path / "crawl"
    folder.mkdir()
    (folder / "graph.py").write_text(SPIDER.format(url=site.urls[0]))
    return folder


@pytest.fixture
def commands(folder: Path, frontier: str) -> Iterator[Commands]:
    commands = Commands(folder, frontier)
    yield commands
    commands.close()


def offer(folder: Path, machine: str, *urls: str, **options: Any) -> str:
    """The file of a machine with exits in the region eu; gives its name."""
    given = {"urls": urls, "region": "eu", **options}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    (folder / f"{machine}.toml").write_text("\n".join([f'machine = "{machine}"', "[exits.own]", *lines, ""]))
    return f"{machine}.toml"


def is_regional(url: str) -> bool:
    number = int(url.rpartition("/")[2])
    return number > 0 and number % 3 == 0


def peers_of(hits: list[Hit], *, regional: bool) -> set[str]:
    return {hit.peer for hit in hits if is_regional(hit.path) is regional}


def kinds_of(commands: Commands) -> dict[str, dict[str, int]]:
    return {one["kind"]: one for one in commands.output("status", "graph-1")["kinds"]}


def fetched_by(folder: Path, *, regional: bool) -> set[str]:
    with closing(sqlite3.connect(folder / "results.db")) as db:
        return {worker for url, worker in db.execute("SELECT url, worker FROM fetches") if is_regional(url) is regional}


def say_all(logs: list[Path], commands: Commands) -> str:
    looks = (("status", "graph-1"), ("exits", "graph-1"), ("exits", "graph-1", "--json"))
    shown = [commands.done(*look, has_store=False) for look in looks]
    return "\n".join([*(log.read_text() for log in logs), *shown])


# Eight seconds: the leases of a killed worker run out, and the next machine is started only then.
@pytest.mark.full
async def test_tasks_of_a_region_leave_through_the_machines_that_offer_it_and_wait_while_none_does(
    commands: Commands, site: SiteProcess, folder: Path, start_proxy: Callable[..., Tinyproxy]
) -> None:
    proxy = start_proxy("127.0.0.4", user="fra", password=PASSWORD)
    fra = offer(folder, "fra-1", "bind:127.0.0.2", "bind:127.0.0.3", proxy.url, rate="30/m")
    run, run_log = commands.start("run", "graph.py")
    await eventually(lambda: WAITING in run_log.read_text(), seconds=30)
    assert peers_of(site.hits(), regional=True) == set()
    first, first_log = commands.start("worker", "graph.py", "--exits", fra)
    await eventually(lambda: peers_of(site.hits(), regional=True) == {"127.0.0.2", "127.0.0.3", "127.0.0.4"})
    await eventually(lambda: kinds_of(commands)["http@eu"]["workers"] == 1)
    first.kill()
    before = len(run_log.read_text())
    await eventually(lambda: WAITING in run_log.read_text()[before:], seconds=30)
    waiting = kinds_of(commands)["http@eu"]
    assert (waiting["waiting"] > 0, waiting["workers"], run.poll()) == (True, 0, None)
    # Many, as the limits of the first machine hold on for a minute.
    others = {f"127.0.0.{number}" for number in range(100, 120)}
    more = offer(folder, "fra-2", *(f"bind:{address}" for address in sorted(others)))
    second, second_log = commands.start("worker", "graph.py", "--exits", more)
    assert await ended(run) == 0
    second.terminate()
    await ended(second)
    hits = site.hits()
    peers = peers_of(hits, regional=True)
    assert peers >= {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    assert peers & others
    assert peers <= {"127.0.0.2", "127.0.0.3", "127.0.0.4", *others}
    assert commands.output("status", "graph-1")["progress"]["done"] == PAGES
    # The worker of the run has no exits, so no page of the region was ever its own.
    (ran,) = fetched_by(folder, regional=False) - fetched_by(folder, regional=True)
    assert ran.split(":")[1]
    shown = json.loads(commands.done("exits", "graph-1", "--json", has_store=False))
    exits = {one["exit"]: one for one in shown["exits"]}
    assert {name.partition("@")[2] for name in exits} == {"fra-1", "fra-2"}
    assert all(one["in_flight"] == 0 for one in exits.values())
    assert PASSWORD not in say_all([run_log, first_log, second_log], commands)


class Rendered(Spider):
    """Its pages are rendered by a browser and load an image each."""

    render = True
    region = "eu"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")


# Five seconds: a browser renders five pages.
@pytest.mark.full
async def test_rendered_pages_and_what_they_load_leave_from_the_offered_addresses(
    exit_crawl: Callable[..., ExitCrawl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_program("chromium")
    monkeypatch.setenv(EXITS_VARIABLE, str(tmp_path / offer(tmp_path, "fra-1", "bind:127.0.0.2", "bind:127.0.0.3")))

    def answer(request: Request) -> Reply:
        links = "".join(f'<a href="/{number}">x</a>' for number in range(1, 5)) if request.path == "/0" else ""
        return reply(f'<img src="/image-of{request.path}">{links}')

    async with loopback_site(answer) as server:
        crawl = exit_crawl(Rendered, f"http://127.0.0.1:{server.port}/0")
        progress = await crawl.run()
        assert (progress.done, progress.dead) == (5, 0)
        assert pages_of(server.requests).keys() >= {"/0", "/4", "/image-of/0", "/image-of/4"}
        assert {hit.peer for hit in server.requests} == {"127.0.0.2", "127.0.0.3"}
    assert set(await crawl.exits()) == {"region:eu/127.0.0.2@fra-1", "region:eu/127.0.0.3@fra-1"}


class Pooled(Spider):
    """Goes through a pool that shoal.toml has."""

    pool = "ring"
    rate = "30/s"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")


async def test_a_machine_adds_its_exits_to_a_pool_of_the_crawl(
    exit_crawl: Callable[..., ExitCrawl],
    start_proxy: Callable[..., Tinyproxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = start_proxy("127.0.0.5")
    (tmp_path / "own.toml").write_text('machine = "fra-1"\n[exits.ring]\nurls = ["bind:127.0.0.2"]\n')
    monkeypatch.setenv(EXITS_VARIABLE, str(tmp_path / "own.toml"))
    async with loopback_site(graph(12)) as server:
        crawl = exit_crawl(Pooled, f"http://127.0.0.1:{server.port}/0")
        crawl.pool("ring", [common.url], per_exit=2)
        progress = await crawl.run()
        assert (progress.done, progress.dead) == (12, 0)
        assert {hit.peer for hit in server.requests} == {"127.0.0.2", "127.0.0.5"}
    assert set(await crawl.exits()) == {"ring/127.0.0.2@fra-1", f"ring/127.0.0.5:{common.port}"}


class Regional(Spider):
    """Its pages are those of a region."""

    region = "eu"
    rate = "30/s"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")


@pytest.mark.full
async def test_pages_do_not_pay_for_an_address_of_another_kind_than_their_hosts(
    exit_crawl: Callable[..., ExitCrawl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_address("::1"):
        pytest.skip("no IPv6 on this machine")
    monkeypatch.setenv(EXITS_VARIABLE, str(tmp_path / offer(tmp_path, "fra-1", "bind:127.0.0.2", "bind:[::1]")))
    async with loopback_site(graph(12)) as server:
        crawl = exit_crawl(Regional, f"http://127.0.0.1:{server.port}/0", max_attempts=1)
        progress = await crawl.run()
        assert (progress.done, progress.dead) == (12, 0)
        assert {hit.peer for hit in server.requests} == {"127.0.0.2"}
    exits = await crawl.exits()
    assert exits["region:eu/::1@fra-1"].rests_for > 0
