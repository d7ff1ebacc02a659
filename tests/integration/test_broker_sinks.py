"""Sinks on a real RabbitMQ and on queues that speak SQS: what arrives, what is refused, what is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiormq
import boto3
import msgspec
import pytest
from sinks import check_delivery, message

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks import open_sink
from shoal.sinks.base import Sink
from shoal.sinks.urls import parse_sink
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.rabbitmq_server import RabbitServer


def opened(url: str) -> Sink:
    return open_sink(parse_sink(url))


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """One of its own: a test stops it."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbit")).start()
    yield server
    server.remove()


@asynccontextmanager
async def channel_to(rabbit: Any) -> AsyncIterator[Any]:
    connection = await aiormq.connect(rabbit.url)
    yield await connection.channel()
    await connection.close()


async def received(rabbit: Any, queue: str) -> list[Any]:
    """Everything in a queue: routing key and message."""
    found = []
    async with channel_to(rabbit) as channel:
        while (one := await channel.basic_get(queue, no_ack=True)).body:
            found.append((one.routing_key, json.loads(one.body), one.header.properties))
    return found


class TestRabbit:
    @pytest.fixture
    async def names(self, rabbit: Any) -> tuple[str, str]:
        """An exchange, and a queue that gets all of it."""
        exchange, queue = f"items-{uuid4().hex}", f"queue-{uuid4().hex}"
        async with channel_to(rabbit) as channel:
            await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
            await channel.queue_declare(queue, durable=True)
            await channel.queue_bind(queue, exchange, "books.#")
        return exchange, queue

    async def test_messages_arrive_in_order_with_a_key_to_route_by(self, rabbit: Any, names: tuple[str, str]) -> None:
        exchange, queue = names
        sink = opened(f"{rabbit.url}?exchange={exchange}")
        await sink.check()
        sent = [message(number, version=version) for version in (1, 2) for number in range(60)]
        await sink.deliver([*sent, message(1, version=3), message(1, version=4)])
        await sink.close()
        found = await received(rabbit, queue)
        assert {routing_key for routing_key, _, _ in found} == {"books.new", "books.changed"}
        expected = {str(number): 2 for number in range(60)} | {"1": 4}
        check_delivery([body for _, body, _ in found], expected=expected)
        assert (found[0][2].message_id, found[0][2].delivery_mode) == ("books/0/1", 2)

    async def test_a_queue_or_a_routing_key_may_be_named(self, rabbit: Any, names: tuple[str, str]) -> None:
        exchange, queue = names
        for options in (f"exchange={exchange}&routing_key=books.own", f"queue={queue}"):
            sink = opened(f"{rabbit.url}?{options}")
            await sink.check()
            await sink.deliver([message(1, key="k" * 2000, id=f"books/{'k' * 2000}/1")])
            await sink.close()
        assert [routing_key for routing_key, _, _ in await received(rabbit, queue)] == ["books.own", queue]

    async def test_messages_that_no_queue_would_get_are_refused(self, rabbit: Any, names: tuple[str, str]) -> None:
        sink = opened(f"{rabbit.url}?exchange={names[0]}")
        with pytest.raises(UsageError, match=r"has no queue for messages to the exchange .*: bind one"):
            await sink.deliver([message(1), message(2, spider="films")])
        await sink.deliver([message(3)])
        await sink.close()

    async def test_a_missing_exchange_or_queue_is_one_clear_line(self, rabbit: Any) -> None:
        for options in ("exchange=missing", "queue=missing"):
            sink = opened(f"{rabbit.url}?{options}")
            with pytest.raises(UsageError, match=r"does not have the \w+ 'missing': make it, or name another"):
                await sink.check()
            await sink.close()
        sink = opened(f"{rabbit.url}?exchange=missing")
        with pytest.raises(UsageError, match="does not have the exchange 'missing'"):
            await sink.deliver([message(1)])
        await sink.close()

    @pytest.mark.parametrize(("was", "now"), [("guest:guest@", "guest:s3cr3t@"), ("/?", "/no-such-vhost?")])
    async def test_a_wrong_password_or_vhost_is_one_clear_line(self, rabbit: Any, was: str, now: str) -> None:
        sink = opened(f"{rabbit.url}?exchange=amq.topic".replace(was, now))
        with pytest.raises(UsageError, match=r"refuses us: .*; check user, password and vhost") as caught:
            await sink.check()
        assert "s3cr3t" not in str(caught.value)
        await sink.close()

    @pytest.mark.full
    async def test_a_broker_that_was_away_gets_the_rest(self, rabbit: Any, names: tuple[str, str]) -> None:
        exchange, queue = names
        sink = opened(f"{rabbit.url}?exchange={exchange}")
        await sink.deliver([message(1)])
        rabbit.stop()
        with pytest.raises(ServerUnreachable, match="cannot reach RabbitMQ at amqp://guest@127"):
            await sink.deliver([message(2)])
        rabbit.start()
        await sink.deliver([message(2), message(3)])
        await sink.close()
        assert {body["key"] for _, body, _ in await received(rabbit, queue)} == {"1", "2", "3"}


