"""Notes on how start URLs ended: a crawl that got none of them is a failure, whatever else it counts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.journey.results import Finished
from shoal.model import DUPLICATE, Dead, Done, Task
from shoal.policy.notes import START_FAILED, START_OK, NoteNames

REDIRECTED = "redirected"
BAD_SITEMAP = "bad_sitemap"


class StartNotes:
    """Adds its note to the result of a start URL."""

    def __init__(self, *, handle_statuses: Sequence[int]) -> None:
        self._handled = frozenset({"ok", *(f"http_{status}" for status in handle_statuses)})
        self._failed = NoteNames(START_FAILED)

    def added(self, finished: Finished) -> Finished:
        """The result of a page at depth 0, with a note if it is the end of a start URL."""
        result = finished.result
        if not isinstance(result, Done | Dead) or not _is_start(result.lease.task):
            return finished
        failed = result.reason.partition(":")[0] if isinstance(result, Dead) else self._failure(result)
        if failed is None:
            return finished
        note = self._failed.of(failed) if failed else START_OK
        return msgspec.structs.replace(
            finished, result=msgspec.structs.replace(result, notes={**result.notes, note: 1})
        )

    def _failure(self, result: Done) -> str | None:
        """Why the start URL failed; empty: it was handled; None: another task says how it ended."""
        if BAD_SITEMAP in result.rejected and not result.found and DUPLICATE not in result.rejected:
            return BAD_SITEMAP
        if result.outcome != REDIRECTED:
            return "" if result.outcome in self._handled else result.outcome
        return None if result.found or DUPLICATE in result.rejected else next(iter(result.rejected), REDIRECTED)


def _is_start(task: Task) -> bool:
    """Whether a source, a command or another program named the URL, or redirects lead from such a URL to it. Pages that
    a sitemap lists are at depth 0 as well."""
    return task.parent is None or task.hops > 0
