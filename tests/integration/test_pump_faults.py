"""A coordinator and its workers at both brokers, when messages come again and again, and when queues are removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from pump_ground import LEASE, MINE, Ground, ground_at, request, with_tasks

from shoal.frontier.base import Frontier
from shoal.frontier.clock import steady_seconds
from shoal.model import Done, LeaseBatch
from shoal.pipes import open_pipe
from shoal.pipes.base import MOST_DELIVERIES, UNREADABLE, Delivery, Pipe, QueueGone
from shoal.pipes.calls import PipeCalls
from shoal.pipes.frontier import PipedFrontier
from shoal.pipes.messages import HELLO, REQUESTS, VERSION, Answer, Envelope, encoded, head_of, packed
from shoal.pipes.pump import Pump, unreadable_lines
from shoal.testing.contract.frontier.case import CRAWL
from shoal.testing.pipe_contract import receive
from shoal.testing.waiting import eventually, loop_turns
from shoal.worker.outages import until_reachable


@pytest.fixture(params=["rabbitmq", "moto"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    """A ground at each of the brokers."""
    async with ground_at(request.getfixturevalue(request.param), tmp_path) as ground:
        yield ground


class Held:
    """A frontier whose lease calls wait until they are let go."""

    def __init__(self, behind: Frontier) -> None:
        self._behind = behind
        self.is_asked = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def lease(self, *arguments: Any, **more: Any) -> LeaseBatch:
        self.is_asked.set()
        await self.goes_on.wait()
        return await self._behind.lease(*arguments, **more)


class Breaking:
    """A pipe whose coordinator ends when it sends, in a way that nobody foresaw."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    async def send(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("broken on purpose")


async def give_back_often(ground: Ground, queue: str, *, times: int) -> None:
    """Receive the message in a queue so often, each time as if it had ended its receiver."""
    pipe = open_pipe(ground.url)
    for time in range(1, times + 1):
        (one,) = await receive(pipe, 1, queue=queue)
        assert one.times == time
        await pipe.give_back([one])
    await pipe.close()


async def test_a_request_that_was_received_too_often_is_set_aside_and_the_next_one_is_answered(either: Ground) -> None:
    behind, pipe = await either.frontier(), await either.pipe()
    poison = request(1, HELLO)
    await pipe.send(REQUESTS, poison, seconds=60)
    await give_back_often(either, REQUESTS, times=MOST_DELIVERIES)
    await either.pump(behind)
    await pipe.send(REQUESTS, request(2, HELLO), seconds=60)
    assert [head_of(one.body).number for one in await receive(pipe, 1, queue=MINE)] == [2]

    async def is_noted() -> bool:
        return any("1 message at" in line for line in await unreadable_lines(behind))

    await eventually(is_noted)
    assert any(f"kept in the queue {UNREADABLE}: it was received" in line for line in either.said)
    assert [one.body for one in await receive(pipe, 1, queue=UNREADABLE)] == poison


async def test_a_request_that_breaks_its_coordinators_is_set_aside(ground: Ground) -> None:
    behind, pipe = await ground.frontier(), await ground.pipe()
    poison = request(1, HELLO, frontier="another")
    await pipe.send(REQUESTS, poison, seconds=60)
    for _ in range(MOST_DELIVERIES):
        pump = Pump(behind, cast(Pipe, Breaking(open_pipe(ground.url))), say=ground.said.append)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            await pump.run()
    await ground.pump(behind)
    await eventually(lambda: any(f"kept in the queue {UNREADABLE}: it was received" in line for line in ground.said))
    assert [one.body for one in await receive(pipe, 1, queue=UNREADABLE)] == poison


# Where the queue of a worker counts how often its messages were received: RabbitMQ counts in quorum queues alone.
async def test_an_answer_that_was_received_too_often_is_handed_out_and_set_aside(sqs_ground: Ground) -> None:
    pipe = await sqs_ground.pipe()
    answer = packed(Envelope(VERSION, "answer", "c", 1), Answer(HELLO, steady_seconds(), value=encoded(None)))
    await pipe.send(MINE, answer, seconds=60)
    await give_back_often(sqs_ground, MINE, times=MOST_DELIVERIES - 1)
    calls = PipeCalls(open_pipe(sqs_ground.url), stray=lambda *_: None)
    calls._queue = MINE
    await calls.call(HELLO, None)

    async def set_aside() -> list[Delivery]:
        # The queue is made when the answer is put into it, after the call has got it.
        with contextlib.suppress(QueueGone):
            return await pipe.receive(UNREADABLE, most=1, seconds=1)
        return []

    assert [one.body for one in await eventually(set_aside)] == answer
    await calls.close()


async def test_orderly_restarts_of_the_coordinator_set_no_request_aside(either: Ground) -> None:
    behind = await with_tasks(await either.frontier())
    pipe = await either.pipe()
    await pipe.send(REQUESTS, request(1, "lease", LEASE), seconds=60)
    for _ in range(MOST_DELIVERIES):
        held = Held(behind)
        end = await either.pump(held)
        await held.is_asked.wait()
        await end()
    await either.pump(behind)
    assert [head_of(one.body).number for one in await receive(pipe, 1, queue=MINE)] == [1]
    assert (await behind.progress(CRAWL)).leased == 3
    assert await pipe.count(UNREADABLE) == 0


async def test_what_a_coordinator_has_received_it_answers_before_it_ends(either: Ground) -> None:
    held = Held(await with_tasks(await either.frontier()))
    pipe, end = await either.pipe(), await either.pump(held, duty_seconds=60.0)
    await pipe.send(REQUESTS, request(1, "lease", LEASE), seconds=60)
    await held.is_asked.wait()
    ending = asyncio.create_task(end())
    await loop_turns()
    held.goes_on.set()
    await ending
    assert [head_of(one.body).number for one in await receive(pipe, 1, queue=MINE)] == [1]
    assert await pipe.receive(REQUESTS, most=1, seconds=0.5) == []


async def do_pages(worker: PipedFrontier, behind: Frontier, *, pages: int) -> None:
    """Lease and settle until so many pages are done, as a worker does that waits while something is away. What was lent
    and never arrived comes back when its second is over."""

    async def step() -> None:
        batch = await worker.lease([CRAWL], 2, worker="w1", seconds=1.0, horizon=0.0)
        await worker.settle([Done(lease=lease) for lease in batch.leases])

    async def is_enough() -> bool:
        await until_reachable(step, say=print)
        return (await behind.progress(CRAWL)).done >= pages

    await eventually(is_enough)


async def test_queues_that_are_removed_under_a_coordinator_and_its_worker_are_made_again(either: Ground) -> None:
    behind = await with_tasks(await either.frontier(), 12)
    await either.pump(behind)
    pipe, worker = await either.pipe(), await either.worker()
    await do_pages(worker, behind, pages=4)
    await pipe.remove_queue(REQUESTS)
    await do_pages(worker, behind, pages=8)
    await pipe.remove_queue(worker._calls._queue)
    await do_pages(worker, behind, pages=12)
    progress = await behind.progress(CRAWL)
    assert (progress.done, progress.left) == (12, 0)
    assert not [line for line in either.said if "could not be answered" in line]
