"""A page that kills its process, makes it hang or raises what nobody catches: it is given up, and no other page is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import SECONDS, Folder

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import wait_for_line, wait_until

PAGES = 60
BAD = "/g/7"
SEGFAULT = "os.kill(os.getpid(), signal.SIGSEGV)"
# A mutex that is locked twice: no signal wakes it, and PyDLL keeps the interpreter's lock meanwhile.
HANG = "c = ctypes.PyDLL(None); m = ctypes.create_string_buffer(64); c.pthread_mutex_lock(m); c.pthread_mutex_lock(m)"
SPIDER = """
import asyncio, ctypes, os, signal, sys, time
from shoal import Item, Request, Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "{rate}"
    settings = {settings!r}

    def parse(self, page):
        if page.url.endswith("{bad}"):
            {deed}
        yield Item(key=page.url)
        yield page.follow("a")
{more}
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path_factory.mktemp("site") / "hits.jsonl") as site:
        yield site


class Deadly:
    """A spider that does something deadly on one page of the graph."""

    def __init__(self, folder: Folder, site: SiteProcess) -> None:
        self.folder = folder
        self.bad = site.url.rstrip("/").removesuffix("/g/0") + BAD
        self._url = site.url

    def spider(self, deed: str, *, more: str = "", rate: str = "unlimited", **settings: Any) -> str:
        always = {"allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64, "max_attempts": 1}
        text = SPIDER.format(
            url=self._url,
            rate=rate,
            bad=BAD,
            deed=deed,
            more=more,
            settings={**always, "retry_seconds": 0.05, **settings},
        )
        (self.folder.path / "graph.py").write_text(text)
        return "graph.py"

    def run(self, *arguments: str) -> tuple[Any, str]:
        """The summary of a run that ends with 0, and what was said."""
        result = self.folder.run("run", "graph.py", "--json", *arguments)
        return json.loads(result.stdout), result.stderr

    def letters(self, *arguments: str) -> list[tuple[str, str]]:
        found = self.folder.json("dead", "list", "graph-1", *arguments)
        return [(letter["url"], letter["reason"]) for letter in found]


@pytest.fixture
def deadly(folder: Folder, graph: SiteProcess) -> Deadly:
    return Deadly(folder, graph)


def worker_of(supervisor: int) -> int:
    """The process that works under a supervisor."""
    children = wait_until(lambda: psutil.Process(supervisor).children(), otherwise="it has no worker")
    return int(children[0].pid)


@pytest.mark.parametrize(
    ("deed", "workers", "cause"),
    [
        (SEGFAULT, "1", "SIGSEGV"),
        pytest.param(SEGFAULT, "2", "SIGSEGV", marks=pytest.mark.full),
        ("os._exit(1)", "1", "os._exit(1)"),
        ("os._exit(0)", "2", "os._exit(0)"),
    ],
)
def test_a_page_that_kills_its_process_is_the_only_one_given_up(
    deadly: Deadly, deed: str, workers: str, cause: str
) -> None:
    deadly.spider(deed)
    summary, said = deadly.run("--workers", workers)
    assert (summary["done"], summary["dead"], summary["items"], summary["pages"]) == (PAGES - 1, 1, PAGES - 1, PAGES)
    assert deadly.letters() == [(deadly.bad, f"worker lost: {cause}")]
    assert (
        f"ended with {cause}; its tasks are queued again, a new one starts; its handler parse was on {deadly.bad}"
        in said
    )


@pytest.mark.full
def test_a_dead_letter_that_is_queued_again_kills_nobody_else(deadly: Deadly) -> None:
    deadly.spider(SEGFAULT)
    first, _ = deadly.run()
    deadly.folder.run("dead", "requeue", "graph-1")
    deadly.folder.json("add", "graph-1", *(f"{deadly.bad}?more={number}" for number in range(20)))
    summary, _ = deadly.run()
    assert (summary["done"], summary["dead"], summary["lost"] - first["lost"]) == (PAGES + 19, 1, 1)
    assert deadly.letters() == [(deadly.bad, "worker lost: SIGSEGV")]


@pytest.mark.full
def test_a_page_that_kills_its_process_is_given_up_on_redis_as_well(deadly: Deadly, redis: RedisServer) -> None:
    deadly.spider(SEGFAULT)
    place = ("--frontier", redis.url)
    summary, _ = deadly.run(*place)
    assert (summary["done"], summary["dead"]) == (PAGES - 1, 1)
    assert deadly.letters(*place) == [(deadly.bad, "worker lost: SIGSEGV")]


# Slow because nothing but its silence tells that a worker hangs.
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.full)])
def test_a_page_on_which_a_handler_blocks_in_c_is_named_and_given_up(deadly: Deadly, workers: str) -> None:
    deadly.spider(HANG, handler_seconds=0.2)
    summary, said = deadly.run("--workers", workers)
    assert (summary["done"], summary["dead"]) == (PAGES - 1, 1)
    ((url, reason),) = deadly.letters()
    assert (url, reason.startswith("worker lost: silent for ")) == (deadly.bad, True)
    assert f"its handler parse sits on {deadly.bad}" in said


