"""Idle connections are closed while descriptors lack: at once, again and again, and no longer than that."""

from __future__ import annotations

import asyncio

from shoal.fetch.clients import CLOSE_SECONDS, WATCH_SECONDS, IdleCloser
from shoal.testing.clock import FakeClock
from shoal.testing.few_files import few_files
from shoal.testing.waiting import eventually


class Closed:
    """A closer, and how often it closed idle connections."""

    def __init__(self) -> None:
        self.times = 0
        self.clock = FakeClock()
        self.closer = IdleCloser(self._close, clock=self.clock)

    def _close(self) -> None:
        self.times += 1


async def test_connections_that_are_idle_later_are_closed_too_while_no_descriptor_is_free() -> None:
    closed = Closed()
    with few_files():
        closed.closer.begin()
        assert closed.times == 1
        await eventually(lambda: closed.times >= 3)
    closed.closer.end()


async def test_looks_for_a_while_and_leaves_connections_open_once_descriptors_are_free() -> None:
    closed = Closed()
    with few_files():
        closed.closer.begin()
        await eventually(lambda: closed.times >= 2)
    before = closed.times
    closed.clock.advance(WATCH_SECONDS)  # the look under way is the last
    await eventually(lambda: len(asyncio.all_tasks()) == 1)
    assert closed.times == before


async def test_a_lasting_shortage_of_something_else_closes_connections_once_a_second() -> None:
    closed = Closed()
    for _ in range(5):
        closed.closer.begin()
    assert closed.times == 1
    closed.clock.advance(CLOSE_SECONDS)
    closed.closer.begin()
    assert closed.times == 2
    closed.closer.end()
