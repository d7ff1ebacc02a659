"""Every sink keeps the promises of the contract; what only one kind can show follows it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiormq
import boto3
import msgspec
import pytest
from redis import Redis

from shoal.backends import BACKENDS
from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks import open_sink
from shoal.sinks.jsonl import lines_of
from shoal.sinks.urls import parse_sink
from shoal.testing.contract.store.rows import files_no_larger_than
from shoal.testing.servers.http_receiver import HttpReceiver, http_receiver
from shoal.testing.servers.line_relay import LineRelay, line_relay
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sink_contract import SECRET, RelayedReceiver, SinkContract, check_delivery, message, opened

LINE_BYTES = len(lines_of([message(10)]))


def test_every_kind_of_sink_is_here() -> None:
    kinds = {one.name for one in BACKENDS if one.seam == "sink"}
    assert {
        one.backend for one in (TestFile, TestWebhook, TestRedisList, TestRedisStream, TestRabbit, TestSqs)
    } == kinds


class FileReceiver:
    secrets: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.path = folder / "items.jsonl"
        self.url, self.refused = str(self.path), str(folder / "nowhere" / "items.jsonl")

    async def received(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()] if self.path.exists() else []

    @property
    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        with files_no_larger_than(self._size):
            yield

    @asynccontextmanager
    async def closing(self, *, after: int) -> AsyncIterator[None]:
        """A disk with room for so many lines, again and again."""

        async def make_room() -> None:
            while True:
                with files_no_larger_than(self._size + after * LINE_BYTES):
                    await asyncio.sleep(0.01)

        making = asyncio.create_task(make_room())
        await asyncio.sleep(0)
        yield
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


class TestFile(SinkContract):
    backend = "file"

    @pytest.fixture
    def receiver(self, tmp_path: Path) -> FileReceiver:
        return FileReceiver(tmp_path)

    async def test_a_check_makes_no_file_and_refuses_a_folder_that_is_not_there(self, receiver: FileReceiver) -> None:
        await opened(receiver.url).check()
        assert not receiver.path.exists()
        with pytest.raises(UsageError, match="is not there: make it, or name another file"):
            await opened(receiver.refused).check()

    async def test_an_item_that_was_stored_on_several_lines_comes_on_one(self, receiver: FileReceiver) -> None:
        on_two, spaced = (msgspec.Raw(text) for text in (b'{"a":\n1}', b'{"b": 2}'))
        await opened(receiver.url).deliver([message(1, item=on_two), message(2, item=spaced)])
        first, second = receiver.path.read_bytes().splitlines()
        assert json.loads(first)["item"] == {"a": 1}
        assert b'"item":{"b": 2}' in second

    @pytest.mark.parametrize("length", [1, 30, 200_000])
    async def test_a_line_that_a_crash_tore_is_cut_off(self, tmp_path: Path, length: int) -> None:
        path = tmp_path / "items.jsonl"
        path.write_bytes(b'{"whole":1}\n{"torn":"' + b"x" * length)
        await opened(str(path)).deliver([message(1)])
        first, second = path.read_bytes().splitlines()
        assert (json.loads(first), json.loads(second)["id"]) == ({"whole": 1}, "books/1/1")

    @pytest.mark.parametrize("line", [b'{"of":"somebody"}', b"1"])
    async def test_a_last_line_that_only_lacks_its_end_stays(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "items.jsonl"
        path.write_bytes(line)
        await opened(str(path)).deliver([message(1)])
        assert path.read_bytes().splitlines()[0] == line
        assert len(path.read_bytes().splitlines()) == 2

    async def test_a_file_that_is_moved_away_is_begun_anew(self, tmp_path: Path) -> None:
        sink = opened(str(tmp_path / "items.jsonl"))
        await sink.deliver([message(1)])
        (tmp_path / "items.jsonl").rename(tmp_path / "old.jsonl")
        await sink.deliver([message(2)])
        assert b"books/2/1" in (tmp_path / "items.jsonl").read_bytes()

    async def test_a_full_disk_is_waited_for_and_leaves_whole_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "items.jsonl"
        await opened(str(path)).deliver([message(1)])
        before = path.read_bytes()
        with files_no_larger_than(len(before) + 100), pytest.raises(ServerUnreachable, match=r"items\.jsonl: "):
            await opened(str(path)).deliver([message(number) for number in range(10)])
        assert path.read_bytes() == before


class WebhookReceiver(RelayedReceiver):
    secrets: tuple[str, ...] = ("hidden-word", "pass-word", SECRET)

    def __init__(self, relay: LineRelay, server: HttpReceiver, refusing: HttpReceiver) -> None:
        super().__init__(
            relay,
            url="http://me:pass-word@127.0.0.1:{port}/in?token=hidden-word",
            refused=f"{refusing.url}/in?token=hidden-word",
        )
        self._server = server

    async def received(self) -> list[dict[str, Any]]:
        return [one for request in list(self._server.received) for one in json.loads(request.body)]


class TestWebhook(SinkContract):
    backend = "webhook"

    @pytest.fixture
    async def receiver(self) -> AsyncIterator[WebhookReceiver]:
        with http_receiver() as server, http_receiver(lambda _: 401) as refusing:
            async with line_relay(server.port) as relay:
                yield WebhookReceiver(relay, server, refusing)

    async def test_messages_come_signed_in_arrays(self) -> None:
        with http_receiver() as receiver:
            sink = opened(f"{receiver.url}/in?shop=1")
            await sink.deliver([message(1), message(2)])
            await sink.close()
        (request,) = receiver.received
        assert request.path == "/in?shop=1"
        assert [one["id"] for one in json.loads(request.body)] == ["books/1/1", "books/2/1"]
        signed = request.headers["shoal-timestamp"].encode() + b"." + request.body
        expected = "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert request.headers["shoal-signature"] == expected
        assert request.headers["content-type"] == "application/json"

    async def test_the_secret_may_be_in_a_file_or_not_wanted(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(f"{SECRET}\n")
        with http_receiver() as receiver:
            for tail in (f"#secret_file={tmp_path}/secret", "#unsigned"):
                sink = open_sink(parse_sink(f"{receiver.url}/in{tail}"), environ={})
                await sink.deliver([message(1)])
                await sink.close()
        signed, unsigned = receiver.received
        assert signed.headers["shoal-signature"].startswith("v1=")
        assert "shoal-signature" not in unsigned.headers

    async def test_large_messages_are_spread_over_several_posts(self) -> None:
        text = msgspec.Raw(json.dumps({"text": "x" * 400_000}).encode())
        with http_receiver() as receiver:
            sink = opened(f"{receiver.url}/in")
            await sink.deliver([message(number, item=text) for number in range(5)])
            await sink.close()
        assert [len(json.loads(one.body)) for one in receiver.received] == [2, 2, 1]

    @pytest.mark.parametrize(
        ("status", "error", "line"),
        [
            (503, ServerUnreachable, "answered 503"),
            (429, ServerUnreachable, "answered 429"),
            (301, ServerUnreachable, "answered 301"),
            (401, UsageError, "refuses messages with 401: check its secret"),
            (422, UsageError, "refuses messages with 422: check its URL and what it takes"),
        ],
    )
    async def test_only_2xx_is_a_delivery(self, status: int, error: type[Exception], line: str) -> None:
        with http_receiver(lambda _: status) as receiver:
            sink = opened(f"{receiver.url}/in?token=hidden-word")
            with pytest.raises(error, match=line) as caught:
                await sink.deliver([message(1)])
            await sink.close()
        assert "hidden-word" not in str(caught.value)

    async def test_a_receiver_that_is_away_is_named_with_its_user(self, receiver: WebhookReceiver) -> None:
        sink = opened(receiver.url)
        async with receiver.away():
            with pytest.raises(ServerUnreachable, match="cannot reach the webhook http://me@127"):
                await sink.deliver([message(1)])
        await sink.close()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[Any]:
    redis.call("ACL", "SETUSER", "me", "on", ">s3cr3t", "~*", "+@all")
    client = Redis.from_url(redis.url.replace("redis://", "redis://me:s3cr3t@"))
    yield client
    client.close()


class RedisReceiver(RelayedReceiver):
    secrets: tuple[str, ...] = ("s3cr3t", "guessed")

    def __init__(self, relay: LineRelay, client: Any, *, kind: str) -> None:
        self.name = f"{kind}-{uuid4().hex}"
        url = f"redis://me:s3cr3t@127.0.0.1:{{port}}/0?{kind}={self.name}"
        super().__init__(relay, url=url, refused=url.replace("s3cr3t", "guessed"))
        self._client, self._kind = client, kind

    async def received(self) -> list[dict[str, Any]]:
        if self._kind == "list":
            return [json.loads(text) for text in self._client.lrange(self.name, 0, -1)]
        entries = [
            {name.decode(): value.decode() for name, value in fields.items()}
            for _, fields in self._client.xrange(self.name)
        ]
        return [
            one | {"item": json.loads(one["item"]), "version": int(one["version"]), "at": float(one["at"])}
            for one in entries
        ]


class _RedisContract(SinkContract):
    backend = "Redis"
    kind = ""

    @pytest.fixture
    async def receiver(self, redis: RedisServer, client: Any) -> AsyncIterator[RedisReceiver]:
        async with line_relay(redis.port) as relay:
            yield RedisReceiver(relay, client, kind=self.kind)

    async def test_a_key_of_another_type_is_one_clear_line(self, receiver: RedisReceiver, client: Any) -> None:
        client.hset(receiver.name, "a", "b")
        sink = opened(receiver.url)
        expected = rf"the key '{receiver.name}' in Redis at .* holds a hash, not a {self.kind}: name another"
        with pytest.raises(UsageError, match=expected):
            await sink.check()
        with pytest.raises(UsageError, match=f"not a {self.kind}: name another"):
            await sink.deliver([message(1)])
        await sink.close()

    async def test_a_wrong_password_is_one_clear_line(self, receiver: RedisReceiver) -> None:
        sink = opened(receiver.refused)
        with pytest.raises(UsageError, match=r"refuses us: .*; check user and password in the URL") as caught:
            await sink.check()
        self.check_line(caught.value, receiver)
        await sink.close()

    async def test_a_server_that_is_away_is_named(self, receiver: RedisReceiver) -> None:
        sink = opened(receiver.url)
        async with receiver.away():
            with pytest.raises(ServerUnreachable, match="cannot reach Redis at redis://me@127"):
                await sink.deliver([message(1)])
        await sink.close()


class TestRedisList(_RedisContract):
    kind = "list"


class TestRedisStream(_RedisContract):
    kind = "stream"

    async def test_a_stream_may_be_bounded(self, receiver: RedisReceiver, client: Any) -> None:
        sink = opened(f"{receiver.url}&maxlen=100")
        for start in range(0, 2000, 500):
            await sink.deliver([message(number) for number in range(start, start + 500)])
        await sink.close()
        assert 100 <= client.xlen(receiver.name) < 500


@asynccontextmanager
async def channel_to(server: RabbitServer) -> AsyncIterator[Any]:
    connection = await aiormq.connect(server.url)
    yield await connection.channel()
    await connection.close()


class RabbitReceiver(RelayedReceiver):
    """An exchange, and a queue that gets all messages of two spiders."""

    secrets: tuple[str, ...] = (":guest@", "s3cr3t")

    def __init__(self, relay: LineRelay, server: RabbitServer) -> None:
        self.exchange, self.queue = f"items-{uuid4().hex}", f"queue-{uuid4().hex}"
        self.server = "amqp://guest:guest@127.0.0.1:{port}/".replace("{port}", str(relay.url_port))
        url = "amqp://guest:guest@127.0.0.1:{port}/?exchange="
        super().__init__(relay, url=f"{url}{self.exchange}", refused=f"{url}missing")
        self._server = server
        self.found: list[Any] = []

    async def begin(self) -> None:
        async with channel_to(self._server) as channel:
            await channel.exchange_declare(self.exchange, exchange_type="topic", durable=True)
            await channel.queue_declare(self.queue, durable=True)
            await channel.queue_bind(self.queue, self.exchange, "books.#")

    async def received(self) -> list[dict[str, Any]]:
        async with channel_to(self._server) as channel:
            while (one := await channel.basic_get(self.queue, no_ack=True)).body:
                self.found.append(one)
        return [json.loads(one.body) for one in self.found]


class TestRabbit(SinkContract):
    backend = "RabbitMQ"

    @pytest.fixture
    async def receiver(self, rabbitmq: RabbitServer) -> AsyncIterator[RabbitReceiver]:
        async with line_relay(rabbitmq.port) as relay:
            receiver = RabbitReceiver(relay, rabbitmq)
            await receiver.begin()
            yield receiver

    async def test_messages_have_a_key_to_route_by_and_outlive_the_broker(self, receiver: RabbitReceiver) -> None:
        sink = opened(receiver.url)
        await sink.deliver([message(1), message(1, version=2)])
        await sink.close()
        await self.expect(receiver, {"1": 2})
        assert [one.routing_key for one in receiver.found] == ["books.new", "books.changed"]
        properties = receiver.found[0].header.properties
        assert (properties.message_id, properties.delivery_mode) == ("books/1/1", 2)

    async def test_a_queue_or_a_routing_key_may_be_named(self, receiver: RabbitReceiver) -> None:
        for options in (f"exchange={receiver.exchange}&routing_key=books.own", f"queue={receiver.queue}"):
            sink = opened(f"{receiver.server}?{options}")
            await sink.check()
            await sink.deliver([message(1)])
            await sink.close()
        await self.expect(receiver, {"1": 1})
        assert [one.routing_key for one in receiver.found] == ["books.own", receiver.queue]

    async def test_messages_that_no_queue_would_get_are_refused(self, receiver: RabbitReceiver) -> None:
        sink = opened(receiver.url)
        with pytest.raises(UsageError, match=r"has no queue for messages to the exchange .*: bind one"):
            await sink.deliver([message(1), message(2, spider="films")])
        await sink.deliver([message(3)])
        await sink.close()

    async def test_a_missing_exchange_or_queue_is_one_clear_line(self, receiver: RabbitReceiver) -> None:
        for options in ("exchange=missing", "queue=missing"):
            sink = opened(f"{receiver.server}?{options}")
            with pytest.raises(UsageError, match=r"does not have the \w+ 'missing': make it, or name another"):
                await sink.check()
            await sink.close()

    @pytest.mark.parametrize(("was", "now"), [("guest:guest@", "guest:s3cr3t@"), ("/?", "/no-such-vhost?")])
    async def test_a_wrong_password_or_vhost_is_one_clear_line(
        self, receiver: RabbitReceiver, was: str, now: str
    ) -> None:
        sink = opened(receiver.url.replace(was, now))
        with pytest.raises(UsageError, match=r"refuses us: .*; check user, password and vhost") as caught:
            await sink.check()
        self.check_line(caught.value, receiver)
        await sink.close()

    async def test_a_broker_that_is_away_is_named(self, receiver: RabbitReceiver) -> None:
        sink = opened(receiver.url)
        async with receiver.away():
            with pytest.raises(ServerUnreachable, match="cannot reach RabbitMQ at amqp://guest@127"):
                await sink.deliver([message(1)])
        await sink.close()


class SqsReceiver(RelayedReceiver):
    secrets: tuple[str, ...] = (MotoServer.ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],)

    def __init__(self, relay: LineRelay, queues: Any, *, name: str) -> None:
        tail = "?region=us-east-1&endpoint=http://127.0.0.1:{port}"
        super().__init__(relay, url=f"sqs://{name}{tail}", refused=f"sqs://missing{tail}")
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self._queues = queues
        self._queue = queues.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self._found: list[dict[str, Any]] = []

    async def received(self) -> list[dict[str, Any]]:
        await asyncio.to_thread(self._read)
        return self._found

    def _read(self) -> None:
        while some := self._queues.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10).get("Messages"):
            for one in some:
                self._found.append(json.loads(one["Body"]))
                self._queues.delete_message(QueueUrl=self._queue, ReceiptHandle=one["ReceiptHandle"])


@pytest.fixture
def queues(moto: MotoServer) -> Any:
    return boto3.client("sqs", region_name="us-east-1", endpoint_url=moto.endpoint)


class TestSqs(SinkContract):
    """A queue that keeps the order of each key."""

    backend = "SQS"

    @pytest.fixture
    async def receiver(self, moto: MotoServer, queues: Any) -> AsyncIterator[SqsReceiver]:
        async with line_relay(moto.port) as relay:
            yield SqsReceiver(relay, queues, name=f"items-{uuid4().hex}.fifo")


class TestSqsWithoutOrder:
    @pytest.fixture
    async def receiver(self, moto: MotoServer, queues: Any) -> AsyncIterator[SqsReceiver]:
        async with line_relay(moto.port) as relay:
            yield SqsReceiver(relay, queues, name=f"items-{uuid4().hex}")

    async def test_messages_arrive(self, receiver: SqsReceiver) -> None:
        sink = opened(receiver.url)
        await sink.check()
        await sink.deliver([message(number) for number in range(25)])
        await sink.close()
        check_delivery(await receiver.received(), expected={str(number): 1 for number in range(25)})

    async def test_items_that_are_large_are_spread_and_those_that_are_too_large_come_without(
        self, receiver: SqsReceiver
    ) -> None:
        sizes = (100_000, 100_000, 100_000, 500_000)
        sink = opened(receiver.url)
        large = [msgspec.Raw(json.dumps({"text": "x" * size}).encode()) for size in sizes]
        await sink.deliver([message(number, item=item) for number, item in enumerate(large)])
        await sink.close()
        found = {one["key"]: one["item"] for one in await receiver.received()}
        assert [found[str(number)] is None for number in range(4)] == [False, False, False, True]

    async def test_a_missing_queue_is_one_clear_line(self, receiver: SqsReceiver) -> None:
        sink = opened(receiver.refused)
        with pytest.raises(UsageError, match="there is no queue 'missing' for the sink sqs://missing"):
            await sink.check()
        await sink.close()

    async def test_a_service_that_is_away_is_named(self, moto: MotoServer) -> None:
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


async def test_standard_output_gets_lines(capfd: pytest.CaptureFixture[str]) -> None:
    sink = opened("-")
    await sink.check()
    await sink.deliver([message(1), message(2)])
    await sink.close()
    assert [json.loads(line)["id"] for line in capfd.readouterr().out.splitlines()] == ["books/1/1", "books/2/1"]


async def test_standard_output_that_was_closed_is_one_clear_line() -> None:
    reading, writing = os.pipe()
    kept = os.dup(1)
    os.close(reading)
    os.dup2(writing, 1)
    try:
        with pytest.raises(UsageError, match="standard output takes no more: Broken pipe"):
            await opened("-").deliver([message(1)])
    finally:
        os.dup2(kept, 1)
        os.close(writing)
        os.close(kept)
