"""Asks the nodes of a Redis Cluster which of them has which keys."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Iterable
from typing import Any

from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot

from shoal.errors import ServerUnreachable, UsageError
from shoal.frontier.redis.address import Address, new_connection
from shoal.frontier.redis.connection import ask

Node = tuple[str, int]


class SlotMap:
    """Which node has which slot: asked when needed, and again when a node was not what the map says."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ends: list[int] = []
        self._ranges: list[tuple[int, int, Node]] = []
        self._is_old = True
        self._lock = asyncio.Lock()

    def doubt(self) -> None:
        """A node was not what the map says: ask the cluster again before the next use."""
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
        """The answer of the first node that gives one: the known nodes, then the nodes of the URL."""
        failure: Exception | None = None
        for node in dict.fromkeys([node for _, _, node in self._ranges] + list(self._address.nodes)):
            connection = new_connection(self._address.server, host=node[0], port=node[1])
            try:
                return _ranges(await _slots(connection), node)
            except (exceptions.AuthenticationError, exceptions.NoPermissionError):
                raise
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                if "cluster support disabled" in str(error):
                    raise UsageError(f"{self._address.shown} is no Redis Cluster: write redis://host:6379/0") from None
                failure = error
            finally:
                await connection.disconnect(nowait=True)
        raise failure or ServerUnreachable(f"no node of {self._address.shown} answers")


async def _slots(connection: AbstractConnection) -> list[Any]:
    answer: list[Any] = await ask(connection, "CLUSTER", "SLOTS")
    return answer


def _ranges(answer: Iterable[Any], asked: Node) -> list[tuple[int, int, Node]]:
    """First slot, last slot and master of each range. A node without a name is the node that we asked."""
    ranges = []
    for first, last, (host, port, *_), *_ in answer:
        name = host.decode() if host else ""
        ranges.append((int(first), int(last), (asked[0] if name in ("", "?") else name, int(port))))
    return sorted(ranges)
