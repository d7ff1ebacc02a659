"""Connections to a Redis server, a master behind sentinels, or the nodes of a cluster; Redis errors as shoal's."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from redis import exceptions
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.crc import key_slot

from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.frontier.clock import SteadyTimes
from shoal.frontier.redis.address import CLUSTER_EXAMPLE, Address, new_connection, parse_address
from shoal.frontier.redis.connection import Argument, Connection, ask, connected
from shoal.frontier.redis.scripts import shipped_scripts


async def masters(address: Address) -> AsyncGenerator[tuple[str, int], None]:
    """The master that each reachable sentinel names: a sentinel that was cut off may still name the former one."""
    failure: Exception | None = None
    is_reached = False
    for pool in address.sentinels:
        connection = new_connection(pool)
        try:
            named = await _master(connection, address.service)
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            failure = error
            continue
        finally:
            await connection.disconnect(nowait=True)
        is_reached = True
        if named is not None:
            yield named
    if failure is not None and not is_reached:
        raise failure


def no_master(address: Address) -> ServerUnreachable:
    return ServerUnreachable(f"the sentinels at {address.shown} name no master {address.service!r} that can be reached")


async def _master(connection: AbstractConnection, service: str) -> tuple[str, int] | None:
    answer = await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return (answer[0].decode(), int(answer[1])) if answer else None


Node = tuple[str, int]


class SlotMap:
    """Which node has which slot; asked from the cluster when needed, and again after `doubt`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ends: list[int] = []
        self._ranges: list[tuple[int, int, Node]] = []
        self._is_old = True
        self._lock = asyncio.Lock()

    def doubt(self) -> None:
        """Ask the cluster again before the next use: a node did not have the slot, or did not answer."""
        self._is_old = True

    async def node_of(self, key: str) -> Node:
        """The node that has this key."""
        await self._refresh()
        slot = key_slot(key.encode())
        at = bisect.bisect_left(self._ends, slot)
        if at < len(self._ranges) and self._ranges[at][0] <= slot:
            return self._ranges[at][2]
        raise ServerUnreachable(f"the cluster at {self._address.shown} has no node for slot {slot}")

    async def nodes(self) -> list[Node]:
        """All nodes that have slots."""
        await self._refresh()
        return sorted({node for _, _, node in self._ranges})

    async def _refresh(self) -> None:
        if not self._is_old:
            return
        async with self._lock:
            if self._is_old:
                self._ranges = await self._ask()
                self._ends = [last for _, last, _ in self._ranges]
                self._is_old = False

    async def _ask(self) -> list[tuple[int, int, Node]]:
        """Ask the known nodes, then those of the URL, until one answers."""
        failure: Exception | None = None
        for node in dict.fromkeys([node for _, _, node in self._ranges] + list(self._address.nodes)):
            connection = new_connection(self._address.server, host=node[0], port=node[1])
            try:
                return _ranges(await ask(connection, "CLUSTER", "SLOTS"), node)
            except (exceptions.AuthenticationError, exceptions.NoPermissionError):
                raise
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                if "cluster support disabled" in str(error):
                    raise UsageError(f"{self._address.shown} is no Redis Cluster: write redis://host:6379/0") from None
                failure = error
            finally:
                await connection.disconnect(nowait=True)
        raise failure or ServerUnreachable(f"no node of {self._address.shown} answers")


def _ranges(answer: Iterable[Any], asked: Node) -> list[tuple[int, int, Node]]:
    """First slot, last slot and master of each range. A node without a name is the node that was asked."""
    ranges = []
    for first, last, (host, port, *_), *_ in answer:
        name = host.decode() if host else ""
        ranges.append((int(first), int(last), (asked[0] if name in ("", "?") else name, int(port))))
    return sorted(ranges)


MOST_MOVES = 3


