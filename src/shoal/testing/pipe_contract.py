"""The promises of every pipe, one test each: the suite that proves a broker.

Subclass `PipeContract`, give it the URL of its broker, and let pytest (with pytest-asyncio in auto mode) collect it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from shoal.errors import ServerUnreachable
from shoal.pipes import open_pipe
from shoal.pipes.base import MOST_BYTES, UNREADABLE, Delivery, Pipe, QueueGone
from shoal.testing.servers.line_relay import LineRelay
from shoal.testing.waiting import eventually

QUEUE = "requests"
SECONDS = 300.0


async def receive(pipe: Pipe, number: int, *, queue: str = QUEUE) -> list[Delivery]:
    """This many messages: a broker may return them in several answers."""
    found: list[Delivery] = []

    async def is_enough() -> bool:
        found.extend(await pipe.receive(queue, most=number - len(found), seconds=1))
        return len(found) >= number

    await eventually(is_enough)
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return sorted(delivery.body for delivery in deliveries)


class PipeContract:
    """All promises. A subclass names its broker."""

    def url(self, prefix: str, *, port: int | None = None) -> str:
        """The URL of a pipe with this prefix; `port` may be a relay in front of the broker. An unconfirmed message must
        be delivered again within a few seconds."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port of the broker."""
        raise NotImplementedError

    @pytest.fixture
    def prefix(self) -> str:
        return f"t{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    async def pipe(self, prefix: str) -> AsyncIterator[Pipe]:
        pipe = open_pipe(self.url(prefix))
        await pipe.open_queue(QUEUE)
        yield pipe
        for queue in (QUEUE, UNREADABLE):
            await pipe.remove_queue(queue)
        await pipe.close()

    @pytest.fixture
    async def second(self, pipe: Pipe, prefix: str) -> AsyncIterator[Pipe]:
        """Another process's view of the same queues."""
        second = open_pipe(self.url(prefix))
        yield second
        await second.close()

    async def test_what_is_sent_is_received_as_it_was(self, pipe: Pipe, second: Pipe) -> None:
        sent = [b"", b"\x00\xff\r\n", "grüße".encode(), b"x" * MOST_BYTES]
        await pipe.send(QUEUE, sent, seconds=SECONDS)
        found = await receive(second, len(sent))
        assert bodies(found) == sorted(sent)
        assert {delivery.times for delivery in found} == {1}

    async def test_a_receiver_waits_for_messages_and_gets_none_when_its_time_is_over(self, pipe: Pipe) -> None:
        assert await pipe.receive(QUEUE, most=1, seconds=0.05) == []

    async def test_a_confirmed_message_does_not_come_again(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.send(QUEUE, [b"done", b"kept"], seconds=SECONDS)
        found = await receive(pipe, 2)
        await pipe.confirm([one for one in found if one.body == b"done"])
        await pipe.close()
        again = await receive(second, 1)
        assert bodies(again) == [b"kept"]
        await second.confirm(again)

    async def test_a_message_comes_again_when_its_receiver_is_gone(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await receive(pipe, 1)
        await pipe.close()
        (again,) = await receive(second, 1)
        assert (again.body, again.times) == (b"one", 2)

    async def test_a_message_that_is_given_back_comes_again(self, pipe: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await pipe.give_back(await receive(pipe, 1))
        (again,) = await receive(pipe, 1)
        assert (again.body, again.times) == (b"one", 2)

    async def test_two_receivers_share_the_messages(self, pipe: Pipe, second: Pipe) -> None:
        sent = [b"%d" % number for number in range(20)]
        await pipe.send(QUEUE, sent, seconds=SECONDS)
        mine = await receive(pipe, 5)
        await pipe.confirm(mine)
        await pipe.close()
        theirs = await receive(second, 15)
        assert bodies([*mine, *theirs]) == sorted(sent)

    async def test_what_is_sent_twice_is_received_twice(self, pipe: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        assert bodies(await receive(pipe, 2)) == [b"one", b"one"]

    async def test_a_message_that_is_set_aside_is_kept_and_does_not_come_again(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.send(QUEUE, [b"poison", b"good"], seconds=SECONDS)
        found = await receive(pipe, 2)
        await pipe.set_aside([one for one in found if one.body == b"poison"])
        await pipe.give_back([one for one in found if one.body == b"good"])
        assert bodies(await receive(pipe, 1)) == [b"good"]
        assert await second.count(UNREADABLE) == 1
        assert bodies(await receive(second, 1, queue=UNREADABLE)) == [b"poison"]

    async def test_a_queue_that_is_not_there_has_no_messages(self, pipe: Pipe) -> None:
        assert await pipe.count("nothing") == 0
        await pipe.remove_queue("nothing")

    async def test_opening_a_queue_that_is_there_keeps_its_messages(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await second.open_queue(QUEUE)
        assert bodies(await receive(second, 1)) == [b"one"]

    async def test_a_large_batch_arrives_whole(self, pipe: Pipe) -> None:
        sent = [b"%04d" % number + b"x" * (MOST_BYTES - 4) for number in range(60)]
        await pipe.send(QUEUE, sent, seconds=SECONDS)
        found = []
        for _ in range(6):
            some = await receive(pipe, 10)
            await pipe.confirm(some)
            found += some
        assert bodies(found) == sent

    async def test_a_slow_receiver_gets_everything_once(self, pipe: Pipe) -> None:
        sent = [b"%04d" % number for number in range(150)]
        await pipe.send(QUEUE, sent, seconds=SECONDS)
        found: list[Delivery] = []
        while len(found) < len(sent):
            some = await receive(pipe, 1)
            await pipe.confirm(some)
            found += some
        assert bodies(found) == sent

    async def test_sending_to_a_queue_that_is_gone_says_so(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await second.remove_queue(QUEUE)
        with pytest.raises(QueueGone, match=f"{QUEUE} is gone"):
            await pipe.send(QUEUE, [b"two"], seconds=SECONDS)

    async def test_receiving_from_a_queue_that_goes_says_so_and_it_can_be_opened_again(
        self, pipe: Pipe, second: Pipe
    ) -> None:
        await pipe.receive(QUEUE, most=1, seconds=0.05)
        await second.remove_queue(QUEUE)

        async def says_so() -> bool:
            try:
                await pipe.receive(QUEUE, most=1, seconds=1)
            except QueueGone:
                return True
            return False

        await eventually(says_so)
        await self.open_again(pipe)
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        assert bodies(await receive(pipe, 1)) == [b"one"]

    async def open_again(self, pipe: Pipe) -> None:
        await pipe.open_queue(QUEUE)

    async def test_lines_that_are_reset_in_mid_batch_lose_nothing_that_was_sent(self, prefix: str, pipe: Pipe) -> None:
        relay = LineRelay(self.port)
        await relay.mend()
        sender = open_pipe(self.url(prefix, port=relay.url_port))
        sent = [b"%04d" % number for number in range(200)]

        async def send_all() -> None:
            for start in range(0, len(sent), 20):
                while True:
                    with contextlib.suppress(ServerUnreachable):
                        await sender.send(QUEUE, sent[start : start + 20], seconds=SECONDS)
                        break
                    await asyncio.sleep(0)

        sending = asyncio.create_task(send_all())
        found: set[bytes] = set()
        resets = 0
        while len(found) < len(sent):
            if resets < 3 and relay.lines:
                relay.reset()
                resets += 1
            some = await pipe.receive(QUEUE, most=50, seconds=1)
            found |= {delivery.body for delivery in some}
            await pipe.confirm(some)
        await sending
        assert (sorted(found), resets) == (sent, 3)
        await sender.close()
        await relay.close()

    async def test_a_broker_that_cannot_be_reached_is_named_without_the_password(self, prefix: str) -> None:
        relay = LineRelay(self.port)
        await relay.mend()
        relay.cut()
        pipe = open_pipe(self.url(prefix, port=relay.url_port))
        with pytest.raises(ServerUnreachable, match=f"cannot reach .*{relay.url_port}") as raised:
            await pipe.open_queue(QUEUE)
        assert "guest:guest" not in str(raised.value)
        await pipe.close()
        await relay.close()