def test_whatever_handlers_raise_ends_their_pages_and_no_worker(deadly: Deadly) -> None:
    more = """
        for number, handler in ((11, self.plain), (12, self.waits), (13, self.streams)):
            if page.url.endswith("/g/0"):
                yield Request(f"/g/{number}", handler=handler, key=f"odd {number}")

    def plain(self, page):
        raise KeyboardInterrupt

    async def waits(self, page):
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def streams(self, page):
        yield Item(key="never stored")
        raise BaseException("panic")
"""
    deadly.spider("raise KeyboardInterrupt('mine')", more=more)
    summary, said = deadly.run()
    assert (summary["done"], summary["dead"], summary["lost"]) == (PAGES - 1, 4, 0)
    gave_up = "handler: HandlerGaveUp: the handler raised"
    assert sorted(reason for _, reason in deadly.letters()) == [
        f"{gave_up} BaseException: panic",
        f"{gave_up} KeyboardInterrupt",
        f"{gave_up} KeyboardInterrupt: mine",
        f"{gave_up} SystemExit: 3",
    ]
    assert "a new one starts" not in said


# More than six seconds: a handler blocks for two leases, in a real worker beside another.
@pytest.mark.full
@pytest.mark.parametrize("frontier", ["sqlite", "redis"])
def test_leases_are_renewed_while_a_handler_takes_longer_than_they_last(
    deadly: Deadly, frontier: str, redis: RedisServer
) -> None:
    deadly.spider("time.sleep(6)", lease_seconds=3.0, handler_seconds=20.0)
    place = ("--frontier", redis.url) if frontier == "redis" else ()
    summary, _ = deadly.run("--workers", "2", *place)
    assert (summary["done"], summary["dead"], summary["lost"]) == (PAGES, 0, 0)


def test_a_lone_worker_that_dies_is_replaced_by_its_guardian(deadly: Deadly) -> None:
    name = deadly.spider("os._exit(1)", rate="20/s")
    with deadly.folder.start("run", name) as process:
        deadly.folder.wait_for_pages(3, crawl="graph-1")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    said = deadly.folder.run("worker", name, "--burst", "--crawl", "graph-1").stderr
    assert (
        "the worker ended with os._exit(1); its tasks are queued again, a new one starts;"
        f" its handler parse was on {deadly.bad}" in said
    )
    assert deadly.letters() == [(deadly.bad, "worker lost: os._exit(1)")]


@pytest.mark.full
def test_a_killed_worker_of_a_run_is_replaced_and_a_killed_guardian_takes_it_along(deadly: Deadly) -> None:
    name = deadly.spider("pass", rate="20/s")
    with deadly.folder.start("run", name) as process:
        deadly.folder.wait_for_pages(3, crawl="graph-1")
        os.kill(worker_of(process.pid), signal.SIGKILL)
        wait_for_line(process.stderr, "the worker ended with SIGKILL; its tasks are queued again, a new one starts")
        deadly.folder.wait_for_pages(10, crawl="graph-1")
        worker = worker_of(process.pid)
        process.kill()
        process.communicate(timeout=SECONDS)
    wait_until(lambda: not psutil.pid_exists(worker) or is_over(worker), otherwise="the worker outlives its supervisor")
    deadly.spider("pass")
    summary, _ = deadly.run()
    assert (summary["done"], summary["dead"]) == (PAGES, 0)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_replaced_a_dead_one_hears_signals(deadly: Deadly, number: signal.Signals) -> None:
    name = deadly.spider("pass", rate="5/s")
    with deadly.folder.start("run", name) as process:
        deadly.folder.wait_for_pages(3, crawl="graph-1")
        os.kill(worker_of(process.pid), signal.SIGKILL)
        wait_for_line(process.stderr, "the worker ended with SIGKILL; its tasks are queued again, a new one starts")
        deadly.folder.wait_for_pages(8, crawl="graph-1")
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopping: finishing pages in hand" in err
    assert "run the same command again to resume" in out


def test_items_are_not_written_to_standard_output_twice(deadly: Deadly) -> None:
    more = """
        if page.url.endswith("/g/0"):
            yield Item(key="more than a pipe holds", text="x" * 1_000_000)
"""
    name = deadly.spider("pass", more=more)
    with deadly.folder.start("run", name, "-o", "-") as process:
        assert process.stdout is not None
        begun = process.stdout.read(1)
        os.kill(worker_of(process.pid), signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "the worker ended with SIGKILL while it wrote to standard output, which is incomplete" in err
    written = (begun + out).splitlines()
    assert len(written) == len(set(written)) <= PAGES
    whole = deadly.folder.run("run", name, "-o", "-").stdout.splitlines()
    assert len(whole) == PAGES + 1


def is_over(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.full
def test_a_run_ends_also_where_the_ends_of_children_are_ignored(deadly: Deadly) -> None:
    """As inherited from a program that does not want to hear of its children."""
    name = deadly.spider("pass")
    with deadly.folder.start("run", name, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) as process:
        out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, f"{PAGES} pages" in out) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_process_group_asks_once(deadly: Deadly, number: signal.Signals) -> None:
    name = deadly.spider("pass", rate="20/s")
    with deadly.folder.start("run", name, start_new_session=True) as process:
        deadly.folder.wait_for_pages(3, crawl="graph-1")
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopping: finishing pages in hand" in err
    assert "stopping at once" not in err
    assert "run the same command again to resume" in out
