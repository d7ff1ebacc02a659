"""Every pipe of shoal keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from shoal.errors import ServerUnreachable, UsageError
from shoal.pipes import open_pipe
from shoal.pipes.base import Pipe
from shoal.pipes.rabbitmq import PREFETCH
from shoal.testing.pipe_contract import QUEUE, SECONDS, PipeContract, bodies, receive
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable


class TestRabbitPipe(PipeContract):
    _server: RabbitServer

    @pytest.fixture(autouse=True)
    def at_rabbitmq(self, rabbitmq: RabbitServer) -> None:
        self._server = rabbitmq

    def url(self, prefix: str, *, port: int | None = None) -> str:
        return self._server.at(prefix, port=port)

    @property
    def port(self) -> int:
        return self._server.port

    async def test_a_message_that_nobody_receives_in_time_is_dropped(self, pipe: Pipe) -> None:
        await pipe.send(QUEUE, [b"one"], seconds=0.05)

        async def is_dropped() -> bool:
            return await pipe.count(QUEUE) == 0

        await eventually(is_dropped)

    async def test_a_receiver_that_confirms_nothing_holds_no_more_than_the_prefetch(
        self, pipe: Pipe, second: Pipe
    ) -> None:
        sent = [b"%04d" % number for number in range(3 * PREFETCH)]
        await pipe.send(QUEUE, sent, seconds=SECONDS)
        held = await receive(second, PREFETCH)
        assert await second.receive(QUEUE, most=len(sent), seconds=0.5) == []

        async def rest_waits() -> bool:
            return await pipe.count(QUEUE) == len(sent) - PREFETCH

        await eventually(rest_waits)
        await second.confirm(held[:10])
        assert bodies(await receive(second, 10)) == sent[PREFETCH : PREFETCH + 10]

    async def test_a_queue_of_another_kind_is_refused(self, pipe: Pipe, second: Pipe) -> None:
        with pytest.raises(UsageError, match=r"of another kind: .*; remove it, or give a prefix of your own"):
            await second.open_queue(QUEUE, passing=True)
        await pipe.send(QUEUE, [b"one"], seconds=SECONDS)


class TestSqsPipe(PipeContract):
    _server: MotoServer

    @pytest.fixture(autouse=True)
    def at_moto(self, moto: MotoServer) -> None:
        self._server = moto

    def url(self, prefix: str, *, port: int | None = None) -> str:
        return self._server.queues_url(prefix, port=port, redelivery=2)

    @property
    def port(self) -> int:
        return self._server.port

    async def test_queues_of_workers_that_are_gone_are_swept_away(self, pipe: Pipe, second: Pipe) -> None:
        await pipe.open_queue("answers-used", passing=True)
        await pipe.open_queue("answers-left", passing=True)
        for queue in ("answers-used", "answers-left"):
            await pipe.send(queue, [b"one"], seconds=SECONDS)

        async def is_swept() -> bool:
            await pipe.sweep(used=["answers-used"], seconds=1)
            return await second.count("answers-left") == 0

        await eventually(is_swept)
        assert await second.count("answers-used") == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A server of its own, which is killed and given an alarm."""
    server = RabbitServer(tmp_path_factory.mktemp("killed")).start()
    yield server
    server.remove()


@pytest.mark.full
class TestRabbitOutages:
    async def test_what_the_broker_confirmed_survives_its_sudden_end(self, server: RabbitServer) -> None:
        pipe = open_pipe(server.at("killed"))
        await pipe.open_queue(QUEUE)
        await asyncio.to_thread(server.wait_for_the_disk, f"killed.{QUEUE}")
        await pipe.send(QUEUE, [b"one", b"two"], seconds=SECONDS)
        await receive(pipe, 1)
        await asyncio.to_thread(server.restart)

        async def both() -> list[bytes]:
            await pipe.open_queue(QUEUE)
            return bodies(await receive(pipe, 2))

        assert await until_reachable(both, say=print) == [b"one", b"two"]
        await pipe.close()

    async def test_an_alarm_of_the_broker_is_waited_out(self, server: RabbitServer) -> None:
        pipe = open_pipe(server.at("alarm"))
        await pipe.open_queue(QUEUE)
        await asyncio.to_thread(server.raise_alarm)
        with pytest.raises(ServerUnreachable, match="memory or disk alarm"):
            await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        sending = asyncio.create_task(until_reachable(lambda: pipe.send(QUEUE, [b"two"], seconds=SECONDS), say=print))
        await asyncio.to_thread(server.end_alarm)
        await sending
        assert b"two" in bodies(await pipe.receive(QUEUE, most=10, seconds=5))
        await pipe.close()


@pytest.mark.full
class TestSqsOutages:
    async def test_a_service_that_was_restarted_and_forgot_its_queues_is_used_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in MotoServer.ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        server = MotoServer(tmp_path / "moto").start()
        pipe = open_pipe(server.queues_url("restarted"))
        await pipe.open_queue(QUEUE)
        await asyncio.to_thread(server.kill)
        with pytest.raises(ServerUnreachable, match="cannot reach SQS"):
            await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
        await asyncio.to_thread(server.start)
        await until_reachable(lambda: pipe.open_queue(QUEUE), say=print)
        await pipe.send(QUEUE, [b"two"], seconds=SECONDS)
        assert bodies(await receive(pipe, 1)) == [b"two"]
        await pipe.close()
        await asyncio.to_thread(server.kill)


@pytest.fixture
def secure_rabbitmq(tmp_path: Path) -> Iterator[tuple[RabbitServer, Path]]:
    """A server that listens with TLS, and the certificate of its authority. Five seconds: the shared one has none."""
    authority, certificate, trusted = trustme.CA(), tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    server = RabbitServer(tmp_path / "rabbitmq", certificate=certificate).start()
    yield server, trusted
    server.remove()


@pytest.mark.full
async def test_a_pipe_with_tls_carries_messages_and_trusts_only_the_authority_that_is_named(
    secure_rabbitmq: tuple[RabbitServer, Path],
) -> None:
    server, trusted = secure_rabbitmq
    url = f"amqps://guest:guest@127.0.0.1:{server.secure_port}/?prefix=tls"
    pipe = open_pipe(f"{url}&cafile={trusted}")
    await pipe.open_queue(QUEUE)
    await pipe.send(QUEUE, [b"one"], seconds=SECONDS)
    assert bodies(await receive(pipe, 1)) == [b"one"]
    await pipe.close()
    stranger = open_pipe(url)
    with pytest.raises(UsageError, match=r"is not trusted: name its CA with \?cafile=/path/to/ca\.pem"):
        await stranger.open_queue(QUEUE)
    await stranger.close()
