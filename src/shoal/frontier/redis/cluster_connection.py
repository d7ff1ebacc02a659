"""Connections to the nodes of a cluster, used as if they were one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.cluster import Node, SlotMap
from shoal.frontier.redis.connection import Argument, Connection

MOST_MOVES = 3


class ClusterConnection:
    """Connections to several nodes of a cluster, used as one: each command goes to the node that has its key.

    A node that cannot be reached fails its own commands, and no others."""

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
            # Commands that were answered keep their answer, the others go to the node that has their key now.
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