class ClusterConnection:
    """Connections to several nodes of a cluster, used as one: each command goes to the node that has its key.

    If a node cannot be reached, only its own commands fail."""

    def __init__(self, slots: SlotMap, take: Callable[[Node], Awaitable[Connection]]) -> None:
        self._slots = slots
        self._take = take
        self._sent: list[tuple[str, Callable[[Connection], Awaitable[None]], Node | Exception]] = []
        self.connections: dict[Node, Connection] = {}

    async def call(self, *command: Argument) -> Any:
        """One command and its answer."""
        await self.send(*command)
        return (await self.answers())[0]

    async def send(self, *command: Argument) -> None:
        """A command whose answer is read later."""
        key = command[3] if command[0] == "EVAL" else command[1]
        await self._send(str(key), lambda connection: connection.send(*command))

    async def run(self, verb: str, prefix: str, *args: Argument) -> Any:
        """One script on one crawl's shard and its answer."""
        await self.send_script(verb, prefix, args)
        return (await self.answers())[0]

    async def send_script(self, verb: str, prefix: str, args: Sequence[Argument], *, unchecked: bool = False) -> None:
        """A script whose answer is read later."""
        await self._send(prefix, lambda connection: connection.send_script(verb, prefix, args, unchecked=unchecked))

    async def send_bare_script(self, verb: str, prefix: str, args: Sequence[Argument]) -> None:
        """A script that belongs to no crawl."""
        await self._send(prefix, lambda connection: connection.send_bare_script(verb, prefix, args))

    async def answers(self) -> list[Any]:
        """The answers to all that was sent, in order. The first error is raised when all are read."""
        answers = await self.answers_or_errors()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def answers_or_errors(self) -> list[Any]:
        """The answers to all that was sent, in order; an error stands instead of its answer."""
        for _ in range(MOST_MOVES):
            sent, self._sent = self._sent, []
            answers = await self._read(sent)
            if not any(isinstance(answer, exceptions.MovedError) for answer in answers):
                return answers
            self._slots.doubt()
            # Answered commands keep their answer, the others are sent to the node that has their key now.
            for (key, send, _), answer in zip(sent, answers, strict=True):
                if isinstance(answer, exceptions.MovedError):
                    await self._send(key, send)
                else:
                    self._sent.append((key, send, _Answered(answer)))
        sent, self._sent = self._sent, []
        return await self._read(sent)

    async def _send(self, key: str, send: Callable[[Connection], Awaitable[None]]) -> None:
        try:
            node = await self._slots.node_of(key)
            if node not in self.connections:
                self.connections[node] = await self._take(node)
            await send(self.connections[node])
            self._sent.append((key, send, node))
        except (exceptions.RedisError, OSError, ServerUnreachable) as error:
            self._slots.doubt()
            self._sent.append((key, send, error))

    async def _read(self, sent: Sequence[tuple[str, Any, Node | Exception]]) -> list[Any]:
        nodes = list(dict.fromkeys(node for _, _, node in sent if isinstance(node, tuple)))
        reads = await asyncio.gather(
            *(self.connections[node].answers_or_errors() for node in nodes), return_exceptions=True
        )
        by_node: dict[Node, Any] = {}
        for node, read in zip(nodes, reads, strict=True):
            by_node[node] = iter(read) if isinstance(read, list) else read
            if isinstance(read, BaseException):
                self._slots.doubt()
                await self.connections.pop(node).close()
        return [self._answer(node, by_node) for _, _, node in sent]

    def _answer(self, node: Node | Exception, by_node: dict[Node, Any]) -> Any:
        if isinstance(node, _Answered):
            return node.answer
        if isinstance(node, Exception):
            return node
        read = by_node[node]
        return read if isinstance(read, BaseException) else next(read)


class _Answered(Exception):  # noqa: N818 -- stands among exceptions for an answer that is there already
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


ANSWER_SECONDS = 20.0
IDLE_CONNECTIONS = 8

