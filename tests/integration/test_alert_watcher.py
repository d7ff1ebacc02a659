"""Watchmen over one frontier: one of them tells people, once, whatever dies in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from command_line import Folder

from shoal.duties.alerts.config import AlertConfig, AlertRules, Target
from shoal.duties.alerts.state import read_notes
from shoal.duties.alerts.watcher import DUTY, AlertWatcher, alerts_now
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState, Dead, DeadFilter, Done, Heartbeat, Point, Result
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.servers.http_receiver import HttpReceiver, http_receiver
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually, wait_until

PRODUCTS = 60
CONFIG = """
[alerts]
dead_letters = 0
every = "0.2s"
hold = "0s"

[[alerts.to]]
name = "ops"
webhook = "{url}"
"""


def config(url: str, *, hold: float = 0.0) -> AlertConfig:
    target = Target(name="ops", kind="webhook", url=url)
    return AlertConfig(rules=AlertRules(dead_letters=0), targets=(target,), every=0.2, hold=hold)


def told(receiver: HttpReceiver) -> list[str]:
    return [json.loads(request.body)["state"] for request in receiver.received]


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        yield running


@pytest.fixture
async def frontier(tmp_path: Path) -> AsyncIterator[Frontier]:
    opened = await open_frontier(str(tmp_path / "shoal.db"))
    yield opened
    await opened.close()


async def with_dead_letter(frontier: Frontier) -> None:
    await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, created=1.0))
    await frontier.put("c", [task_for("https://a.test/1"), task_for("https://a.test/2")])
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Dead(lease=lease, reason="http_500")])


async def test_it_fires_once_and_says_when_it_is_over(frontier: Frontier, receiver: HttpReceiver) -> None:
    await with_dead_letter(frontier)
    watcher = AlertWatcher(config(receiver.url), frontier=frontier, say=print)
    for _ in range(3):
        assert await watcher.look()
    (alert,) = await alerts_now(frontier)
    assert (alert.alert, alert.crawl, alert.is_firing) == ("dead_letters", "c", True)
    await frontier.drop_dead("c", DeadFilter())
    for _ in range(3):
        assert await watcher.look()
    assert told(receiver) == ["firing", "over"]
    assert await alerts_now(frontier) == []


async def test_two_watchmen_at_once_tell_people_once(
    tmp_path: Path, frontier: Frontier, receiver: HttpReceiver
) -> None:
    await with_dead_letter(frontier)
    beside = await open_frontier(str(tmp_path / "shoal.db"))
    try:
        watchers = [AlertWatcher(config(receiver.url), frontier=one, say=print) for one in (frontier, beside)]
        for _ in range(5):
            assert sorted(await asyncio.gather(*(watcher.look() for watcher in watchers))) == [False, True]
        await frontier.drop_dead("c", DeadFilter())
        await asyncio.gather(*(watcher.look() for watcher in watchers))
    finally:
        await beside.close()
    assert told(receiver) == ["firing", "over"]


async def test_a_watchman_that_ends_in_order_leaves_the_duty_to_the_next(
    frontier: Frontier, receiver: HttpReceiver
) -> None:
    await with_dead_letter(frontier)
    first, second = (AlertWatcher(config(receiver.url), frontier=frontier, say=print) for _ in range(2))
    assert await first.look()
    assert not await second.look()
    await first.finish(looks=False)
    assert await second.look()
    assert told(receiver) == ["firing"]


async def test_what_could_not_be_sent_is_sent_later_and_said_once() -> None:
    clock, said = FakeClock(), list[str]()
    frontier = MemoryFrontier(clock=clock, monotonic=clock.steady)
    await with_dead_letter(frontier)
    with http_receiver(lambda number: 503 if number <= 2 else 200) as receiver:
        watcher = AlertWatcher(config(receiver.url), frontier=frontier, say=said.append, clock=clock)
        for seconds in (1.0, 4.0, 5.0, 5.0, 20.0):
            await watcher.look()
            clock.advance(seconds)
        assert told(receiver) == ["firing"] * 3
    assert said == ["the alert dead_letters could not be sent to ops: it answered 503; trying again"]


async def test_a_message_that_was_on_its_way_when_its_watchman_died_is_sent_again() -> None:
    clock, answers = FakeClock(), threading.Event()
    frontier = MemoryFrontier(clock=clock, monotonic=clock.steady)
    await with_dead_letter(frontier)

    def answer(number: int) -> int:
        if number == 1:
            answers.wait(60)
        return 200

    with http_receiver(answer) as receiver:
        dying = asyncio.create_task(
            AlertWatcher(config(receiver.url), frontier=frontier, say=print, clock=clock).look()
        )
        await eventually(lambda: receiver.received)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        answers.set()
        second = AlertWatcher(config(receiver.url), frontier=frontier, say=print, clock=clock)
        assert not await second.look()
        clock.advance(60.0)
        assert await second.look()
        assert await second.look()
        assert told(receiver) == ["firing", "firing"]


async def test_alerts_of_a_crawl_that_is_gone_are_over(frontier: Frontier, receiver: HttpReceiver) -> None:
    await with_dead_letter(frontier)
    watcher = AlertWatcher(config(receiver.url, hold=0.0), frontier=frontier, say=print)
    await watcher.look()
    await frontier.set_state("c", CrawlState.CANCELLED)
    await frontier.delete_crawl("c")
    await watcher.look()
    assert told(receiver) == ["firing", "over"]


async def test_a_watchman_says_once_what_hinders_it(frontier: Frontier) -> None:
    said: list[str] = []

    class Broken(MemoryFrontier):
        async def crawls(self) -> list[Crawl]:
            raise RuntimeError("broken")

    clock = FakeClock()
    broken = Broken(clock=clock, monotonic=clock.steady)
    watcher = AlertWatcher(config("http://127.0.0.1:9"), frontier=broken, say=said.append)
    running = asyncio.create_task(watcher.run())
    await eventually(lambda: said)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert said == ["alerts: RuntimeError: broken; trying again"]


async def until_noted(path: Path) -> None:
    """Wait until the watcher has noted that its message was sent: killed before that, the next one sends it again."""
    frontier = await open_frontier(str(path))

    async def is_noted() -> bool:
        _, data, _ = await frontier.hold_duty(DUTY, "nobody", seconds=0.0)
        notes = read_notes(data)
        return bool(notes.alerts) and not notes.queues["ops"].messages

    try:
        await eventually(is_noted)
    finally:
        await frontier.close()


def test_a_run_that_is_killed_does_not_tell_people_twice(
    folder: Folder, site: SiteProcess, receiver: HttpReceiver
) -> None:
    (folder.path / "shoal.toml").write_text(CONFIG.format(url=receiver.url))
    spider = folder.spider(site.url, rate="1/s", first="raise ValueError('no')")
    with folder.start("run", spider, "--set", "max_attempts=1", start_new_session=True) as run:
        wait_until(lambda: receiver.received, otherwise="nobody was told")
        asyncio.run(until_noted(folder.path / "shoal.db"))
        os.killpg(run.pid, signal.SIGKILL)
    assert folder.json("alerts", "list")[0]["state"] == "fires"

    async def go_on() -> None:
        frontier = await open_frontier(str(folder.path / "shoal.db"))
        try:
            watcher = AlertWatcher(config(receiver.url), frontier=frontier, say=print)
            # The duty of the one that was killed runs out first.
            await eventually(watcher.look)
            await watcher.look()
            assert told(receiver) == ["firing"]
            await frontier.drop_dead("books-1", DeadFilter())
            await watcher.look()
        finally:
            await frontier.close()

    asyncio.run(go_on())
    assert told(receiver) == ["firing", "over"]


def test_a_run_tells_at_its_end_what_has_happened_in_it(
    folder: Folder, site: SiteProcess, receiver: HttpReceiver
) -> None:
    (folder.path / "shoal.toml").write_text(CONFIG.format(url=receiver.url).replace("0.2s", "1h"))
    first = "if page.text('h1').endswith('7'): raise ValueError('no')"
    folder.run("run", folder.spider(site.url, first=first), "--set", "max_attempts=1")
    assert told(receiver) == ["firing"]


class Night:
    """A crawl and its watcher, twenty seconds at a time."""

    def __init__(self, frontier: Frontier, clock: FakeClock, *, url: str) -> None:
        self.clock = clock
        self.frontier = frontier
        self._target = Target(name="ops", kind="webhook", url=url)

    async def begin(self, rules: AlertRules, *, tasks: int = 100) -> None:
        watched = AlertConfig(rules=rules, targets=(self._target,), every=10.0, hold=60.0)
        self.watcher = AlertWatcher(watched, frontier=self.frontier, say=print, clock=self.clock)
        await self.frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, cap=12, created=self.clock()))
        await self.put(0, tasks)

    async def put(self, first: int, number: int) -> None:
        await self.frontier.put("c", [task_for(f"https://a.test/{one}") for one in range(first, first + number)])

    async def pass_time(self, minutes: float, *, done: int = 0, dead: int = 0, beats: bool = True) -> None:
        """So many minutes, with as many pages done and dead every twenty seconds."""
        for _ in range(round(minutes * 3)):
            self.clock.advance(20.0)
            if beats:
                await self.frontier.beat(
                    Heartbeat(worker="w", crawl="c", host="h", pid=1, version="1", slots=1, machine="elsewhere")
                )
            batch = await self.frontier.lease(["c"], done + dead, worker="w", seconds=60.0, horizon=0.0)
            results: list[Result] = [Done(lease=lease) for lease in batch.leases[:done]]
            results += [Dead(lease=lease, reason="http_500") for lease in batch.leases[done:]]
            await self.frontier.settle(results)
            progress = await self.frontier.progress("c")
            counts = {name: getattr(progress, name) for name in COUNTED}
            point = Point(**counts, outcomes={}, fetch_times=(), received_bytes=0, workers=1, cost=0.0)
            await self.frontier.keep_point("c", point)
            await self.watcher.look()


@pytest.fixture
def night(receiver: HttpReceiver) -> Night:
    clock = FakeClock()
    return Night(MemoryFrontier(clock=clock, monotonic=clock.steady), clock, url=receiver.url)


COUNTED = ("queued", "delayed", "leased", "done", "dead", "retried", "lost")


async def test_a_crawl_that_stands_still_is_told_and_so_is_its_going_on(night: Night, receiver: HttpReceiver) -> None:
    await night.begin(AlertRules(no_progress=600.0))
    await night.pass_time(5, done=2)
    await night.pass_time(9)
    assert told(receiver) == []
    await night.pass_time(4)
    assert told(receiver) == ["firing"]
    await night.pass_time(3, done=2)
    assert told(receiver) == ["firing", "over"]


async def test_a_wave_of_errors_is_told_and_so_is_its_end(night: Night, receiver: HttpReceiver) -> None:
    await night.begin(AlertRules(error_share=0.2, error_window=300.0), tasks=620)
    await night.pass_time(6, done=9, dead=1)
    assert told(receiver) == []
    await night.pass_time(4, done=5, dead=5)
    assert told(receiver) == ["firing"]
    await night.pass_time(10, done=9, dead=1)
    assert told(receiver) == ["firing", "over"]


async def test_a_queue_that_grows_is_told(night: Night, receiver: HttpReceiver) -> None:
    await night.begin(AlertRules(queue_growing=600.0))
    for minute in range(13):
        await night.put(10_000 + 10 * minute, 10)
        await night.pass_time(1, done=1)
    assert told(receiver) == ["firing"]
    await night.pass_time(6, done=8)
    assert told(receiver) == ["firing", "over"]


async def test_a_worker_that_vanishes_is_told_and_it_is_over_when_it_is_back(
    night: Night, receiver: HttpReceiver
) -> None:
    await night.begin(AlertRules(worker_lost=1200.0))
    await night.pass_time(2, done=1)
    await night.pass_time(3, beats=False)
    assert told(receiver) == ["firing"]
    await night.pass_time(3)
    assert told(receiver) == ["firing", "over"]


async def test_an_alert_that_nobody_can_be_told_of_is_said_when_it_is_given_up(frontier: Frontier) -> None:
    await with_dead_letter(frontier)
    said: list[str] = []
    clock = FakeClock()
    nobody = config("http://127.0.0.1:9/nobody")
    watcher = AlertWatcher(nobody, frontier=frontier, say=said.append, clock=clock)
    for _ in range(30):
        await watcher.look()
        clock.advance(3600.0)
    assert [line.partition(":")[0] for line in said] == [
        "the alert dead_letters could not be sent to ops",
        "the alert dead_letters is given up",
    ]
