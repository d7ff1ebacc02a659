"""Waiting for a server: said once, however many parts of a process wait."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import ServerUnreachable, StorageError
from shoal.testing.clock import FakeClock
from shoal.testing.waiting import eventually
from shoal.worker.outages import QUIET_SECONDS, SLOW_SECONDS, Outage, Outages, SaidOnce, is_outage, until_reachable

GONE = "cannot reach Redis at redis://host/0"


def test_parts_that_wait_for_one_server_say_so_once() -> None:
    said, now = list[str](), [0.0]
    say = SaidOnce(said.append, clock=lambda: now[0])
    for line in (f"{GONE}: refused; waiting", f"{GONE}: closed; waiting", "Redis is at maxmemory: raise it; waiting"):
        say(line)
    assert said == [f"{GONE}: refused; waiting", "Redis is at maxmemory: raise it; waiting"]
    now[0] = QUIET_SECONDS + 1
    say(f"{GONE}: refused; waiting")
    assert len(said) == 3


def test_other_lines_are_all_said() -> None:
    said: list[str] = []
    say = SaidOnce(said.append)
    for _ in range(2):
        say("worker a ended with SIGKILL")
    assert len(said) == 2


def test_a_trouble_that_several_workers_meet_is_said_once() -> None:
    said, now = list[str](), [0.0]
    say = SaidOnce(said.append, clock=lambda: now[0])
    refused = "login refused: shop/anna: the spider's login returned False"
    for line in (refused, refused, "proxy ring/x is down: connection refused", refused):
        say(line)
    assert said == [refused, "proxy ring/x is down: connection refused"]


def test_what_is_waited_for_is_known_for_a_minute() -> None:
    now = [0.0]
    say = SaidOnce(print, clock=lambda: now[0])
    assert say.waiting() == ""
    say(f"{GONE}: refused; waiting")
    say("another line")
    assert say.waiting() == f"{GONE}: refused; waiting"
    now[0] = QUIET_SECONDS + 1
    assert say.waiting() == ""


def test_an_outage_says_for_how_long_and_why() -> None:
    clock = FakeClock()
    outage = Outage("the store", clock=clock)
    assert outage.line == ""
    outage.begin(ServerUnreachable(f"{GONE}: refused"))
    clock.advance(12.0)
    outage.begin(ServerUnreachable(f"{GONE}: refused"))
    assert outage.line == f"the store: waiting for 12 s: {GONE}: refused"
    outage.end()
    assert is_outage(outage.line)
    outage.end()
    assert outage.line == ""
    outage.begin(StorageError("shoal.db: the disk is full; make room"))
    assert outage.line == "the disk of the store is full: waiting for 0 s: shoal.db: the disk is full; make room"
    assert is_outage(outage.line)


async def test_a_server_that_does_not_answer_is_an_outage_without_an_error() -> None:
    clock, answer = FakeClock(), asyncio.Event()
    outage = Outage("the store", clock=clock)
    waiting = asyncio.create_task(until_reachable(answer.wait, say=print, outage=outage))
    await asyncio.sleep(0)
    clock.advance(SLOW_SECONDS)
    assert outage.line == ""
    clock.advance(9)
    assert outage.line == "the store: waiting for 12 s: no answer yet"
    assert is_outage(outage.line)
    answer.set()
    await waiting
    assert outage.line == ""


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_an_outage_ends_with_the_wait(is_cancelled: bool) -> None:
    outages, is_back = Outages(), asyncio.Event()

    async def step() -> int:
        if not is_back.is_set():
            raise ServerUnreachable(f"{GONE}: refused")
        return 7

    waiting = asyncio.create_task(until_reachable(step, say=print, outage=outages.frontier))
    await eventually(lambda: outages.lines())
    assert outages.lines()[0].startswith("the frontier: waiting for 0 s")
    if is_cancelled:
        waiting.cancel()
        await asyncio.wait([waiting])
    else:
        is_back.set()
        assert await waiting == 7
    assert outages.lines() == ()


async def test_a_wait_that_lasts_is_said_again_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.worker.outages.QUIET_SECONDS", 0.0)
    said, tries = list[str](), iter([ServerUnreachable(GONE), ServerUnreachable(GONE), None])

    async def step() -> int:
        if (error := next(tries)) is not None:
            raise error
        return 7

    assert await until_reachable(step, say=said.append) == 7
    assert said == [f"{GONE}; waiting"] * 2


def test_a_wait_that_many_parts_repeat_is_said_once_a_minute() -> None:
    said, now = list[str](), [0.0]
    say = SaidOnce(said.append, clock=lambda: now[0])
    for second in range(0, 130, 10):
        now[0] = float(second)
        say(f"{GONE}: refused; waiting")
    assert len(said) == 3


async def test_a_wait_ends_at_once_when_it_is_told_to() -> None:
    stop, said = asyncio.Event(), list[str]()

    async def step() -> int:
        raise ServerUnreachable(GONE)

    waiting = asyncio.create_task(until_reachable(step, say=said.append, stop=stop))
    await eventually(lambda: said)
    stop.set()
    with pytest.raises(ServerUnreachable):
        await waiting
