"""Start URLs that people push to a key of Redis. One leaves Redis only after the frontier has it: until then it is
under way, in a key beside, where every process finds it again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from redis import Redis

TAKEN_SECONDS = 30.0  # then another process may take an entry that is under way


class StartEntry(NamedTuple):
    """What was pushed, under the name that it got when it was taken: the same for all who take it again."""

    name: str
    pushed: bytes

    @property
    def member(self) -> bytes:
        """How Redis keeps it while it is under way."""
        return self.name.encode() + b" " + self.pushed


class StartEntries:
    """The start URLs of one spider. Every method is one step in Redis, and waits for it."""

    def __init__(self, server: Redis, key: str) -> None:
        self.key = key
        self.aside = f"{key}:set_aside"
        self._under_way = f"{key}:under_way"
        self._server = server
        self._take = server.register_script(_script("take"))
        self._set_aside = server.register_script(_script("set_aside"))

    def take(self, number: int) -> list[StartEntry]:
        """Entries to be put now: those that were left under way first, then new ones."""
        members = self._take(keys=[self.key, self._under_way], args=[number, os.urandom(8).hex(), TAKEN_SECONDS])
        return [_entry(member) for member in members]

    def make_due(self) -> None:
        """Let everything that is under way be taken again, also what a living process has in hand: put twice, it is the
        same task."""
        self._server.zunionstore(self._under_way, {self._under_way: 0})

    def done(self, entries: Sequence[StartEntry]) -> None:
        """The frontier has these: forget them."""
        self._server.zrem(self._under_way, *(entry.member for entry in entries))

    def set_aside(self, entry: StartEntry) -> None:
        """Keep an entry that nobody understands, in a list beside."""
        self._set_aside(keys=[self._under_way, self.aside], args=[entry.member, entry.pushed])

    def give_back(self, entries: Sequence[StartEntry]) -> None:
        """Let others take these at once."""
        self._server.zadd(self._under_way, {entry.member: 0 for entry in entries}, xx=True)


def _entry(member: bytes) -> StartEntry:
    name, _, pushed = member.partition(b" ")
    return StartEntry(name.decode(), pushed)


def _script(name: str) -> str:
    return resources.files("shoal.integrations.scrapy").joinpath("lua", f"{name}.lua").read_text()
