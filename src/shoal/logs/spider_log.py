"""The log of a spider: a standard logger. Each of its lines has the crawl, the worker and the page that is handled."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from shoal.logs.log_fields import SPIDERS


class SpiderLog(logging.LoggerAdapter[logging.Logger]):
    """What `self.log` is. Fields that are given as `extra` stand on the line, too."""

    def __init__(self, spider: str) -> None:
        super().__init__(logging.getLogger(f"{SPIDERS}.{spider}"), {})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The line as it is: the page is added where lines are written, in the same context."""
        return msg, kwargs
