"""What the code that runs now works on: its worker, and the page in hand. Log lines and traces are told apart by it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple

from shoal.model import Lease


class Work(NamedTuple):
    """A worker and its crawl."""

    crawl: str
    worker: str


# Set once per worker: the tasks of its pages inherit it, and so do threads and tasks that a handler starts.
WORK: Final[ContextVar[Work | None]] = ContextVar("shoal_work", default=None)
# Set once per page, to the lease itself: nothing is built for pages of which nothing is logged.
PAGE: Final[ContextVar[Lease | None]] = ContextVar("shoal_page", default=None)
