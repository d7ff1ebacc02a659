"""A fetcher whose requests all leave through one exit, and the report on that exit."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.model import ExitUse, Lease

# Faults before a request was sent.
NEVER_SENT: Final = frozenset(
    {FaultKind.DNS, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL, FaultKind.LOCAL, FaultKind.SHORTAGE}
)


class Through:
    """Sends requests through the exit of a lease. Counts the bytes and seconds of the answers; keeps the last one."""

    def __init__(self, fetcher: Fetcher, lease: Lease) -> None:
        self._fetcher = fetcher
        self._exit = lease.exit
        self.was_used = False
        self.size = 0
        self.elapsed = 0.0
        self.answer: Response | Fault | None = None

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request through the exit."""
        answer = await self._fetcher.fetch(msgspec.structs.replace(request, exit=self._exit))
        self.answer = answer
        self.was_used = self.was_used or not (isinstance(answer, Fault) and answer.kind in NEVER_SENT)
        self.size += answer.wire_size if isinstance(answer, Response) else 0
        self.elapsed += answer.elapsed
        return answer

    async def close(self) -> None:
        """Nothing to do: the fetcher belongs to the worker."""

    def use(
        self, verdict: Literal["ok", "blocked", "failed", "used"] = "ok", *, session: bytes | None = None
    ) -> ExitUse:
        """The report on the exit."""
        said = verdict if self.was_used else "unused"
        return ExitUse(verdict=said, size=self.size, elapsed=self.elapsed, session=session)