class TestSqs:
    @pytest.fixture
    def queues(self, moto: MotoServer) -> Any:
        return boto3.client("sqs", region_name="us-east-1", endpoint_url=moto.endpoint)

    def url(self, moto: MotoServer, name: str) -> str:
        return f"sqs://{name}?region=us-east-1&endpoint={moto.endpoint}"

    async def received(self, queues: Any, url: str) -> list[dict[str, Any]]:
        def read() -> list[dict[str, Any]]:
            found = []
            while some := queues.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
                for one in some:
                    found.append(json.loads(one["Body"]))
                    queues.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
            return found

        return await asyncio.to_thread(read)

    async def test_messages_arrive(self, moto: MotoServer, queues: Any) -> None:
        name = f"items-{uuid4().hex}"
        there = queues.create_queue(QueueName=name)["QueueUrl"]
        sink = opened(self.url(moto, name))
        await sink.check()
        await sink.deliver([message(number) for number in range(25)])
        await sink.close()
        found = await self.received(queues, there)
        check_delivery(found, expected={str(number): 1 for number in range(25)})

    async def test_a_fifo_queue_keeps_the_order_of_each_key(self, moto: MotoServer, queues: Any) -> None:
        name = f"items-{uuid4().hex}.fifo"
        there = queues.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
        sink = opened(self.url(moto, name))
        sent = [message(number, version=version) for version in (1, 2, 3) for number in range(4)]
        await sink.deliver(sent)
        await sink.deliver(sent)
        await sink.close()
        found = await self.received(queues, there)
        assert len(found) == 12
        check_delivery(found, expected={str(number): 3 for number in range(4)})

    async def test_items_that_are_large_are_spread_and_those_that_are_too_large_come_without(
        self, moto: MotoServer, queues: Any
    ) -> None:
        name = f"items-{uuid4().hex}"
        there = queues.create_queue(QueueName=name)["QueueUrl"]
        sink = opened(self.url(moto, name))
        large = [
            msgspec.Raw(json.dumps({"text": "x" * size}).encode()) for size in (100_000, 100_000, 100_000, 500_000)
        ]
        await sink.deliver([message(number, item=item) for number, item in enumerate(large)])
        await sink.close()
        found = {one["key"]: one["item"] for one in await self.received(queues, there)}
        assert [item is None for item in found.values()] == [False, False, False, True]

    async def test_a_missing_queue_is_one_clear_line(self, moto: MotoServer) -> None:
        sink = opened(self.url(moto, "missing"))
        with pytest.raises(UsageError, match="there is no queue 'missing' for the sink sqs://missing"):
            await sink.check()
        await sink.close()

    @pytest.mark.full
    async def test_a_service_that_is_away_is_waited_for(self, moto: MotoServer) -> None:
        sink = opened(f"sqs://items?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}")
        with pytest.raises(ServerUnreachable, match="cannot reach SQS for sqs://items"):
            await sink.deliver([message(1)])
        await sink.close()

    async def test_no_region_is_one_clear_line(self, monkeypatch: pytest.MonkeyPatch, moto: MotoServer) -> None:
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        sink = opened("sqs://items")
        with pytest.raises(UsageError, match="cannot be used: You must specify a region"):
            await sink.check()
        await sink.close()
