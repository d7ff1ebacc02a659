from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from shoal.fetch.http import Deadline


async def swallowing(seconds: float) -> str:
    """An awaitable that has its answer just when it is cancelled, and gives it."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(seconds)
    return "answer"


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_time_that_is_up_ends_the_work() -> None:
    at = now() + 0.01
    with pytest.raises(TimeoutError), Deadline(at, checked_at=at) as deadline:
        await asyncio.sleep(10)
    assert deadline.is_over
    await asyncio.sleep(0)


async def test_work_done_in_time_is_left_alone() -> None:
    at = now() + 0.1
    with Deadline(at, checked_at=at):
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)  # past the deadline: a timer that was left would cancel this


async def test_a_deadline_that_moved_is_looked_at_again() -> None:
    start = now()

    async def work() -> None:
        with Deadline(start + 10, checked_at=start + 0.1) as deadline:
            deadline.at = start + 0.5
            await asyncio.sleep(0.3)
            deadline.at = start + 0.8
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await work()
    assert now() - start >= 0.8


async def test_an_answer_given_instead_of_the_cancellation_is_noticed() -> None:
    at = now() + 0.01
    with Deadline(at, checked_at=at) as deadline:
        assert await swallowing(10) == "answer"
        with pytest.raises(TimeoutError):
            deadline.check()
    await asyncio.sleep(0)


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    began = asyncio.Event()

    async def work() -> None:
        with Deadline(now() + 10, checked_at=now() + 10):
            began.set()
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_swallowed_cancellation_by_somebody_else_is_raised_in_the_end() -> None:
    began = asyncio.Event()

    async def work() -> None:
        with Deadline(now() + 10, checked_at=now() + 10):
            began.set()
            await swallowing(10)

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_in_the_same_moment_wins_over_the_deadline() -> None:
    async def work() -> None:
        at = now() + 0.01
        with Deadline(at, checked_at=at):
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.005, task.cancel)
    time.sleep(0.05)  # noqa: ASYNC251 -- both are due when the loop goes on, and it calls both before the task runs
    with pytest.raises(asyncio.CancelledError):
        await task
