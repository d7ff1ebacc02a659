"""A line to Redis that breaks is waited for, whatever broke it: no error of a driver reaches a worker."""

from __future__ import annotations

import asyncio
import socketserver
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import uvloop

from shoal.errors import ServerUnreachable, StorageError, UsageError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.inbox import RedisInbox
from shoal.model import Crawl, Done
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.line_relay import LineRelay, line_relay
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

CRAWL = "books"
TASKS = 24
Break = Callable[[LineRelay], None]
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Run]:
    """Runs a test under either loop: they raise different errors for a line that is lost."""
    server.call("FLUSHALL")
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


async def open_through(relay: LineRelay) -> RedisFrontier:
    return await RedisFrontier.open(f"redis://127.0.0.1:{relay.url_port}/0")


BREAKS: dict[str, Break] = {
    "reset": LineRelay.reset,
    "hung up": LineRelay.hang_up,
    "garbled": LineRelay.garble,
    "answer broken off": LineRelay.break_off,
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_line_that_breaks_while_idle_or_in_use_is_waited_for(how: str, run: Run, server: RedisServer) -> None:
    async def scenario() -> None:
        async with line_relay(server.port) as relay:
            frontier = await open_through(relay)
            await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
            await frontier.put(CRAWL, [make_task(number, max_attempts=99) for number in range(TASKS)])
            done, turn = 0, 0
            while done < TASKS:
                # Every other time: were each answer lost, nobody would ever hear of the last lease.
                turn += 1
                if turn % 2:
                    BREAKS[how](relay)
                # Leases whose answer was lost come again when they have run out; so a page may be done twice.
                batch = await until_reachable(
                    lambda: frontier.lease([CRAWL], 8, worker="w", seconds=1.0, horizon=1.0), say=print
                )
                BREAKS[how](relay)
                results = [Done(lease=lease) for lease in batch.leases]
                await until_reachable(partial(frontier.settle, results), say=print)
                done = (await until_reachable(lambda: frontier.progress(CRAWL), say=print)).done
            progress = await frontier.progress(CRAWL)
            await frontier.close()
            assert (progress.done, progress.left, progress.dead) == (TASKS, 0, 0)

    run(scenario())


def test_an_idle_line_that_was_reset_is_replaced_without_an_error(run: Run, server: RedisServer) -> None:
    async def scenario() -> None:
        async with line_relay(server.port) as relay:
            frontier = await open_through(relay)
            await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
            for _ in range(7):
                await frontier.progress(CRAWL)
                relay.reset()
                await eventually(lambda: relay.lines == 0)
                # Until the reset has come through: the kernel tells the client, not the relay.
                await eventually(lambda: _is_known_lost(frontier))
                await frontier.progress(CRAWL)
            await frontier.close()

    run(scenario())


def _is_known_lost(frontier: RedisFrontier) -> bool:
    return all(one._driver._writer.is_closing() for one in frontier._connections._idle[None])


def test_a_reset_while_an_answer_is_awaited_is_waited_for(run: Run, server: RedisServer) -> None:
    async def scenario() -> None:
        async with line_relay(server.port) as relay:
            frontier = await open_through(relay)
            await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
            relay.stall(3600)
            asking = asyncio.ensure_future(frontier.progress(CRAWL))
            await asyncio.sleep(0)
            relay.reset()
            relay.stall(0)
            with pytest.raises(ServerUnreachable, match="cannot reach Redis at"):
                await asking
            assert (await frontier.progress(CRAWL)).queued == 0
            await frontier.close()

    run(scenario())


def test_the_inbox_waits_as_well(run: Run, server: RedisServer) -> None:
    async def scenario() -> None:
        server.call("LPUSH", f"shoal:inbox:{CRAWL}", "http://a.test/")
        async with line_relay(server.port) as relay:
            inbox = RedisInbox(f"redis://127.0.0.1:{relay.url_port}/0")
            for _ in range(7):
                assert await until_reachable(lambda: inbox.waiting([CRAWL]), say=print) == [CRAWL]
                relay.reset()
            await inbox.close()

    run(scenario())


ERRORS = {
    b"-LOADING Redis is loading the dataset in memory": ServerUnreachable,
    b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL": ServerUnreachable,
    b"-READONLY You can't write against a read only replica.": ServerUnreachable,
    b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": ServerUnreachable,
    b"-NOREPLICAS Not enough good replicas to write.": ServerUnreachable,
    b"-MISCONF Errors writing to the AOF file: No space left on device": ServerUnreachable,
    b"-ERR Error running script (call to f_1): @user_script:9: -MISCONF Errors writing": ServerUnreachable,
    b"-ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write": ServerUnreachable,
    b"-OOM command not allowed when used memory > 'maxmemory'.": ServerUnreachable,
    b"-ERR max number of clients reached": ServerUnreachable,
    b"-CLUSTERDOWN The cluster is down": ServerUnreachable,
    b"-TRYAGAIN Multiple keys request during rehashing of slot": ServerUnreachable,
    b"HTTP/1.1 400 Bad Request": ServerUnreachable,
    b"-\xff\xfe\x00": StorageError,
    b"*-7": ServerUnreachable,
    b"$nonsense": ServerUnreachable,
    b"-NOAUTH Authentication required.": UsageError,
    b"-WRONGPASS invalid username-password pair or user is disabled.": UsageError,
    b"-NOPERM User worker has no permissions to run the 'evalsha' command": UsageError,
    b"-DENIED Redis is running in protected mode": UsageError,
}


@contextmanager
def fake_server(answer: bytes, *, at: str) -> Iterator[int]:
    """Answers with these bytes; gives its port."""

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                if line.strip() == b"INFO" and at == "working":
                    self.wfile.write(b"$21\r\nrun_id:abc\r\nversion:1\r\n")
                elif line.strip() in (b"INFO", b"CONFIG"):
                    self.wfile.write(answer + b"\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("answer", ERRORS)
@pytest.mark.parametrize("at", ["connecting", "working"])
def test_every_error_of_a_server_is_one_line(answer: bytes, at: str, run: Run) -> None:
    """A real server gives few of these at will."""

    async def scenario() -> None:
        with fake_server(answer, at=at) as port:
            inbox = RedisInbox(f"redis://127.0.0.1:{port}/0")
            with pytest.raises((ServerUnreachable, StorageError, UsageError)) as caught:
                async with inbox._connections.borrow() as connection:
                    await connection.call("CONFIG", "x")
            await inbox.close()
        assert type(caught.value) is ERRORS[answer]
        assert "\n" not in str(caught.value)

    run(scenario())


def test_a_password_that_was_changed_is_final(run: Run, server: RedisServer) -> None:
    async def scenario() -> None:
        server.call("ACL", "SETUSER", "me", "on", ">old", "~*", "&*", "+@all")
        async with line_relay(server.port) as relay:
            frontier = await RedisFrontier.open(f"redis://me:old@127.0.0.1:{relay.url_port}/0")
            server.call("ACL", "SETUSER", "me", "resetpass", ">new")
            relay.reset()
            with pytest.raises(UsageError, match="check user and password in the URL"):
                await until_reachable(frontier.crawls, say=print)
            await frontier.close()

    run(scenario())


def test_a_name_that_cannot_be_one_is_a_line(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises((UsageError, ServerUnreachable), match=r"redis://a\.\.b"):
            await RedisFrontier.open("redis://a..b:6379/0")

    run(scenario())
