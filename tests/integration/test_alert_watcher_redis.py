"""Watchmen in processes of their own over one Redis: one has the duty, and when it is killed another one has it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from shoal.duties.alerts.state import Notes, read_notes
from shoal.duties.alerts.watcher import DUTY
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import DUTIES
from shoal.model import Crawl, Dead, DeadFilter
from shoal.testing.fakes import task_for
from shoal.testing.servers.http_receiver import HttpReceiver, http_receiver
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually, wait_until

HEADER = 18  # of a duty's record: since, until, the length of the holder's name
WATCHMAN = """
import asyncio, sys

from shoal.frontier import open_frontier
from shoal.duties.alerts.config import AlertConfig, AlertRules, Target
from shoal.duties.alerts.watcher import AlertWatcher

async def watch(frontier_url, hook):
    target = Target(name="ops", kind="webhook", url=hook)
    config = AlertConfig(rules=AlertRules(dead_letters=0), targets=(target,), every=0.2, hold=0.0)
    await AlertWatcher(config, frontier=await open_frontier(frontier_url), say=print).run()

asyncio.run(watch(*sys.argv[1:]))
"""


@pytest.fixture
async def frontier(redis: RedisServer) -> AsyncIterator[Frontier]:
    opened = await open_frontier(redis.url)
    yield opened
    await opened.close()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        yield running


@pytest.fixture
def watchers(redis: RedisServer, receiver: HttpReceiver) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Two processes, by their ids."""
    command = [sys.executable, "-c", WATCHMAN, redis.url, receiver.url]
    with ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen(command)) for _ in range(2)]
        for process in running:
            stack.callback(process.kill)
        yield {process.pid: process for process in running}


def holder(redis: RedisServer) -> int:
    """The process that has the duty, 0 before anyone has."""
    record = redis.call("HGET", DUTIES + "held", DUTY)
    length = int.from_bytes(record[16:HEADER]) if record else 0
    return int(record[HEADER : HEADER + length].partition(b"-")[0] or 0) if length else 0


def told(receiver: HttpReceiver) -> list[tuple[str, str]]:
    messages = [json.loads(request.body) for request in receiver.received]
    return [(message["crawl"], message["state"]) for message in messages]


async def add_dead_letter(frontier: Frontier, crawl: str) -> None:
    await frontier.open_crawl(Crawl(id=crawl, spider="s", interval=0.0, created=1.0))
    await frontier.put(crawl, [task_for("https://a.test/1"), task_for("https://a.test/2")])
    (lease,) = (await frontier.lease([crawl], 1, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Dead(lease=lease, reason="http_500")])


async def noted(frontier: Frontier) -> Notes | None:
    """What the holder has noted, once nothing waits to be sent: killed before, the next one would send it again."""
    _, data, _ = await frontier.hold_duty(DUTY, "nobody", seconds=0.0)
    notes = read_notes(data)
    return notes if notes.alerts and not notes.queues["ops"].messages else None


async def test_when_the_one_that_has_the_duty_is_killed_another_one_tells_and_only_once(
    redis: RedisServer, frontier: Frontier, receiver: HttpReceiver, watchers: dict[int, subprocess.Popen[bytes]]
) -> None:
    first = await asyncio.to_thread(wait_until, lambda: holder(redis), otherwise="nobody took the duty")
    (second,) = watchers.keys() - {first}
    await add_dead_letter(frontier, "before")
    await eventually(lambda: noted(frontier))
    assert told(receiver) == [("before", "firing")]

    os.kill(first, signal.SIGKILL)
    watchers[first].wait()
    await add_dead_letter(frontier, "after")
    # The duty of the one that was killed runs out first.
    await eventually(lambda: len(told(receiver)) > 1)
    assert holder(redis) == second
    await eventually(lambda: noted(frontier))
    for crawl in ("before", "after"):
        await frontier.drop_dead(crawl, DeadFilter())
    await eventually(lambda: len(told(receiver)) > 3)
    assert told(receiver)[:2] == [("before", "firing"), ("after", "firing")]
    assert sorted(told(receiver)[2:]) == [("after", "over"), ("before", "over")]


@pytest.mark.full
async def test_two_of_them_have_one_duty(
    redis: RedisServer, frontier: Frontier, receiver: HttpReceiver, watchers: dict[int, subprocess.Popen[bytes]]
) -> None:
    first = await asyncio.to_thread(wait_until, lambda: holder(redis), otherwise="nobody took the duty")
    for number in range(5):
        await add_dead_letter(frontier, f"crawl-{number}")
        await eventually(lambda wanted=number + 1: len(told(receiver)) >= wanted)
    await eventually(lambda: noted(frontier))
    assert sorted(told(receiver)) == [(f"crawl-{number}", "firing") for number in range(5)]
    assert holder(redis) == first
    assert all(process.poll() is None for process in watchers.values())
