"""`shoal advise` in the situations people are in: a clear answer in a line or a few, never more certain than it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from command_line import Folder

from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState, Heartbeat
from shoal.testing.fakes import task_for
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_until

MOST_LINES = 8


def in_frontier(folder: Folder, deed: Callable[[Frontier], Awaitable[None]]) -> None:
    """Do something in the folder's frontier."""

    async def go() -> None:
        frontier = await open_frontier(str(folder.path / "shoal.db"))
        try:
            await deed(frontier)
        finally:
            await frontier.close()

    asyncio.run(go())


async def begin(frontier: Frontier, crawl: str = "books-1", *, pages: int = 10) -> None:
    await frontier.open_crawl(Crawl(id=crawl, spider=crawl.rpartition("-")[0], interval=1.0, cap=8, created=1.0))
    await frontier.put(crawl, [task_for(f"https://a.test/{number}") for number in range(pages)])


async def beat(frontier: Frontier, crawl: str = "books-1", *, worker: str = "w1") -> None:
    """A heartbeat from a worker on another machine."""
    await frontier.beat(
        Heartbeat(worker=worker, crawl=crawl, host="h", pid=1, version="0", slots=8, machine="elsewhere", cores=2)
    )


def answer(folder: Folder, *arguments: str) -> list[str]:
    lines = folder.run("advise", "--for", "1", *arguments).stdout.splitlines()
    assert 0 < len(lines) <= MOST_LINES
    return lines


def test_before_there_is_a_crawl(folder: Folder) -> None:
    assert "there is no shoal.db here" in folder.refusal("advise")


def test_a_crawl_without_a_worker(folder: Folder) -> None:
    in_frontier(folder, begin)
    (line,) = answer(folder)
    assert line.startswith("no worker works on books-1: repeat the command that began it, or start `shoal worker`")


def test_a_crawl_that_has_just_begun(folder: Folder) -> None:
    async def go(frontier: Frontier) -> None:
        await begin(frontier)
        await beat(frontier)

    in_frontier(folder, go)
    (line,) = answer(folder)
    assert line.startswith("no page of books-1 was finished in 1 s, too short a time to say what would help")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (CrawlState.PAUSED, "books-1 is paused: no worker is needed before `shoal resume books-1`"),
        (CrawlState.CANCELLED, "books-1 is cancelled: no worker is needed"),
    ],
)
def test_a_crawl_that_does_not_run(folder: Folder, state: CrawlState, line: str) -> None:
    async def go(frontier: Frontier) -> None:
        await begin(frontier)
        await beat(frontier)
        await frontier.set_state("books-1", state)

    in_frontier(folder, go)
    assert answer(folder, "books-1") == [line]
    first, second = answer(folder, "books-1", "--deadline", "1h")
    assert first == line
    assert second.startswith("within 1h, for the ")
    assert second.endswith(f" known now: nothing is reckoned: the crawl is {state}")


def test_a_finished_crawl(folder: Folder) -> None:
    in_frontier(folder, lambda frontier: begin(frontier, pages=0))
    assert answer(folder)[0].startswith("books-1 ")
    assert answer(folder)[0].endswith(": no worker is needed")


def test_two_crawls(folder: Folder) -> None:
    async def go(frontier: Frontier) -> None:
        await begin(frontier)
        await begin(frontier, "news-1")

    in_frontier(folder, go)
    line = folder.refusal("advise")
    assert "several crawls are unfinished: name one of" in line
    assert answer(folder, "news")[0].startswith("no worker works on news-1")


def test_a_name_that_no_crawl_has(folder: Folder) -> None:
    in_frontier(folder, begin)
    assert "there is no crawl 'boks'; did you mean books?" in folder.refusal("advise", "boks")


def test_a_frontier_that_is_away(folder: Folder) -> None:
    line = folder.refusal("advise", "--frontier", f"redis://127.0.0.1:{free_port()}/0", code=3)
    assert "cannot reach Redis" in line


@pytest.mark.full
def test_a_frontier_that_goes_away_while_it_is_measured(folder: Folder) -> None:
    server = RedisServer(folder.path / "redis").start()

    async def go() -> None:
        frontier = await open_frontier(server.url)
        await begin(frontier)
        await beat(frontier)
        await frontier.close()

    try:
        asyncio.run(go())
        with folder.start("advise", "--frontier", server.url, "--for", "8") as process:
            wait_until(lambda: is_idle(server), otherwise="it did not begin to measure", pause=0.1)
            server.kill()
            out, err = process.communicate(timeout=120)
    finally:
        server.kill()
    assert process.returncode == 3, err
    assert out == ""
    assert "Redis" in err.splitlines()[-1]


def is_idle(server: RedisServer) -> bool:
    """Whether a client has read the crawl, and has asked nothing for a second or more."""
    clients = [line for line in server.call("CLIENT", "LIST").decode().splitlines() if "idle=0 " not in line]
    return any("cmd=client" not in line and "cmd=NULL" not in line for line in clients)


def test_for_scripts_every_answer_has_one_form(folder: Folder) -> None:
    in_frontier(folder, begin)
    told = json.loads(folder.run("advise", "--for", "1", "--deadline", "1h", "--json").stdout)
    assert (told["advice"]["workers"], told["advice"]["workers_wanted"]) == (0, 1)
    assert (told["plan"]["workers"], told["plan"]["why"]) == (
        None,
        "not known: no worker is at work that could be measured",
    )
    without = json.loads(folder.run("advise", "--for", "1", "--json").stdout)
    assert without["plan"] is None
    assert without["advice"] == told["advice"]


@pytest.mark.parametrize("text", ["yesterday", "0s", "-1h"])
def test_a_deadline_that_is_none(folder: Folder, text: str) -> None:
    in_frontier(folder, begin)
    assert text in folder.refusal("advise", f"--deadline={text}")
