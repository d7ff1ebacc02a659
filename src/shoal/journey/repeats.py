"""Pages that say nothing new: found out per kind of page, so that a trap is left after a few hundred of them."""

from __future__ import annotations

import re
from typing import Final

from shoal.journey.recent_keys import RecentKeys
from shoal.model import Task
from shoal.page import Page

LANE_FACTOR: Final = 5
PROBE_EVERY: Final = 50
SAMPLE_EVERY: Final = 4
TEXTS_REMEMBERED: Final = 100_000
MAX_KINDS: Final = 20_000
LONGEST_FOLDED: Final = 65_536
LARGEST_WALKED: Final = 256 * 1024

# A year with a month, or parameters of a calendar. Such a page repeats itself when only its numbers change.
_DATED: Final = re.compile(
    r"(?<!\d)(?:1[89]|2\d)\d\d(?:[/_.-]?(?:0[1-9]|1[0-2])|[/_.-][1-9](?!\d))|[?&](?:year|month|week|day|date)=",
    re.IGNORECASE,
)
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")


class Repeats:
    """Counts, per shape and per lane, the pages in a row whose content was all seen before.

    At the limit the kind counts as exhausted: its tasks are given up unfetched, but for one in fifty. The first of
    these with something new on it opens the kind again. Each worker finds out for itself, and forgets when it ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen = RecentKeys(TEXTS_REMEMBERED)
        self._runs: dict[int | str, int] = {}
        self._given_up = 0
        self._turn = -1

    def exhausted(self, task: Task) -> bool:
        """Whether the task is not worth a request. What people asked for themselves always is."""
        if task.parent is None or not self._is_at_limit(task):
            return False
        self._given_up += 1
        return self._given_up % PROBE_EVERY != 0

    def note(self, page: Page) -> bool:
        """Take in a page that was handled; gives whether it is one too many of its kind, and its links with it."""
        # Answers to HEAD are all alike, and so are the error pages that some handlers want to see.
        if not self._limit or not page.body or page.status >= 300:
            return False
        runs, task = self._runs, page.task
        self._turn = (self._turn + 1) % SAMPLE_EVERY
        # Reading a page's text costs a few hundredths of parsing it: one in four will do until something repeats.
        if self._turn and task.shape not in runs and task.lane not in runs:
            return False
        if self._is_new(page):
            runs.pop(task.shape, None)
            runs.pop(task.lane, None)
            return False
        if len(runs) >= MAX_KINDS:
            runs.clear()
        runs[task.shape] = runs.get(task.shape, 0) + 1
        runs[task.lane] = runs.get(task.lane, 0) + 1
        return self._is_at_limit(task)

    def _is_at_limit(self, task: Task) -> bool:
        runs, limit = self._runs, self._limit
        return runs.get(task.shape, 0) >= limit > 0 or runs.get(task.lane, 0) >= limit * LANE_FACTOR > 0

    def _is_new(self, page: Page) -> bool:
        text = page.parsed_text
        lane = page.task.lane
        if text is None:
            return self._add(hash((lane, page.body)))
        # No handler's deadline holds here, so large pages get only what is quick.
        if len(text) <= LONGEST_FOLDED and _DATED.search(page.url):
            text = _NO_LETTERS.sub("", text)
        # The text alone first: session ids stand in links. But galleries differ in nothing but their pictures, and what
        # scripts are to fill in often stands in the meta elements.
        if self._add(hash((lane, text))):
            return True
        if len(page.body) > LARGEST_WALKED:
            return self._add(hash((lane, page.body)))
        return self._add(hash((lane, text, *page.fillings)))

    def _add(self, number: int) -> bool:
        if number in self._seen:
            return False
        self._seen.add(number)
        return True
