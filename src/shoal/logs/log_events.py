"""Events of a crawl for logs: what happened to a page, a worker, a server. Each is one line."""

from __future__ import annotations

import logging
from typing import Any

from shoal.logs.log_fields import EVENTS, FIELDS, SAID, page_fields
from shoal.model import Lease


class Events:
    """Tells the events of one worker or one crawl, where somebody wants them: the logger has a level then."""

    def __init__(self, *, crawl: str = "", worker: str = "") -> None:
        self._who = {"crawl": crawl, "worker": worker}
        self._logger = logging.getLogger(EVENTS)

    def is_on(self, level: int) -> bool:
        """Whether events of this level are logged. Asked once, where an event would cost every page something."""
        return self._logger.level != logging.NOTSET and self._logger.isEnabledFor(level)

    def tell(self, level: int, event: str, lease: Lease | None = None, **fields: Any) -> None:
        """Log one event. A field that is empty is left out."""
        if self.is_on(level):
            told = {**self._who, **page_fields(lease), **fields}
            self._logger.log(level, event, extra={FIELDS: told})

    def tell_said(self, level: int, event: str, **fields: Any) -> None:
        """Log one event of which people are told in a line of its own: a log for people leaves it out."""
        self.tell(level, event, None, **{SAID: True, **fields})
