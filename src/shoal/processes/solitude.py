"""A page that was lent alone has its whole process to itself, also where workers of several crawls share one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from shoal.model import Lease


class Solitude:
    """What the workers of one process hold, and which of them has a page that must be alone.

    A worker takes no leases while `is_free` is not set."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.is_free.set()
        self._holdings: list[Mapping[int, Lease]] = []
        self._asking = 0
        self._owner: Lease | None = None

    def join(self, held: Mapping[int, Lease]) -> None:
        """A worker begins in this process; its leases are in `held`."""
        self._holdings.append(held)

    def quit(self, held: Mapping[int, Lease]) -> None:
        """The worker with these leases has ended."""
        # By identity: what two workers hold may be equal.
        self._holdings = [one for one in self._holdings if one is not held]

    @property
    def in_hand(self) -> int:
        """How many leases the workers of this process hold."""
        return sum(len(held) for held in self._holdings)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A worker asks for leases, which it does not hold yet."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def claims(self, lease: Lease) -> bool:
        """Whether this page may begin: no other page is in hand. From the first call on until `leave`, no worker takes
        a lease, and no other page that must be alone begins."""
        if self._owner is None:
            self._owner = lease
            self.is_free.clear()
        # Another page that must be alone has not begun as long as this one is the owner's.
        in_company = any(not one.alone for held in self._holdings for one in held.values())
        return self._owner is lease and not self._asking and not in_company

    def leave(self, lease: Lease) -> None:
        """This page is settled, or will not begin."""
        if self._owner is lease:
            self._owner = None
            self.is_free.set()
