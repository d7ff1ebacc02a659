"""Notes on how start URLs ended: a crawl that got none of them is a failure, whatever else it counts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.journey.listings import SITEMAP
from shoal.journey.results import Finished
from shoal.model import DUPLICATE, Dead, Done, Task
from shoal.policy.verdicts import HANDLED, START_FAILED, START_OK, NoteNames

REDIRECTED = "redirected"
BAD_SITEMAP = "bad_sitemap"
# One listed page that was had is enough; its result may be stale, and count nothing.
ENOUGH_LISTED = 20


class StartNotes:
    """Adds its note to the result of a start URL. A sitemap leaves it to the pages that it lists."""

    def __init__(self, *, handle_statuses: Sequence[int]) -> None:
        self._handled = frozenset({*HANDLED, *(f"http_{status}" for status in handle_statuses)})
        self._failed = NoteNames(START_FAILED)
        self._listed = 0

    def added(self, finished: Finished) -> Finished:
        """The result of a page at depth 0, with a note if it is the end of a start URL."""
        result = finished.result
        if not isinstance(result, Done | Dead) or (self._listed >= ENOUGH_LISTED and _is_listed(result.lease.task)):
            return finished
        failed = result.reason.partition(":")[0] if isinstance(result, Dead) else self._failure(result)
        if failed is None:
            return finished
        note = self._failed.of(failed) if failed else START_OK
        self._listed += not failed and _is_listed(result.lease.task)
        return msgspec.structs.replace(
            finished, result=msgspec.structs.replace(result, notes={**result.notes, note: 1})
        )

    def _failure(self, result: Done) -> str | None:
        """Why the start URL failed; empty: it was handled; None: another task says how it ended."""
        if BAD_SITEMAP in result.rejected and not result.found and DUPLICATE not in result.rejected:
            return BAD_SITEMAP
        if result.lease.task.handler == SITEMAP and result.found:
            return None
        if result.outcome != REDIRECTED:
            return "" if result.outcome in self._handled else result.outcome
        return None if result.found or DUPLICATE in result.rejected else next(iter(result.rejected), REDIRECTED)


def _is_listed(task: Task) -> bool:
    """Whether a sitemap or a range of pages named the URL: a site may list a million."""
    return task.parent is not None and not task.hops
