"""A coordinator at a pipe, with a real broker: what it answers, what it refuses, and who does it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid

import msgspec
import pytest
from aiobotocore.session import get_session
from pump_ground import LEASE, MINE, Ground, request, with_tasks

from shoal.errors import UsageError
from shoal.frontier.clock import steady_seconds
from shoal.model import Crawl, Done, LeaseBatch
from shoal.pipes import open_pipe
from shoal.pipes.base import MOST_BYTES, UNREADABLE, Pipe
from shoal.pipes.calls import PipeCalls
from shoal.pipes.frontier import ALL_VERBS, WORKER_VERBS
from shoal.pipes.messages import HELLO, REQUESTS, VERSION, Answer, Call, Envelope, encoded, envelope_of, head_of, packed
from shoal.pipes.pump import unreadable_lines
from shoal.testing.contract.frontier.case import CRAWL, make_task
from shoal.testing.pipe_contract import receive
from shoal.testing.servers.line_relay import LineRelay
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.waiting import eventually


@pytest.mark.parametrize("verb", sorted(ALL_VERBS - WORKER_VERBS))
async def test_a_verb_that_is_not_for_workers_is_refused(ground: Ground, verb: str) -> None:
    await ground.pump(await ground.frontier())
    calls = PipeCalls(open_pipe(ground.url), stray=lambda *_: None)
    with pytest.raises(UsageError, match=f"{verb} is not for workers behind a pipe: do it where the frontier is"):
        await calls.call(verb, {})
    await calls.close()


async def test_a_worker_begins_no_crawl(ground: Ground) -> None:
    await ground.pump(await with_tasks(await ground.frontier()))
    worker = await ground.worker()
    with pytest.raises(UsageError, match="new is not known to the coordinator: crawls begin where the frontier is"):
        await worker.open_crawl(Crawl(id="new", spider="s"))
    assert (await worker.open_crawl(Crawl(id=CRAWL, spider="s"))).id == CRAWL


async def test_a_request_that_comes_twice_is_done_once(ground: Ground) -> None:
    behind = await with_tasks(await ground.frontier())
    pipe = await ground.pipe()
    await pipe.send(REQUESTS, [*request(1, "lease", LEASE), *request(1, "lease", LEASE)], seconds=60)
    await pipe.send(REQUESTS, request(2, HELLO), seconds=60)
    await ground.pump(behind)
    answered = [head_of(one.body).number for one in await receive(pipe, 2, queue=MINE)]
    assert sorted(answered) == [1, 2]
    assert (await behind.progress(CRAWL)).leased == 3


async def test_a_request_that_nobody_waits_for_any_more_is_not_done(ground: Ground) -> None:
    behind = await with_tasks(await ground.frontier())
    pipe = await ground.pipe()
    await ground.pump(behind)
    await pipe.send(REQUESTS, request(7, HELLO, oldest=7), seconds=60)
    await receive(pipe, 1, queue=MINE)
    await pipe.send(REQUESTS, [*request(6, "lease", LEASE, oldest=6), *request(8, HELLO, oldest=7)], seconds=60)
    assert [head_of(one.body).number for one in await receive(pipe, 1, queue=MINE)] == [8]
    assert (await behind.progress(CRAWL)).leased == 0


async def test_a_message_of_another_version_is_refused_and_others_go_on(ground: Ground) -> None:
    await ground.pump(await with_tasks(await ground.frontier()))
    pipe, worker = await ground.pipe(), await ground.worker()
    await pipe.send(
        REQUESTS, [msgspec.msgpack.encode([VERSION + 1, "request", MINE, 5, {"new": "fields"}])], seconds=60
    )
    (answer,) = await receive(pipe, 1, queue=MINE)
    assert head_of(answer.body).number == 5
    assert [crawl.id for crawl in await worker.crawls()] == [CRAWL]
    assert [line for line in ground.said if f"have version {VERSION + 1} from the worker and {VERSION} from" in line]
    assert ground.said[-1].endswith("upgrade shoal on the machine of the coordinator")


async def test_a_message_of_another_version_whose_sender_is_gone_is_done_with(ground: Ground) -> None:
    end = await ground.pump(await with_tasks(await ground.frontier()))
    pipe = await ground.pipe()
    strange = msgspec.msgpack.encode([VERSION - 1, "request", "answers-gone", 5])
    await pipe.send(REQUESTS, [strange, *request(2, HELLO)], seconds=60)
    await receive(pipe, 1, queue=MINE)
    assert ground.said[-1].endswith("upgrade shoal on the machine of the worker")
    await end()
    # What the coordinator has not confirmed comes again once its connection is closed.
    assert await pipe.receive(REQUESTS, most=10, seconds=1.0) == []


async def test_an_answer_of_another_version_tells_the_worker_to_be_upgraded(ground: Ground) -> None:
    pipe = await ground.pipe()
    calls = PipeCalls(open_pipe(ground.url), stray=lambda *_: None)
    calling = asyncio.create_task(calls.call(HELLO, None))
    (asked,) = await receive(pipe, 1)
    head = head_of(asked.body)
    await pipe.send(
        head.sender, [msgspec.msgpack.encode([VERSION + 1, "answer", "c", head.number, b"new"])], seconds=60
    )
    with pytest.raises(UsageError, match=f"and {VERSION + 1} from the coordinator: upgrade shoal on .* of the worker"):
        await calling
    await calls.close()


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"nonsense", packed(Envelope(VERSION, "request", MINE, 1), Call("x", encoded(1)))[0][:-4]]
)
async def test_a_message_that_cannot_be_read_is_set_aside_and_counted(ground: Ground, message: bytes) -> None:
    await check_is_set_aside(ground, message, shown="amqp://guest:***@")


async def test_a_message_at_sqs_that_cannot_be_read_is_set_aside_and_counted(sqs_ground: Ground) -> None:
    await check_is_set_aside(sqs_ground, b"nonsense", shown=f"sqs://{sqs_ground.prefix}")


async def test_a_message_at_sqs_that_is_no_text_of_ours_is_set_aside_and_counted(
    sqs_ground: Ground, moto: MotoServer
) -> None:
    behind = await sqs_ground.frontier()
    await sqs_ground.pump(behind)
    pipe = await sqs_ground.pipe()
    where = {"endpoint_url": f"http://127.0.0.1:{moto.port}", "region_name": "us-east-1"}
    async with get_session().create_client("sqs", **where) as client:
        queue = await client.get_queue_url(QueueName=f"{sqs_ground.prefix}-{REQUESTS}")
        await client.send_message(QueueUrl=queue["QueueUrl"], MessageBody="not base64: é")
    await eventually(lambda: any("cannot be read and is kept in the queue" in line for line in sqs_ground.said))
    assert [one.body for one in await receive(pipe, 1, queue=UNREADABLE)] == ["not base64: é".encode()]


async def check_is_set_aside(ground: Ground, message: bytes, *, shown: str) -> None:
    behind = await ground.frontier()
    await ground.pump(behind)
    pipe = await ground.pipe()
    await pipe.send(REQUESTS, [message, *request(2, HELLO)], seconds=60)
    await receive(pipe, 1, queue=MINE)

    async def is_noted() -> bool:
        return any(line.startswith(f"1 message at {shown}") for line in await unreadable_lines(behind))

    await eventually(is_noted)
    assert any("cannot be read and is kept in the queue unreadable" in line for line in ground.said)
    assert [one.body for one in await receive(pipe, 1, queue=UNREADABLE)] == [message]


async def test_coordinators_with_different_frontiers_at_one_pipe_are_told_apart(ground: Ground) -> None:
    end = await ground.pump(await with_tasks(await ground.frontier("one.db")))
    worker = await ground.worker()
    await worker.crawls()
    await end()
    await ground.pump(await ground.frontier("other.db"))
    with pytest.raises(UsageError, match=r"know another frontier than this coordinator's: .*\?prefix=NAME"):
        await worker.crawls()
    assert any("know another frontier" in line for line in ground.said)


async def test_a_second_coordinator_stands_by_and_takes_over(ground: Ground) -> None:
    behind = await with_tasks(await ground.frontier())
    end = await ground.pump(behind)
    worker = await ground.worker()
    await ground.pump(await ground.frontier())
    await eventually(lambda: any("this one stands by" in line for line in ground.said))
    await end()
    assert len((await worker.lease([CRAWL], 3, worker="w1", seconds=60.0, horizon=0.0)).leases) == 3
    assert sum("workers are served" in line for line in ground.said) == 2


async def test_a_call_that_was_made_while_no_coordinator_ran_is_answered_by_the_next_one(ground: Ground) -> None:
    calls = PipeCalls(open_pipe(ground.url), stray=lambda *_: None)
    pipe = await ground.pipe()
    calling = asyncio.create_task(calls.call("crawls", {}))

    async def has_arrived() -> bool:
        return await pipe.count(REQUESTS) == 1

    await eventually(has_arrived)
    await ground.pump(await with_tasks(await ground.frontier()))
    assert [crawl["id"] for crawl in msgspec.msgpack.decode((await calling).value)] == [CRAWL]
    await calls.close()


async def test_a_page_with_more_links_than_a_message_holds_is_settled(ground: Ground) -> None:
    behind = await with_tasks(await ground.frontier(), 1)
    await ground.pump(behind)
    worker = await ground.worker()
    (lease,) = (await worker.lease([CRAWL], 1, worker="w1", seconds=60.0, horizon=0.0)).leases
    # Texts that do not get shorter when they are packed.
    found = [make_task(key, meta={"text": uuid.uuid4().hex * 4}) for key in range(100, 5100)]
    assert len(packed(Envelope(VERSION, "", "", 0), Call("", encoded(found)))) > 2
    report = await worker.settle([Done(lease=lease, found=found)])
    assert (report.stale, report.failed) == ([], {})
    assert (await behind.progress(CRAWL)).queued == 5000


def test_no_message_is_larger_than_brokers_take() -> None:
    noise = b"".join(uuid.uuid4().bytes for _ in range(20_000))
    messages = packed(Envelope(VERSION, "request", "x" * 100, 2**60, crawl="y" * 300), Call("z", encoded(noise)))
    assert len(messages) > 5
    assert max(map(len, messages)) <= MOST_BYTES


async def test_leases_in_an_answer_that_nobody_waits_for_are_given_back(ground: Ground) -> None:
    behind = await with_tasks(await ground.frontier())
    await ground.pump(behind)
    worker, pipe = await ground.worker(), await ground.pipe()
    first = await worker.lease([CRAWL], 2, worker="w1", seconds=60.0, horizon=0.0)
    stray = await behind.lease([CRAWL], 3, worker="w1", seconds=60.0, horizon=0.0)
    assert (await behind.progress(CRAWL)).leased == 5
    answer = Answer("lease", 1.0, value=encoded(stray))
    await pipe.send(worker._calls._queue, packed(Envelope(VERSION, "answer", "c", 999), answer), seconds=60)

    async def is_given_back() -> bool:
        return (await behind.progress(CRAWL)).leased == 2

    await eventually(is_given_back)
    assert await worker.extend(first.leases, seconds=60.0) == []


async def answer_next(pipe: Pipe, value: object, *, told: float) -> None:
    """Be the coordinator for one request."""
    (asked,) = await receive(pipe, 1)
    await pipe.confirm([asked])
    head = head_of(asked.body)
    answer = packed(Envelope(VERSION, "answer", "c", head.number), Answer("", told, value=encoded(value)))
    await pipe.send(head.sender, answer, seconds=60)


async def test_starts_count_from_when_they_were_given_however_long_the_answer_took(ground: Ground) -> None:
    pipe = await ground.pipe()
    opening = asyncio.create_task(ground.worker())
    await answer_next(pipe, None, told=steady_seconds())
    worker = await opening
    leasing = asyncio.create_task(worker.lease([CRAWL], 1, worker="w1", seconds=60.0, horizon=0.0))
    await answer_next(pipe, LeaseBatch(leases=[], ask_again=1.0, at=0.0), told=steady_seconds() - 100.0)
    batch = await leasing
    assert batch.at == pytest.approx(time.monotonic() - 100.0, abs=10.0)
    reserving = asyncio.create_task(worker.reserve(CRAWL, "a.test"))
    await answer_next(pipe, 30.0, told=steady_seconds() - 100.0)
    assert await reserving == pytest.approx(30.0 - 100.0, abs=10.0)


async def test_a_worker_behind_a_broken_line_is_served_again_when_it_is_mended(ground: Ground) -> None:
    await ground.pump(await with_tasks(await ground.frontier()))
    relay = LineRelay(ground.server.port)
    await relay.mend()
    worker = await ground.worker(port=relay.url_port)
    relay.reset()

    async def is_served() -> bool:
        with contextlib.suppress(Exception):
            return bool(await worker.crawls())
        return False

    await eventually(is_served)
    await worker.close()
    await relay.close()


def test_envelopes_of_a_later_release_with_more_fields_are_read() -> None:
    (message,) = packed(Envelope(VERSION, "request", MINE, 3, crawl="c"), Call(HELLO, encoded(None)))
    fields = msgspec.msgpack.decode(message)
    assert envelope_of(msgspec.msgpack.encode([*fields, "a field of later"])).crawl == "c"
