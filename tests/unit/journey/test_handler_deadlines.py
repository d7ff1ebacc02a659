"""A handler that raises, exits, is cancelled or takes too long ends its page and not its worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from handler_runs import LIMIT, handlers, run

from shoal import Page, Spider
from shoal.journey.alarm import HandlerTimeout
from shoal.journey.handlers import HandlerGaveUp
from shoal.testing.fakes import make_page
from shoal.testing.waiting import loop_turns


@pytest.fixture(autouse=True)
def no_garbage_of_others() -> None:
    """A deadline interrupts whatever runs: also what the garbage of earlier tests calls when it is collected."""
    gc.collect()


class PanicException(BaseException):
    """As libraries written in Rust raise it."""


def panic(kind: str) -> None:
    raise {"keyboard": KeyboardInterrupt, "exit": SystemExit, "panic": PanicException, "closed": GeneratorExit}[kind](
        "index out of bounds"
    )


class Raising(Spider):
    """Raises what no `except Exception` catches, in every kind of handler."""

    def plain(self, page: Page) -> None:
        panic(page.meta["kind"])

    def generator(self, page: Page) -> Iterator[Any]:
        yield {"a": 1}
        panic(page.meta["kind"])

    async def coroutine(self, page: Page) -> None:
        await asyncio.sleep(0)
        panic(page.meta["kind"])

    async def stream(self, page: Page) -> AsyncIterator[Any]:
        yield {"a": 1}
        await asyncio.sleep(0)
        panic(page.meta["kind"])

    async def login(self, session: Any) -> None:
        await asyncio.sleep(0)
        panic("panic")


class Deaf(Spider):
    """Catches its deadline and goes on."""

    def loops(self, page: Page) -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                continue

    async def loops_in_async(self, page: Page) -> None:
        await asyncio.sleep(0)
        self.loops(page)

    async def waits(self, page: Page) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def waits_for_ever(self, page: Page) -> None:
        while not self.is_over:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(60)

    is_over = False


class Failing(Spider):
    def takes_a_while(self, page: Page) -> None:
        time.sleep(LIMIT)

    def is_quick(self, page: Page) -> None:
        return None

    def raises(self, page: Page) -> None:
        raise ValueError("no\nprice")

    async def raises_later(self, page: Page) -> AsyncIterator[Any]:
        yield {"a": 1}
        await asyncio.sleep(0)
        raise ValueError("no price")

    def exits(self, page: Page) -> None:
        sys.exit(3)

    async def exits_later(self, page: Page) -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    async def cancelled(self, page: Page) -> None:
        other = asyncio.ensure_future(asyncio.sleep(10))
        other.cancel()
        await other

    async def own_timeout(self, page: Page) -> None:
        raise TimeoutError("mine")

    def loops(self, page: Page) -> None:
        while True:
            pass

    def generates_for_ever(self, page: Page) -> Iterator[Any]:
        while True:
            yield None

    def regex(self, page: Page) -> Any:
        return re.match(r"(a+)+$", "a" * 60 + "b")

    async def sleeps(self, page: Page) -> None:
        await asyncio.sleep(60)

    async def loops_in_async(self, page: Page) -> None:
        await asyncio.sleep(0)
        while True:
            pass

    async def streams_for_ever(self, page: Page) -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0.01)
            yield None


async def test_what_a_handler_raises_comes_through() -> None:
    for name in ("raises", "raises_later"):
        with pytest.raises(ValueError, match=r"no\sprice"):
            await run(name, Failing())
    with pytest.raises(TimeoutError, match="mine"):
        await run("own_timeout", Failing())


@pytest.mark.parametrize("name", ["exits", "exits_later", "cancelled"])
async def test_a_handler_cannot_end_its_worker(name: str) -> None:
    with pytest.raises(HandlerGaveUp):
        await run(name, Failing())


@pytest.mark.parametrize("kind", ["keyboard", "exit", "panic", "closed"])
@pytest.mark.parametrize("name", ["plain", "generator", "coroutine", "stream"])
async def test_whatever_a_handler_raises_ends_its_page_only(name: str, kind: str) -> None:
    page = make_page("", handler=name, meta={"kind": kind})
    with pytest.raises(HandlerGaveUp, match=r"the handler raised .*: index out of bounds"):
        await handlers(Raising()).run(page)


async def test_whatever_a_login_raises_ends_its_page_only() -> None:
    session: Any = None
    with pytest.raises(HandlerGaveUp, match="the login raised PanicException: index out of bounds"):
        await handlers(Raising()).log_in(session)


@pytest.mark.parametrize("name", ["loops", "loops_in_async", "waits"])
async def test_a_handler_that_catches_its_deadline_is_stopped_all_the_same(name: str) -> None:
    with pytest.raises(HandlerTimeout, match=r"0.2 s"):
        async with asyncio.timeout(20):
            await run(name, Deaf())


async def test_a_handler_that_catches_everything_is_abandoned_and_its_cancellation_arrives() -> None:
    spider = Deaf()
    working = asyncio.create_task(handlers(spider, seconds=60.0).run(make_page("", handler="waits_for_ever")))
    await loop_turns()
    working.cancel()
    await loop_turns()
    spider.is_over = True  # so that it ends when its frame is cleared
    working.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await working


@pytest.mark.parametrize(
    "name",
    ["loops", "generates_for_ever", "regex", "sleeps", "loops_in_async", "streams_for_ever"],
)
async def test_a_handler_that_takes_too_long_is_stopped(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(HandlerTimeout, match=r"longer than 0.2 s"):
        await run(name, Failing())
    assert time.monotonic() - began >= LIMIT * 0.9
    await asyncio.sleep(LIMIT * 1.2)  # an alarm that was left would ring in this time, and raise


async def test_each_page_has_its_own_deadline_though_the_timer_runs_on() -> None:
    limit = 5 * LIMIT
    subject = handlers(Failing(), seconds=limit)
    for _ in range(6):
        await subject.run(make_page("", handler="takes_a_while"))
    began = time.monotonic()
    with pytest.raises(HandlerTimeout):
        await subject.run(make_page("", handler="loops"))
    assert time.monotonic() - began >= limit * 0.9


async def test_the_alarms_of_two_crawls_in_one_process_do_not_silence_each_other() -> None:
    both = [handlers(Failing()) for _ in range(2)]
    for subject in (*both, *both):
        await subject.run(make_page("", handler="is_quick"))
    for subject in both:
        with pytest.raises(HandlerTimeout):
            await subject.run(make_page("", handler="loops"))


async def test_a_closed_alarm_does_not_ring() -> None:
    subject = handlers(Failing(), seconds=100.0)
    await subject.run(make_page("", handler="is_quick"))
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    subject.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


async def test_a_handler_that_is_cancelled_from_outside_stays_cancelled() -> None:
    began = asyncio.Event()

    class Waiting(Spider):
        async def parse(self, page: Page) -> None:
            began.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(handlers(Waiting(), seconds=60.0).run(make_page("")))
    await began.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
