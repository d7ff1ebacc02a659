"""Connections to PostgreSQL: a bounded number, transactions with a time limit, errors as ShoalError."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import asyncpg

from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.store.postgres.address import Address
from shoal.text.errors import is_of_lost_line

STATEMENT_SECONDS = 60.0
IDLE_SECONDS = 30.0
SLACK_SECONDS = 15.0
CLOSE_SECONDS = 5.0
LONGEST_REASON = 300

# Temporary errors: connection lost, transaction rolled back, no room, read-only now, shutdown.
_PASSING = ("08", "40", "53", "57P", "57014", "55P03", "55006", "25006", "25P03", "58030")
# Errors of one row: its data, a constraint, a limit of the server.
_OF_A_ROW = ("22", "23", "54")

# A missing right on a table, not on the schema.
_OF_ONE_TABLE = ("permission denied for table", "permission denied for view", "must be owner of")

# Everything that a connection can raise. InternalClientError: the server closed it unexpectedly. UnicodeError: a host
# name that DNS does not allow.
_FAULTS = (
    asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError, EOFError,
    UnicodeError,
)  # fmt: skip

Connection: TypeAlias = "asyncpg.Connection[Any]"


class PostgresLink:
    """At most `connections` connections to one database, opened when needed, replaced when broken."""

    def __init__(self, address: Address, *, connections: int) -> None:
        self.address = address
        self._slots = asyncio.Semaphore(connections)
        self._connections = connections
        self._idle: list[Connection] = []
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def transaction(
        self, *, seconds: float = STATEMENT_SECONDS, reads: bool = False, schemas: str = ""
    ) -> AsyncIterator[Connection]:
        """A transaction for the block. No statement in it may take longer than `seconds`."""
        async with self._connection(seconds) as connection:
            # One round trip. LOCAL: works behind a connection pooler.
            await connection.execute(
                f"BEGIN{' READ ONLY' if reads else ''};"
                f" SET LOCAL search_path TO {self.address.quoted_schema}{schemas};"
                f" SET LOCAL statement_timeout TO {int(seconds * 1000)};"
                f" SET LOCAL idle_in_transaction_session_timeout TO {int(IDLE_SECONDS * 1000)}"
            )
            yield connection
            # COMMIT of an aborted transaction is answered by ROLLBACK, not by an error.
            if await connection.execute("COMMIT") != "COMMIT":
                raise StorageError(f"PostgreSQL at {self.address.shown} rolled back what was to be written")

    async def close(self) -> None:
        """Wait for running transactions, then disconnect. Closing again is harmless."""
        self._is_closed = True
        for _ in range(self._connections):
            await self._slots.acquire()
        for connection in self._idle:
            with contextlib.suppress(*_FAULTS, RuntimeError):
                await connection.close(timeout=CLOSE_SECONDS)
        self._idle.clear()
        for _ in range(self._connections):
            self._slots.release()

    @contextlib.asynccontextmanager
    async def _connection(self, seconds: float) -> AsyncIterator[Connection]:
        if self._is_closed:
            raise StorageError(f"the store at {self.address.shown} is closed")
        connection = None
        async with self._slots:
            try:
                # The server has its own time limit; this one is for a server that no longer answers.
                async with asyncio.timeout(self.address.connect_seconds + seconds + SLACK_SECONDS):
                    connection = await self._take()
                    try:
                        yield connection
                    except asyncpg.PostgresError:
                        if not connection.is_closed():
                            await connection.execute("ROLLBACK")
                            self._idle.append(connection)
                            connection = None
                        raise
                    self._idle.append(connection)
                    connection = None
            except _FAULTS as error:
                raise shoal_error(error, self.address) from None
            except RuntimeError as error:
                if not is_of_lost_line(error):
                    raise
                raise ServerUnreachable(
                    f"cannot reach PostgreSQL at {self.address.shown}: the connection was lost"
                ) from None
            finally:
                # Cancelled or broken in the middle of an answer: not usable again.
                if connection is not None:
                    connection.terminate()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        try:
            return await asyncpg.connect(
                self.address.dsn,
                timeout=self.address.connect_seconds,
                statement_cache_size=self.address.cached_statements,
                server_settings={} if "application_name=" in self.address.dsn else {"application_name": "shoal"},
            )
        except ValueError as error:
            text = self.address.without_secrets(str(error))
            raise UsageError(f"{self.address.shown} is not a usable PostgreSQL URL: {text}") from None


class RowRefused(StorageError):  # noqa: N818 -- reads as what happened
    """The server refuses the content of one row of a batch."""


def shoal_error(error: Exception, address: Address) -> ShoalError:
    """The driver's error as one line without the password; ServerUnreachable if waiting may help."""
    at = address.shown
    text = address.without_secrets(str(error))[:LONGEST_REASON] or "no answer"
    code = getattr(error, "sqlstate", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError) or "rejected SSL upgrade" in text:
        return UsageError(f"no TLS with PostgreSQL at {at}: check sslmode and sslrootcert in the URL ({text})")
    if isinstance(error, asyncpg.PostgresError) and code and not code.startswith("08"):
        return _of_the_server(code, text, address)
    return ServerUnreachable(f"cannot reach PostgreSQL at {at}: {text}")


def _of_the_server(code: str, text: str, address: Address) -> ShoalError:
    at, name = address.shown, address.database
    if code.startswith(_PASSING):
        return ServerUnreachable(f"PostgreSQL at {at} takes no writes now: {text}")
    if code.startswith(_OF_A_ROW):
        return RowRefused(f"PostgreSQL at {at} refuses: {text}")
    match code:
        case "28P01" | "28000":
            return UsageError(f"PostgreSQL at {at} refuses the login: {text}; check user and password in the URL")
        case "3D000":
            return UsageError(f"no database {name!r} on PostgreSQL at {at}: make it with `createdb {name}`")
        case "42501" if text.startswith(_OF_ONE_TABLE):
            return UsageError(
                f"PostgreSQL at {at} refuses: {text}; ask for a GRANT, or run this with the role that owns the store's"
                " tables"
            )
        case "42501":
            return UsageError(
                f"PostgreSQL at {at} denies access: {text}; ask its owner for"
                f' GRANT CREATE ON DATABASE "{name}", or for a schema of your own'
            )
        case "26000" | "42P05":
            return UsageError(
                f"a pooler in front of PostgreSQL at {at} mixes up statements: add ?statement_cache_size=0 to the URL"
            )
        case "42704":
            return UsageError(f"PostgreSQL at {at} does not know an option of the URL: {text}")
        case _:
            return StorageError(f"PostgreSQL at {at} refuses: {text}")
