"""Connections to a Redis server: scripts sent and read in bulk, and the server's errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, SSLConnection

from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.frontier.redis.address import CLUSTER_EXAMPLE, new_connection, parse_address
from shoal.frontier.redis.bundle import Bundle
from shoal.frontier.redis.cluster import Place, SlotMap
from shoal.frontier.redis.scripts import Script, load_scripts
from shoal.frontier.redis.sentinel import masters, no_master
from shoal.frontier.redis.tls import connected

ANSWER_SECONDS = 20.0
IDLE_CONNECTIONS = 8

Argument = str | bytes | int | float


class Line:
    """One connection. Send any number of commands, then read all their answers."""

    def __init__(self, connection: AbstractConnection, scripts: dict[str, Script]) -> None:
        self._connection = connection
        self._scripts = scripts
        self._sent: list[bytes] = []
        self.run_id = ""
        self.version = ""
        self.clock: Callable[[], str] = str

    async def connect(self) -> None:
        """Reach the server and learn which run of it this is."""
        await self._connection.connect()  # type: ignore[no-untyped-call]  # the library has no annotation here
        about = fields(await self.call("INFO", "server"))
        self.run_id, self.version = about.get("run_id", ""), about.get("redis_version", "")

    async def is_usable(self) -> bool:
        """Whether a connection that was idle can be used: not closed, nothing unread."""
        try:
            return self._connection.is_connected and not await self._connection.can_read()
        except (exceptions.RedisError, OSError):
            return False

    async def call(self, *command: Argument) -> Any:
        """One command and its answer."""
        await self._write(_packed(command))
        return (await self.answers())[0]

    async def send(self, *command: Argument) -> None:
        """A command whose answer is read later."""
        await self._write(_packed(command))

    async def run(self, verb: str, prefix: str, *args: Argument) -> Any:
        """One script on one crawl's shard and its answer."""
        await self.send_script(verb, prefix, args)
        return (await self.answers())[0]

    async def send_script(self, verb: str, prefix: str, args: Sequence[Argument], *, looks: bool = False) -> None:
        """A script whose answer is read later. One that only looks does not mind a server that was restarted."""
        run_id = "" if looks else self.run_id
        sha = self._scripts[verb].sha
        await self._write(_packed(("EVALSHA", sha, 1, prefix, self.clock(), run_id, *args)))

    async def send_bare_script(self, verb: str, prefix: str, args: Sequence[Argument]) -> None:
        """A script that belongs to no crawl."""
        await self._write(_packed(("EVALSHA", self._scripts[verb].sha, 1, prefix, self.clock(), *args)))

    async def answers(self) -> list[Any]:
        """The answers to all that was sent, in order. The first error is raised when all are read."""
        answers = await self.answers_or_errors()
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise answer
        return answers

    async def answers_or_errors(self) -> list[Any]:
        """The answers to all that was sent, in order; an error stands in the place of its answer."""
        answers = await self._read(len(self._sent))
        forgotten = [place for place, answer in enumerate(answers) if isinstance(answer, exceptions.NoScriptError)]
        if forgotten:
            again = [self._sent[place] for place in forgotten]
            await self._load()
            for packed in again:
                await self._connection.send_packed_command(packed, check_health=False)
            for place, answer in zip(forgotten, await self._read(len(again)), strict=True):
                answers[place] = answer
        self._sent.clear()
        return answers

    async def close(self, *, waits: bool = False) -> None:
        """Hang up. One that waits lets TLS say goodbye first."""
        with contextlib.suppress(exceptions.RedisError):
            await self._connection.disconnect(nowait=not waits)

    async def _write(self, packed: bytes) -> None:
        self._sent.append(packed)
        await self._connection.send_packed_command(packed, check_health=False)

    async def _read(self, total: int) -> list[Any]:
        answers: list[Any] = []
        for _ in range(total):
            try:
                answers.append(await self._connection.read_response())
            except exceptions.ResponseError as error:
                answers.append(error)
        return answers

    async def _load(self) -> None:
        """Give the server the scripts; it forgets them when it restarts."""
        for script in self._scripts.values():
            await self._connection.send_packed_command(_packed(("SCRIPT", "LOAD", script.text)), check_health=False)
        for answer in await self._read(len(self._scripts)):
            if isinstance(answer, exceptions.RedisError):
                raise answer


AnyLine = Line | Bundle