# Error codes of states that pass. Servers before version 7 wrap the error of a command that a script called.
_PASSING = re.compile(r"(^|[ -])(MISCONF|BUSY|NOREPLICAS|READONLY|CLUSTERDOWN|MASTERDOWN|UNKILLABLE) ")
# The errors that a connection can raise; UnicodeError: for a host name that DNS does not allow.
_FAULTS = (exceptions.RedisError, OSError, TimeoutError, UnicodeError)

AnyConnection = Connection | ClusterConnection


class RedisConnections:
    """A pool of connections to one server, or to the nodes of a cluster. Its errors never show the password."""

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, steady: Callable[[], float] | None = None
    ) -> None:
        self._address = parse_address(url)
        self.shown = self._address.shown
        self._clock: Callable[[], str] = str if clock is None else lambda: repr(float(clock()))
        self.times = SteadyTimes(steady)
        self.shards = self._address.shards
        self._scripts = shipped_scripts()
        self._slots = SlotMap(self._address) if self._address.nodes else None
        self._idle: dict[Node | None, list[Connection]] = {}
        self._closed = False
        self.run_id = ""  # of the server that was connected to last

    @property
    def is_cluster(self) -> bool:
        return self._slots is not None

    async def nodes(self) -> list[Node | None]:
        """Every server; None stands for the only one."""
        if self._slots is None:
            return [None]
        try:
            return [*await self._slots.nodes()]
        except _FAULTS as error:
            raise self._in_our_words(error) from None

    def borrow(self, *, seconds: float | None = ANSWER_SECONDS) -> AbstractAsyncContextManager[AnyConnection]:
        """A connection to the server, or one to all nodes of a cluster."""
        if self._slots is None:
            return self.borrow_from(None, seconds=seconds)
        return self._borrow_cluster(self._slots, seconds)

    @contextlib.asynccontextmanager
    async def borrow_at(self, key: str, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Connection]:
        """A connection to the server that has this key."""
        try:
            node = None if self._slots is None else await self._slots.node_of(key)
        except _FAULTS as error:
            raise self._in_our_words(error) from None
        async with self.borrow_from(node, seconds=seconds) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def borrow_from(
        self, node: Node | None, *, seconds: float | None = ANSWER_SECONDS
    ) -> AsyncIterator[Connection]:
        """A connection to this node. It is closed after an error or a cancelled call: an unread answer would be taken
        for that of the next command."""
        connection = None
        try:
            async with asyncio.timeout(seconds):
                connection = await self._take(node)
                yield connection
                if self._keeps(connection, node):
                    connection = None
        except _FAULTS as error:
            if self._slots is not None:
                self._slots.doubt()
            raise self._in_our_words(error) from None
        finally:
            if connection is not None:
                await connection.close()

    @contextlib.asynccontextmanager
    async def _borrow_cluster(self, slots: SlotMap, seconds: float | None) -> AsyncIterator[ClusterConnection]:
        cluster = ClusterConnection(slots, self._take)
        try:
            async with asyncio.timeout(seconds):
                yield cluster
                cluster.connections = {
                    node: connection
                    for node, connection in cluster.connections.items()
                    if not self._keeps(connection, node)
                }
        except (*_FAULTS, ServerUnreachable) as error:
            slots.doubt()
            raise self._in_our_words(error) from None
        finally:
            for connection in cluster.connections.values():
                await connection.close()

    async def close(self) -> None:
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                await connection.close(waits=True)
        self._idle.clear()

    def _keeps(self, connection: Connection, node: Node | None) -> bool:
        idle = self._idle.setdefault(node, [])
        if len(idle) >= IDLE_CONNECTIONS or self._closed:
            return False
        idle.append(connection)
        return True

    async def _take(self, node: Node | None) -> Connection:
        if self._closed:
            raise StorageError(f"the frontier at {self.shown} is closed")
        idle = self._idle.get(node, [])
        while idle:
            connection = idle.pop()
            if await connection.is_usable():
                return connection
            await connection.close()
        if node is not None:
            return await self._connect(host=node[0], port=node[1])
        return await (self._connect_to_master() if self._address.sentinels else self._connect())

    async def _connect(self, **node: str | int) -> Connection:
        driver = new_connection(self._address.server, **node)
        connection = Connection(driver, self._scripts)
        connection.clock, connection.times = self._clock, self.times
        try:
            if isinstance(driver, SSLConnection):
                await connected(connection.connect(), host=driver.host, port=driver.port, shown=self.shown)
            else:
                await connection.connect()
        except BaseException:
            await connection.close()
            raise
        self.run_id = "" if self.is_cluster else connection.run_id
        return connection

    async def _connect_to_master(self) -> Connection:
        """A connection to the server that a sentinel names as master, and whose role is master."""
        async with contextlib.aclosing(masters(self._address)) as named:
            async for host, port in named:
                connection = await self._connect_if_there(host, port)
                if connection is not None:
                    return connection
        raise no_master(self._address)

    async def _connect_if_there(self, host: str, port: int) -> Connection | None:
        connection = None
        try:
            connection = await self._connect(host=host, port=port)
            if (await connection.call("ROLE"))[0] == b"master":
                master, connection = connection, None
                return master
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            if isinstance(_translated(error, str(error), self.shown), UsageError):
                raise
        finally:
            if connection is not None:
                await connection.close()
        return None

    def _in_our_words(self, error: Exception) -> ShoalError:
        if isinstance(error, ShoalError):
            return error
        if isinstance(error, exceptions.AskError):
            return self._elsewhere(error)
        text = self._address.mask.over(str(error)) or f"no answer within {ANSWER_SECONDS:.0f} seconds"
        return _translated(error, text, self.shown)

    def _elsewhere(self, error: exceptions.AskError) -> ShoalError:
        """The error when a node does not have the key. Callers wait while a slot moves: a script needs all its keys."""
        if self._slots is None:
            return UsageError(f"Redis at {self.shown} is part of a cluster: write {CLUSTER_EXAMPLE}")
        self._slots.doubt()
        return ServerUnreachable(f"the cluster at {self.shown} is moving slot {error.slot_id}")


