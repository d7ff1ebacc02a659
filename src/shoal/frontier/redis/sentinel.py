"""Asks sentinels which server is the master now."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.address import Address, new_connection
from shoal.frontier.redis.connection import ask


async def masters(address: Address) -> AsyncGenerator[tuple[str, int], None]:
    """The master as each sentinel that answers names it: a sentinel that was cut off may still name the former one."""
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
