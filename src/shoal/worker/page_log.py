"""Log lines of a worker's pages: done, retried, dead, lost. Absent if the log level hides them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any, Self

from shoal.journey.results import Finished
from shoal.logs import Events
from shoal.model import DIRECT, Dead, Done, Handed, Lease, Released, Result, Retry
from shoal.store.base import FetchRow


class PageLog:
    """Logs how pages ended, once the frontier has confirmed it."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._tells_done = events.is_on(logging.DEBUG)
        self._rows: dict[int, FetchRow] = {}

    @classmethod
    def if_wanted(cls, events: Events) -> Self | None:
        """A page log, if the log level shows any of its lines."""
        return cls(events) if events.is_on(logging.WARNING) else None

    def stored(self, batch: Iterable[Finished]) -> None:
        """Remember the fetch rows of these pages until they are settled."""
        for finished in batch:
            if finished.fetch is not None and (self._tells_done or not isinstance(finished.result, Done)):
                self._rows[finished.result.lease.token] = finished.fetch

    def settled(self, results: Iterable[Result], *, stale: Collection[int]) -> None:
        """The frontier has taken these results, except for the stale ones: their leases were lost before."""
        for result in results:
            row = self._rows.pop(result.lease.token, None)
            if result.lease.token in stale:
                self.lost(result.lease, reason="another worker had it already")
            elif isinstance(result, Done):
                if self._tells_done:
                    self._tell(logging.DEBUG, "page done", result.lease, row, outcome=result.outcome)
            elif isinstance(result, Retry):
                fields = {"reason": result.reason, "delay": round(result.delay, 3)}
                self._tell(logging.INFO, "page retried", result.lease, row, **fields)
            elif isinstance(result, Handed):
                self._tell(logging.INFO, "page handed over", result.lease, row, kind=result.task.kind)
            elif isinstance(result, Dead):
                self._tell(logging.WARNING, "page dead", result.lease, row, reason=result.reason)
            elif self._tells_done and isinstance(result, Released):
                self._tell(logging.DEBUG, "page released", result.lease, row)

    def lost(self, lease: Lease, *, reason: str) -> None:
        """A lease was lost: the worker's result for it does not count."""
        self._tell(logging.WARNING, "lease lost", lease, None, reason=reason)

    def _tell(self, level: int, event: str, lease: Lease, row: FetchRow | None, **fields: Any) -> None:
        about: dict[str, Any] = {"attempt": lease.attempt}
        if lease.exit != DIRECT:
            about["exit"] = lease.exit
        if row is not None:
            about |= {"status": row.status or None, "outcome": row.outcome, "seconds": round(row.elapsed, 3)}
        self._events.tell(level, event, lease, **{**about, **fields})
