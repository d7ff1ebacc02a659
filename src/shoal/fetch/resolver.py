"""Host names to addresses: remembered for a while, looked up once however many requests wait."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.descriptors import is_used_up
from shoal.fetch.faults import SHORTAGES, one_line

Lookup = Callable[[str], Awaitable[Sequence[str]]]
Found = tuple[str, ...] | Fault

REMEMBER_SECONDS: Final = 60.0
REMEMBER_FAILURE_SECONDS: Final = 5.0
MAX_HOSTS: Final = 10_000
# More than a worker has slots: a name server that never answers blocks its thread long after the request gave up.
LOOKUP_THREADS: Final = 128
LOOKUP_FILES: Final = 2  # that a look-up has open at once


class Resolver:
    """The addresses of hosts. A look-up that fails is a value, and is remembered for a few seconds."""

    def __init__(self, lookup: Lookup | None = None, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Its own threads: a name server that does not answer must not block other work of the loop's threads.
        self._threads = None if lookup else ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="shoal-dns")
        self._lookup = lookup or self._ask_system
        self._known: dict[str, tuple[float, Found]] = {}
        self._asking: dict[str, asyncio.Task[Found]] = {}

    async def addresses(self, host: str) -> Found:
        """The addresses of a host in the system's order of preference, or why there are none."""
        known = self._known.get(host)
        if known is not None and known[0] > self._clock():
            return known[1]
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.create_task(self._ask(host))
        # Shielded: a request that is cancelled must not cancel the look-up that others wait for.
        return await asyncio.shield(task)

    def close(self) -> None:
        """Give up the look-ups under way."""
        for task in self._asking.values():
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, host: str) -> Found:
        try:
            found = await self._answer(host)
            if not (isinstance(found, Fault) and found.kind is FaultKind.SHORTAGE):
                seconds = REMEMBER_FAILURE_SECONDS if isinstance(found, Fault) else REMEMBER_SECONDS
                self._known.pop(host, None)
                self._known[host] = (self._clock() + seconds, found)
                if len(self._known) > MAX_HOSTS:
                    del self._known[next(iter(self._known))]
            return found
        finally:
            del self._asking[host]

    async def _answer(self, host: str) -> Found:
        try:
            found = tuple(dict.fromkeys(await self._lookup(host)))
        except OSError as error:
            reason = one_line(error.strerror or type(error).__name__)
            return Fault(kind=FaultKind.SHORTAGE if _is_short(error) else FaultKind.DNS, message=f"{host}: {reason}")
        except ValueError:  # includes the idna codec's errors
            return Fault(kind=FaultKind.DNS, message=f"{one_line(host)}: not a host name")
        return found or Fault(kind=FaultKind.DNS, message=f"{host}: no address")

    async def _ask_system(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._threads, _system_addresses, host)
        return [str(row[4][0]) for row in rows]


def _is_short(error: OSError) -> bool:
    """Whether a look-up failed because this machine lacks something."""
    return error.errno == socket.EAI_MEMORY if isinstance(error, socket.gaierror) else error.errno in SHORTAGES


def _system_addresses(host: str) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        return list(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError as error:
        # Without a descriptor for its files or its socket, glibc says "try again", that the name is not known, or that
        # something is busy (where it asks by multicast as well). Asked here, in the thread: a moment later there may be
        # some again.
        if is_used_up(needed=LOOKUP_FILES):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        raise
