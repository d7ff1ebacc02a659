"""The connections to a Redis server, or to the nodes of a cluster, and the server's errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from redis import exceptions
from redis.asyncio.connection import SSLConnection

from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.frontier.redis.address import CLUSTER_EXAMPLE, new_connection, parse_address
from shoal.frontier.redis.cluster import Node, SlotMap
from shoal.frontier.redis.cluster_connection import ClusterConnection
from shoal.frontier.redis.connection import Connection
from shoal.frontier.redis.scripts import shipped_scripts
from shoal.frontier.redis.sentinel import masters, no_master
from shoal.frontier.redis.tls import connected
from shoal.frontier.steady import SteadyTimes

ANSWER_SECONDS = 20.0
IDLE_CONNECTIONS = 8

# Codes of what passes by itself. Servers before version 7 wrap the error of a command that a script called.
_PASSING = re.compile(r"(^|[ -])(MISCONF|BUSY|NOREPLICAS|READONLY|CLUSTERDOWN|MASTERDOWN|UNKILLABLE) ")
# All that a line can raise. UnicodeError: of a host's name that DNS cannot have.
_FAULTS = (exceptions.RedisError, OSError, TimeoutError, UnicodeError)

AnyConnection = Connection | ClusterConnection


class RedisConnections:
    """Lends connections to one server, or to the nodes of a cluster, and keeps a few of them open. Its errors never
    show the password."""

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
        """A connection to this node. It is closed after an error or a cancelled call: unread answers would shift all
        others."""
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
        """A connection to the server that a sentinel calls the master and that itself says so."""
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
        """A node of a cluster does not have the key. Callers wait while a slot moves: a script needs all its keys."""
        if self._slots is None:
            return UsageError(f"Redis at {self.shown} is part of a cluster: write {CLUSTER_EXAMPLE}")
        self._slots.doubt()
        return ServerUnreachable(f"the cluster at {self.shown} is moving slot {error.slot_id}")


def is_passing(error: Exception) -> bool:
    """Whether a server that refuses like this will not do so for long."""
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
