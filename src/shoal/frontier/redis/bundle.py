"""Lines to the nodes of a cluster, used as if they were one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from redis import exceptions

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.cluster import Place, SlotMap

if TYPE_CHECKING:
    from shoal.frontier.redis.connection import Argument, Line

MOST_MOVES = 3


class Bundle:
    """Lines to several nodes of a cluster, used as one: each command goes to the node that has its key.

    A node that cannot be reached spoils the answers of its own commands, and of no others."""

    def __init__(self, slots: SlotMap, take: Callable[[Place], Awaitable[Line]]) -> None:
        self._slots = slots
        self._take = take
        self._sent: list[tuple[str, Callable[[Line], Awaitable[None]], Place | Exception]] = []
        self.lines: dict[Place, Line] = {}

    async def call(self, *command: Argument) -> Any:
        """One command and its answer."""
        await self.send(*command)
        return (await self.answers())[0]

    async def send(self, *command: Argument) -> None:
        """A command whose answer is read later."""
        key = command[3] if command[0] == "EVAL" else command[1]
        await self._send(str(key), lambda line: line.send(*command))

    async def run(self, verb: str, prefix: str, *args: Argument) -> Any:
        """One script on one crawl's shard and its answer."""
        await self.send_script(verb, prefix, args)
        return (await self.answers())[0]

    async def send_script(self, verb: str, prefix: str, args: Sequence[Argument], *, looks: bool = False) -> None:
        """A script whose answer is read later."""
        await self._send(prefix, lambda line: line.send_script(verb, prefix, args, looks=looks))

    async def send_bare_script(self, verb: str, prefix: str, args: Sequence[Argument]) -> None:
        """A script that belongs to no crawl."""
        await self._send(prefix, lambda line: line.send_bare_script(verb, prefix, args))

    async def answers(self) -> list[Any]:
        """The answers to all that was sent, in order. The first error is raised when all are read."""
        answers = await self.answers_or_errors()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def answers_or_errors(self) -> list[Any]:
        """The answers to all that was sent, in order; an error stands in the place of its answer."""
        for _ in range(MOST_MOVES):
            sent, self._sent = self._sent, []
            answers = await self._read(sent)
            if not any(isinstance(answer, exceptions.MovedError) for answer in answers):
                return answers
            self._slots.doubt()
            # Those that were answered keep their answer, the others go where their keys are now.
            for (key, send, _), answer in zip(sent, answers, strict=True):
                if isinstance(answer, exceptions.MovedError):
                    await self._send(key, send)
                else:
                    self._sent.append((key, send, _Answered(answer)))
        sent, self._sent = self._sent, []
        return await self._read(sent)

    async def _send(self, key: str, send: Callable[[Line], Awaitable[None]]) -> None:
        try:
            place = await self._slots.place_of(key)
            if place not in self.lines:
                self.lines[place] = await self._take(place)
            await send(self.lines[place])
            self._sent.append((key, send, place))
        except (exceptions.RedisError, OSError, ServerUnreachable) as error:
            self._slots.doubt()
            self._sent.append((key, send, error))

    async def _read(self, sent: Sequence[tuple[str, Any, Place | Exception]]) -> list[Any]:
        places = list(dict.fromkeys(place for _, _, place in sent if isinstance(place, tuple)))
        reads = await asyncio.gather(
            *(self.lines[place].answers_or_errors() for place in places), return_exceptions=True
        )
        by_place: dict[Place, Any] = {}
        for place, read in zip(places, reads, strict=True):
            by_place[place] = iter(read) if isinstance(read, list) else read
            if isinstance(read, BaseException):
                self._slots.doubt()
                await self.lines.pop(place).close()
        return [self._answer(place, by_place) for _, _, place in sent]

    def _answer(self, place: Place | Exception, by_place: dict[Place, Any]) -> Any:
        if isinstance(place, _Answered):
            return place.answer
        if isinstance(place, Exception):
            return place
        read = by_place[place]
        return read if isinstance(read, BaseException) else next(read)


class _Answered(Exception):  # noqa: N818 -- stands among exceptions for what needs no sending
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
