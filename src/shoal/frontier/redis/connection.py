"""One connection to a Redis server: commands and scripts are sent in bulk, then their answers are read in bulk.

TLS to a port without TLS: the server takes the handshake for half a command and waits for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection as TcpConnection

from shoal.errors import UsageError
from shoal.frontier.clock import SteadyTimes
from shoal.frontier.redis.scripts import Script
from shoal.text.errors import is_of_lost_line

PATIENCE_SECONDS = 1.0


async def connected(connecting: Coroutine[Any, Any, None], *, host: str, port: int, shown: str) -> None:
    """Connect with TLS. A port that is silent for long is asked once without TLS, to see whether it answers then."""
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if not task.done() and await _speaks_plainly(host, port):
            raise UsageError(
                f"Redis at {shown} does not speak TLS on this port: name its TLS port, or write redis:// if it has none"
            )
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _speaks_plainly(host: str, port: int) -> bool:
    """Whether the server there answers, with a pong or a refusal. No password is sent."""
    writer = None
    with contextlib.suppress(OSError, TimeoutError):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in (b"+", b"-")
        finally:
            if writer is not None:
                writer.close()
    return False


Argument = str | bytes | int | float


class Connection:
    """One connection. Send any number of commands, then read all their answers."""

    def __init__(self, driver: AbstractConnection, scripts: Mapping[str, Script]) -> None:
        self._driver = driver
        self._scripts = scripts
        self._sent: list[bytes] = []
        self.run_id = ""
        self.version = ""
        self.clock: Callable[[], str] = str
        self.times = SteadyTimes(None)

    async def connect(self) -> None:
        """Reach the server and learn which run of it this is."""
        try:
            await self._driver.connect()  # type: ignore[no-untyped-call]  # the library has no annotation here
        except RuntimeError as error:
            raise lost_line(error) from None
        about = fields(await self.call("INFO", "server"))
        self.run_id, self.version = about.get("run_id", ""), about.get("redis_version", "")

    @property
    def redis_cli(self) -> str:
        """How people reach this server by redis-cli. A password is not shown: redis-cli asks for it."""
        driver, words = self._driver, ["redis-cli"]
        if isinstance(driver, UnixDomainSocketConnection):
            words += ["-s", shlex.quote(driver.path)]
        elif isinstance(driver, TcpConnection):
            words += ["-h", shlex.quote(driver.host), "-p", str(driver.port)]
        if isinstance(driver, SSLConnection):
            authority = driver.ssl_context.ca_certs
            words += ["--tls", *(["--cacert", shlex.quote(authority)] if authority else [])]
        if driver.username:
            words += ["--user", shlex.quote(driver.username)]
        return " ".join([*words, "--askpass"] if driver.password else words)

    async def is_usable(self) -> bool:
        """Whether a connection that was idle can be used: not closed, nothing unread."""
        writer = self._driver._writer
        # A line that was reset has neither an end nor anything to read: only its transport knows.
        if writer is None or writer.is_closing():
            return False
        try:
            return not await self._driver.can_read()
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

    async def send_script(self, verb: str, prefix: str, args: Sequence[Argument], *, unchecked: bool = False) -> None:
        """A script whose answer is read later. One that only reads runs even if the server was restarted and the crawl
        not yet checked."""
        run_id = "" if unchecked else self.run_id
        sha = self._scripts[verb].sha
        expected = self.times.expected(prefix)
        time = (
            self.clock()
            if expected is None
            else f"{self.clock()}/{expected.time!r}/{expected.way!r}/{expected.shift!r}"
        )
        await self._write(_packed(("EVALSHA", sha, 1, prefix, time, run_id, *args)))

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
        """The answers to all that was sent, in order; an error stands instead of its answer."""
        answers = await self._read(len(self._sent))
        forgotten = [index for index, answer in enumerate(answers) if isinstance(answer, exceptions.NoScriptError)]
        if forgotten:
            again = [self._sent[index] for index in forgotten]
            await self._load()
            for packed in again:
                await self._deliver(packed)
            for index, answer in zip(forgotten, await self._read(len(again)), strict=True):
                answers[index] = answer
        self._sent.clear()
        return answers

    async def close(self, *, waits: bool = False) -> None:
        """Close the connection; with `waits`, TLS is ended in order first."""
        with contextlib.suppress(exceptions.RedisError):
            await self._driver.disconnect(nowait=not waits)

    async def _write(self, packed: bytes) -> None:
        self._sent.append(packed)
        await self._deliver(packed)

    async def _deliver(self, packed: bytes) -> None:
        # The driver would connect anew by itself, and the answers to what was sent before would be missing.
        if not self._driver.is_connected:
            raise exceptions.ConnectionError("the line was closed")
        try:
            await self._driver.send_packed_command(packed, check_health=False)
        except RuntimeError as error:
            raise lost_line(error) from None

    async def _read(self, total: int) -> list[Any]:
        answers: list[Any] = []
        for _ in range(total):
            try:
                answers.append(await self._driver.read_response())
            except exceptions.ResponseError as error:
                answers.append(error)
        return answers

    async def _load(self) -> None:
        """Give the server the scripts; it forgets them when it restarts."""
        for script in self._scripts.values():
            await self._deliver(_packed(("SCRIPT", "LOAD", script.text)))
        for answer in await self._read(len(self._scripts)):
            if isinstance(answer, exceptions.RedisError):
                raise answer


async def ask(driver: AbstractConnection, *command: str) -> Any:
    """Connect, and give the answer to one command."""
    try:
        await driver.connect()  # type: ignore[no-untyped-call]  # the library has no annotation here
        await driver.send_command(*command)
        return await driver.read_response()
    except RuntimeError as error:
        raise lost_line(error) from None


def lost_line(error: RuntimeError) -> Exception:
    """A line that was lost, in the driver's words; any other error as it is."""
    return exceptions.ConnectionError("the line was lost") if is_of_lost_line(error) else error


def _packed(command: tuple[Argument, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub allows for one argument
    return packed


def fields(info: bytes) -> dict[str, str]:
    """The lines of an INFO answer."""
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