def is_passing(error: Exception) -> bool:
    """Whether the state of the server behind this error passes by itself."""
    passing = (
        exceptions.OutOfMemoryError, exceptions.ReadOnlyError, exceptions.TryAgainError, exceptions.ClusterDownError,
    )  # fmt: skip
    return isinstance(error, passing) or _PASSING.search(str(error)) is not None or "OOM command" in str(error)


def _translated(error: Exception, text: str, at: str) -> ShoalError:
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command" in text:
        return ServerUnreachable(
            f"Redis at {at} is at maxmemory: raise it (redis-cli CONFIG SET maxmemory 4gb) or delete old crawls"
        )
    if isinstance(error, exceptions.BusyLoadingError):
        return ServerUnreachable(f"Redis at {at} is loading its data after a restart")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return UsageError(
            f"the certificate of Redis at {at} is not trusted: name its CA with ?ssl_ca_certs=/path/to/ca.pem ({text})"
        )
    if isinstance(error, (exceptions.AuthenticationError, exceptions.NoPermissionError)):
        return UsageError(f"Redis at {at} refuses us: {text}; check user and password in the URL")
    if "DENIED Redis is running in protected mode" in text:
        return UsageError(f"Redis at {at} refuses us: it takes no clients from other machines without a password")
    if isinstance(error, UnicodeError):
        return UsageError(f"{at} names no usable host: {text}")
    if is_passing(error):
        return ServerUnreachable(f"Redis at {at} takes no writes now: {text}")
    if isinstance(error, exceptions.ResponseError):
        return StorageError(f"Redis at {at} refuses: {text}")
    return ServerUnreachable(f"cannot reach Redis at {at}: {text}")
