"""More hosts than descriptors: every page is fetched, nobody is blamed for what this machine lacks, and it is said."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

pytestmark = pytest.mark.full

SECONDS = 50.0  # less than the rest of a lane whose robots.txt failed
LIMIT = 256
LIMITED = """
import resource, runpy, sys
limit, highest = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, highest))
sys.argv = ["shoal", *sys.argv[3:]]
runpy.run_module("shoal", run_name="__main__")
"""
SPIDER = """
import os, resource
from shoal import Item, Spider

class Hosts(Spider):
    start = {urls}
    allow_private = True
    rate = "unlimited"
    pace = "fixed"

    async def started(self):
        print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        held = len(os.listdir("/dev/fd"))
        self.files = [os.open(os.devnull, os.O_RDONLY) for _ in range({free} and {limit} - {free} - held)]

    def parse(self, page):
        yield Item(key=page.url)
"""


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:

    def answer(request: Request) -> Reply:
        return reply("User-agent: *\nDisallow: /private\n", kind="text/plain", delay=0.02)

    # All of 127.0.0.0/8 is this machine, and each address a host of its own.
    server = LoopbackServer(answer=answer, hosts=("0.0.0.0",))
    await server.start()
    yield server
    await server.close()


async def crawl(
    folder: Path, server: LoopbackServer, *flags: str, hosts: int, free: int = 0, highest: int = LIMIT
) -> tuple[Any, str]:
    """The summary of a crawl of so many hosts, and what was said. All but `free` descriptors are taken, if told so."""
    urls = [f"http://127.1.{number // 250}.{1 + number % 250}:{server.port}/" for number in range(hosts)]
    (folder / "hosts.py").write_text(SPIDER.format(urls=urls, free=free, limit=LIMIT))
    command = [sys.executable, "-c", LIMITED, str(LIMIT), str(highest), "run", "hosts.py", "--json", *flags]
    said = folder / "said.txt"
    with said.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        pytest.fail(f"not done within {SECONDS:g} s; it said:\n{said.read_text()}")
    assert process.returncode == 0, said.read_text()
    return json.loads(out), said.read_text()


def robots_asked(server: LoopbackServer) -> int:
    return sum(hit.path == "/robots.txt" for hit in server.requests)


async def test_more_hosts_than_descriptors_are_crawled_within_the_limit(server: LoopbackServer, tmp_path: Path) -> None:
    summary, said = await crawl(tmp_path, server, hosts=2 * LIMIT)
    assert summary["outcomes"] == {"ok": 2 * LIMIT}
    assert (summary["retried"], summary["rejected"]) == (0, {})
    assert "open files" not in said
    assert robots_asked(server) == 2 * LIMIT
    assert server.peak_connections < LIMIT


async def test_more_pages_at_once_than_there_are_descriptors_for_are_not_begun_and_that_is_said(
    server: LoopbackServer, tmp_path: Path
) -> None:
    summary, said = await crawl(tmp_path, server, "--concurrency", "400", hosts=LIMIT)
    assert summary["outcomes"] == {"ok": LIMIT}
    assert summary["retried"] == 0
    assert "open files: 96 pages at once instead of 400, as 256 allow; raise the limit with ulimit -n" in said
    assert server.peak_connections < LIMIT


@pytest.mark.parametrize("free", [4, 12])
async def test_a_shortage_costs_a_page_a_moment_and_is_said(server: LoopbackServer, tmp_path: Path, free: int) -> None:
    summary, said = await crawl(tmp_path, server, hosts=80, free=free)
    assert summary["outcomes"] == {"ok": 80}
    assert (summary["retried"], summary["rejected"]) == (0, {})
    assert f"open files: all {LIMIT} are in use: raise the limit with ulimit -n" in said


async def test_a_limit_that_may_be_raised_is_raised(server: LoopbackServer, tmp_path: Path) -> None:
    _, said = await crawl(tmp_path, server, "--concurrency", "400", hosts=5, highest=2 * LIMIT)
    assert f"limit {2 * LIMIT}" in said
