"""Tells when a crawl is paused, resumed, cancelled or finished, as this process sees it."""

from __future__ import annotations

import logging

from shoal.logs import Events
from shoal.model import CrawlState


class StatesSeen:
    """The states of crawls as they were seen last; a change is an event."""

    def __init__(self) -> None:
        self._states: dict[str, CrawlState] = {}

    def see(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        """A crawl has this state now. The first look tells nothing."""
        before = self._states.get(crawl)
        self._states[crawl] = state
        if before is not None and before is not state:
            word = "resumed" if state is CrawlState.RUNNING else str(state)
            Events(crawl=crawl).tell(logging.INFO, f"crawl {word}", reason=reason)