class RedisLink:
    """The way to one server, or to the nodes of a cluster: lends lines, keeps a few of them open, says what went wrong
    without the password."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._address = parse_address(url)
        self.shown = self._address.shown
        self._clock: Callable[[], str] = str if clock is None else lambda: repr(float(clock()))
        self.shards = self._address.shards
        self._scripts = load_scripts()
        self._slots = SlotMap(self._address) if self._address.nodes else None
        self._idle: dict[Place | None, list[Line]] = {}
        self._closed = False

    @property
    def is_cluster(self) -> bool:
        return self._slots is not None

    async def places(self) -> list[Place | None]:
        """Every server behind this link."""
        if self._slots is None:
            return [None]
        try:
            return [*await self._slots.places()]
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise self._in_our_words(error) from None

    def line(self, *, seconds: float | None = ANSWER_SECONDS) -> AbstractAsyncContextManager[AnyLine]:
        """A connected line, or one for all nodes of a cluster."""
        return self.line_to(None, seconds=seconds) if self._slots is None else self._bundle(self._slots, seconds)

    @contextlib.asynccontextmanager
    async def line_at(self, key: str, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Line]:
        """A connected line to the server that has this key."""
        try:
            place = None if self._slots is None else await self._slots.place_of(key)
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise self._in_our_words(error) from None
        async with self.line_to(place, seconds=seconds) as line:
            yield line

    @contextlib.asynccontextmanager
    async def line_to(self, place: Place | None, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Line]:
        """A connected line. After an error or a cancelled call it is closed: unread answers would shift all others."""
        line = None
        try:
            async with asyncio.timeout(seconds):
                line = await self._take(place)
                yield line
                if self._keeps(line, place):
                    line = None
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            if self._slots is not None:
                self._slots.doubt()
            raise self._in_our_words(error) from None
        finally:
            if line is not None:
                await line.close()

    @contextlib.asynccontextmanager
    async def _bundle(self, slots: SlotMap, seconds: float | None) -> AsyncIterator[Bundle]:
        bundle = Bundle(slots, self._take)
        try:
            async with asyncio.timeout(seconds):
                yield bundle
                bundle.lines = {place: line for place, line in bundle.lines.items() if not self._keeps(line, place)}
        except (exceptions.RedisError, OSError, TimeoutError, ServerUnreachable) as error:
            slots.doubt()
            raise self._in_our_words(error) from None
        finally:
            for line in bundle.lines.values():
                await line.close()

    async def close(self) -> None:
        self._closed = True
        for lines in self._idle.values():
            for line in lines:
                await line.close(waits=True)
        self._idle.clear()

    def _keeps(self, line: Line, place: Place | None) -> bool:
        idle = self._idle.setdefault(place, [])
        if len(idle) >= IDLE_CONNECTIONS or self._closed:
            return False
        idle.append(line)
        return True

    async def _take(self, place: Place | None) -> Line:
        if self._closed:
            raise StorageError(f"the frontier at {self.shown} is closed")
        idle = self._idle.get(place, [])
        while idle:
            line = idle.pop()
            if await line.is_usable():
                return line
            await line.close()
        if place is not None:
            return await self._connect(host=place[0], port=place[1])
        return await (self._connect_to_master() if self._address.sentinels else self._connect())

    async def _connect(self, **place: str | int) -> Line:
        connection = new_connection(self._address.server, **place)
        line = Line(connection, self._scripts)
        line.clock = self._clock
        try:
            if isinstance(connection, SSLConnection):
                await connected(line.connect(), host=connection.host, port=connection.port, shown=self.shown)
            else:
                await line.connect()
        except BaseException:
            await line.close()
            raise
        return line

    async def _connect_to_master(self) -> Line:
        """A line to the server that a sentinel calls the master and that itself says so."""
        async with contextlib.aclosing(masters(self._address)) as named:
            async for host, port in named:
                line = await self._connect_if_there(host, port)
                if line is not None:
                    return line
        raise no_master(self._address)

    async def _connect_if_there(self, host: str, port: int) -> Line | None:
        line = None
        try:
            line = await self._connect(host=host, port=port)
            if (await line.call("ROLE"))[0] == b"master":
                master, line = line, None
                return master
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            if isinstance(_translated(error, str(error), self.shown), UsageError):
                raise
        finally:
            if line is not None:
                await line.close()
        return None

    def _in_our_words(self, error: Exception) -> ShoalError:
        if isinstance(error, ShoalError):
            return error
        if isinstance(error, exceptions.AskError):
            return self._elsewhere(error)
        text = self._address.mask.over(str(error)) or f"no answer within {ANSWER_SECONDS:.0f} seconds"
        return _translated(error, text, self.shown)

    def _elsewhere(self, error: exceptions.AskError) -> ShoalError:
        """A cluster's node does not have the key. A slot on its way is waited for: a script needs all of its keys."""
        if self._slots is None:
            return UsageError(f"Redis at {self.shown} is part of a cluster: write {CLUSTER_EXAMPLE}")
        self._slots.doubt()
        return ServerUnreachable(f"the cluster at {self.shown} is moving slot {error.slot_id}")


def _packed(command: tuple[Argument, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub allows for one argument
    return packed


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
    if isinstance(
        error, (exceptions.ReadOnlyError, exceptions.TryAgainError, exceptions.ClusterDownError)
    ) or text.startswith(("MISCONF", "BUSY", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "UNKILLABLE")):
        return ServerUnreachable(f"Redis at {at} takes no writes now: {text}")
    if isinstance(error, exceptions.ResponseError):
        return StorageError(f"Redis at {at} refuses: {text}")
    return ServerUnreachable(f"cannot reach Redis at {at}: {text}")


def fields(info: bytes) -> dict[str, str]:
    """The lines of an INFO answer."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
