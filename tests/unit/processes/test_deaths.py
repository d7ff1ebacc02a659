"""When a process that died is replaced, and how one that hangs is told from one that was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from shoal.duties.alerts.config import AlertRules
from shoal.duties.alerts.rules import WatchedCrawl, findings_of
from shoal.frontier.rules.constants import SUSPECT_LOSSES
from shoal.model import Crawl, CrawlState, Heartbeat, Lease, Progress, Task
from shoal.testing.clock import FakeClock
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.waiting import wait_until
from shoal.worker.black_box import BlackBox, Reading, RunningPage
from shoal.worker.deaths import (
    MOST_DEATHS,
    Death,
    HangDetector,
    Pulse,
    RestartBackoff,
    Watched,
    death_of,
    evict,
    longest_silence,
    reclaim_former,
    sign_off,
)
from shoal.worker.fleet import Fleet
from shoal.worker.machine import is_stopped, this_machine
from shoal.worker.workers import Presence, workers_of

DEAD_PID = 2**22 + 1  # above what the system gives
PAGE = RunningPage("w", 7, "parse", "https://a.test/bad", is_current=True)


def reading(*, moves: int = 1, patience: float | None = 30.0, running: tuple[RunningPage, ...] = (PAGE,)) -> Reading:
    empty = BlackBox.private().read()
    return empty._replace(moves=moves, patience=patience, running=running, workers=("w",))


def test_a_worker_that_settled_pages_is_replaced_soon_however_often_it_dies() -> None:
    backoff = RestartBackoff()
    assert [backoff.after(Death("SIGKILL", ("w",), settled=1), lived=1.0) for _ in range(20)] == [0.5] * 20


def test_the_pause_grows_only_while_workers_die_at_once() -> None:
    backoff, barren = RestartBackoff(), Death("SIGKILL", ("w",))
    assert [backoff.after(barren, lived=1.0) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert backoff.after(barren, lived=100.0) == 0.5
    assert backoff.after(barren, lived=1.0) == 0.5
    assert None in [backoff.after(barren, lived=1.0) for _ in range(20)]


def test_a_page_that_kills_each_worker_is_tried_without_a_growing_pause_and_not_for_ever() -> None:
    backoff, on_page = RestartBackoff(), Death("SIGSEGV", ("w",), (PAGE,))
    pauses = [backoff.after(on_page, lived=1.0) for _ in range(MOST_DEATHS)]
    assert pauses == [0.5] * (MOST_DEATHS - 1) + [None]


@pytest.mark.parametrize(
    ("code", "has_ended", "moves", "cause"),
    [
        (-signal.SIGSEGV, False, 5, "SIGSEGV"),
        (-signal.SIGKILL, False, 0, "SIGKILL"),
        (1, False, 5, "os._exit(1)"),
        (0, False, 5, "os._exit(0)"),
        (1, True, 5, None),
        (2, False, 0, None),  # it never came to work: its code says why
    ],
)
def test_a_code_without_word_of_an_orderly_end_is_a_death(
    code: int, *, has_ended: bool, moves: int, cause: str | None
) -> None:
    death = death_of(code, reading(moves=moves)._replace(has_ended=has_ended))
    assert (death and death.cause) == cause


def test_silence_counts_only_while_nobody_is_stopped() -> None:
    pulse = Pulse()
    for _ in range(4):
        pulse.add(reading(), elapsed=1.0)
    assert pulse.silent == 3.0
    pulse.add(reading(), elapsed=1.0, is_stopped=True)
    pulse.add(reading(), elapsed=3600.0)  # the one who looks was stopped
    assert pulse.silent < 10.0
    pulse.add(reading(moves=2), elapsed=1.0)
    assert pulse.silent == 0.0


def test_a_silent_process_is_named_with_its_page_and_then_counts_as_hung() -> None:
    said: list[str] = []
    detector = HangDetector("worker 2", say=said.append)
    causes = [detector.check(reading(), elapsed=1.0, is_stopped=lambda: False) for _ in range(60)]
    assert said == ["worker 2 is silent for 10 s: its handler parse sits on https://a.test/bad"]
    assert next(filter(None, causes)) == "silent for 45 s"


def test_a_handler_without_deadline_is_never_hung_but_named() -> None:
    said: list[str] = []
    detector = HangDetector("worker 2", say=said.append)
    assert not any(detector.check(reading(patience=0.0), elapsed=1.0, is_stopped=lambda: False) for _ in range(900))
    assert len(said) == 1


def test_what_is_no_handler_may_hold_the_loop_for_longer() -> None:
    assert (longest_silence(reading()), longest_silence(reading(running=()))) == (45.0, 450.0)
    assert longest_silence(reading(patience=None)) is None


def test_a_stopped_process_is_told_from_one_that_hangs() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), otherwise="it was not stopped")
        os.kill(process.pid, signal.SIGCONT)
        process.kill()


async def test_a_worker_that_died_under_a_living_guardian_is_gone_at_once() -> None:
    frontier = MemoryFrontier(clock=time.time)
    await frontier.open_crawl(Crawl(id="c", spider="s"))
    dead = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await dead.wait()
    for name in ("former", "present"):
        beat = Heartbeat(worker=name, crawl="c", host="h", pid=os.getpid(), version="0", slots=8, busy=8, pages=3)
        await frontier.beat(msgspec.structs.replace(beat, machine=this_machine()))
    watched = Watched(BlackBox.private(), (Death("SIGSEGV", ("former",), pid=dead.pid),))
    await reclaim_former(watched, frontier=frontier, say=print)
    crew = {
        member.beat.worker: (member.presence, member.beat.busy) for member in await workers_of("c", frontier=frontier)
    }
    assert crew == {"former": (Presence.GONE, 0), "present": (Presence.WORKING, 8)}


DIES_ONCE = "import os, sys; sys.argv[1] == 'w' and os.kill(os.getpid(), 9)"


async def test_a_worker_of_a_fleet_that_is_replaced_counts_as_lost() -> None:
    frontier, named = MemoryFrontier(clock=time.time), list[str]()
    await frontier.open_crawl(Crawl(id="c", spider="s"))

    def command(name: str, _: int) -> list[str]:
        named.append(name)
        return [sys.executable, "-c", DIES_ONCE, name]

    async def reclaim(name: str, death: Death) -> None:
        beat = Heartbeat(worker=name, crawl="c", host="h", pid=DEAD_PID, version="0", slots=8, busy=8)
        await frontier.beat(msgspec.structs.replace(beat, machine=this_machine()))
        await evict(name, death, frontier=frontier, say=print)
        await sign_off({name: death.pid}, frontier=frontier)

    fleet = Fleet(["w"], command=command, environment=dict(os.environ), reclaim=reclaim, say=print, grace_seconds=1.0)
    await fleet.run(asyncio.Event())
    assert named == ["w", "w.2"]
    beat = Heartbeat(worker="w.2", crawl="c", host="h", pid=os.getpid(), version="0", slots=8, busy=1)
    await frontier.beat(msgspec.structs.replace(beat, machine=this_machine()))
    crew = await workers_of("c", frontier=frontier)
    assert {member.beat.worker: (member.presence, member.beat.busy) for member in crew} == {
        "w": (Presence.GONE, 0),
        "w.2": (Presence.WORKING, 1),
    }
    progress = Progress(state=CrawlState.RUNNING, queued=1)
    watched = WatchedCrawl(crawl=Crawl(id="c", spider="s"), progress=progress, now=time.time(), crew=crew)
    (finding,) = findings_of(watched, AlertRules(worker_lost=600.0))
    assert finding.text == "c: 1 worker lost in the last 10 minutes: w"


async def test_a_death_blames_no_page_of_another_crawl_whose_lease_has_the_same_token() -> None:
    frontier = MemoryFrontier(clock=FakeClock())
    lent: dict[str, Lease] = {}
    for name in ("killer", "neighbour"):
        await frontier.open_crawl(Crawl(id=name, spider="s", pace_scope="crawl"))
        await frontier.put(name, [Task(url="https://a.test/", key=1, lane="a.test")])
        (lent[name],) = (await frontier.lease([name], 1, worker=name, seconds=60.0, horizon=0.0)).leases
    assert lent["killer"].token == lent["neighbour"].token
    page = PAGE._replace(worker="killer", token=lent["killer"].token)
    watched = Watched(BlackBox.private(), (Death("SIGSEGV", ("killer", "neighbour"), (page,)),))
    await reclaim_former(watched, frontier=frontier, say=print)
    losses = {name: (await frontier.look_up(name, 1)).losses for name in lent}
    assert losses == {"killer": SUSPECT_LOSSES, "neighbour": 1}
