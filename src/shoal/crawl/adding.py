"""Adds URLs of `shoal add` and the HTTP API to a crawl, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from shoal.crawl.inbox import request_of
from shoal.crawl.record import record_of
from shoal.crawl.sources import LONGEST_LINE
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.journey.intake import Found, Intake
from shoal.model import DUPLICATE, Crawl
from shoal.spider.spider import Request
from shoal.text.near_names import did_you_mean

BATCH = 500
NO_FIELDS: Final[Mapping[str, Any]] = {}


class Added(msgspec.Struct, kw_only=True):
    """The result for the URLs so far; `samples` has one rejected URL for each reason."""

    crawl: str
    new: int = 0
    duplicates: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    samples: dict[str, str] = msgspec.field(default_factory=dict)


class Lines:
    """The requests in lines: a URL each, or a JSON object as in the inbox. `fields` are defaults for each line. Skips
    empty lines and comments; raises UsageError for an invalid line."""

    def __init__(self, crawl: Crawl, *, intake: Intake, fields: Mapping[str, Any] = NO_FIELDS) -> None:
        self._handlers = record_of(crawl).handlers
        self._crawl = crawl.id
        self._intake = intake
        self._fields = dict(fields)
        self.check_handler(self._fields.get("handler"))
        self.request("https://example.com/")  # refuses invalid fields at once: they are invalid for every URL

    @property
    def knows_handlers(self) -> bool:
        """Whether the crawl's record has the handlers of its spider."""
        return bool(self._handlers)

    def requests(self, lines: Iterable[str], *, source: str, first: int = 1) -> Iterator[Request]:
        """The request of each line. A refusal names `source` and the line number; `first`: the number of the first
        line."""
        for number, line in enumerate(lines, start=first):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if not text.startswith("{"):
                yield Request(text, **self._fields)
                continue
            if len(text) >= LONGEST_LINE:
                raise UsageError(f"line {number} of {source} is longer than {LONGEST_LINE:,} bytes")
            try:
                yield self._object(text)
            except (ValueError, UsageError) as error:
                raise UsageError(f"line {number} of {source} is no request: {error}") from None

    def request(self, url: str) -> Request:
        """The request for one URL. Refuses fields that the crawl cannot store."""
        request = Request(url, **self._fields)
        self._intake.task_of(request, Found(), parent=None, base=url, scoped=False)
        return request

    def check_handler(self, name: str | None) -> None:
        """Refuse a handler that the crawl's spider does not have, if its record has the handlers."""
        if name is not None and self._handlers and name not in self._handlers:
            hint = did_you_mean(name, self._handlers, otherwise=f"it has {', '.join(self._handlers)}")
            raise UsageError(f"the spider of {self._crawl} has no handler {name!r}: {hint}")

    def _object(self, text: str) -> Request:
        given = msgspec.json.decode(text, type=dict[str, Any])
        request = request_of(msgspec.json.encode({**self._fields, **given}))
        self.check_handler(given.get("handler"))
        self._intake.task_of(request, Found(), parent=None, base=request.url, scoped=False)
        return request


async def has_room(crawl: str, *, frontier: Frontier, max_pending: int) -> bool:
    """Whether fewer than `max_pending` tasks wait in the crawl, or will when a cancelled one is resumed."""
    progress = await frontier.progress(crawl)
    return progress.queued + progress.delayed + progress.cancelled < max_pending


async def add_requests(requests: Sequence[Request], added: Added, *, intake: Intake, frontier: Frontier) -> None:
    """Put one batch and count the result."""
    found = Found()
    for request in requests:
        # Its own URL as the base: an added URL is always in scope.
        intake.request(request, found, parent=None, base=request.url, scoped=False)
    tasks = list(found.tasks.values())
    report = await frontier.put(added.crawl, tasks, rejected=found.rejected, samples=found.samples)
    added.new += report.new
    added.duplicates += report.duplicates + found.rejected.pop(DUPLICATE, 0)
    added.samples = dict(found.samples[::-1]) | added.samples
    added.rejected = dict(Counter(added.rejected) + Counter(found.rejected) + Counter(report.refused.values()))
