"""URLs added to a crawl by people and programs, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.journey.intake import Found, Intake
from shoal.model import DUPLICATE
from shoal.spider import Request

BATCH = 500


class Added(msgspec.Struct, kw_only=True):
    """What became of the URLs so far."""

    crawl: str
    new: int = 0
    duplicates: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)


async def add_requests(requests: Sequence[Request], added: Added, *, intake: Intake, frontier: Frontier) -> None:
    """Put one batch and count what became of it."""
    found = Found()
    for request in requests:
        # Its own URL as the base: a URL that is added by name is in scope.
        intake.request(request, found, parent=None, base=request.url, scoped=False)
    tasks = list(found.tasks.values())
    report = await frontier.put(added.crawl, tasks, rejected=found.rejected, samples=found.samples)
    added.new += report.new
    added.duplicates += report.duplicates + found.rejected.pop(DUPLICATE, 0)
    added.rejected = dict(Counter(added.rejected) + Counter(found.rejected) + Counter(report.refused.values()))
