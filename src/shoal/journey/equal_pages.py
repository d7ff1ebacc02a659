"""The setting `max_equal_pages`: gives up URLs of a shape or lane whose pages all have the same content (traps)."""

from __future__ import annotations

import re
from typing import Final

from shoal.journey.intake import RecentKeys
from shoal.model import Task
from shoal.spider.page import Page

LANE_FACTOR: Final = 5
PROBE_EVERY: Final = 50
SAMPLE_EVERY: Final = 4
TEXTS_REMEMBERED: Final = 100_000
MAX_KINDS: Final = 20_000
LONGEST_FOLDED: Final = 65_536
LARGEST_WALKED: Final = 256 * 1024

# A year with a month, or parameters of a calendar. On such a page, new digits alone do not count as new content.
_DATED: Final = re.compile(
    r"(?<!\d)(?:1[89]|2\d)\d\d(?:[/_.-]?(?:0[1-9]|1[0-2])|[/_.-][1-9](?!\d))|[?&](?:year|month|week|day|date)=",
    re.IGNORECASE,
)
_NO_LETTERS: Final = re.compile(r"[\W\d_]+")


class EqualPages:
    """Counts, per shape and per lane, the pages in a row without new content.

    At the limit the shape or lane is exhausted: its tasks are given up unfetched, except one in PROBE_EVERY; one of
    these with new content sets the count to 0. Each worker counts for itself, in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen = RecentKeys(TEXTS_REMEMBERED)
        self._runs: dict[int | str, int] = {}
        self._given_up = 0
        self._noted = 0

    def exhausted(self, task: Task) -> bool:
        """Whether to give the task up unfetched. Start URLs are always fetched."""
        if task.parent is None or not self._is_at_limit(task):
            return False
        self._given_up += 1
        return self._given_up % PROBE_EVERY != 0

    def note(self, page: Page) -> bool:
        """Count a handled page. True: its shape or lane is exhausted, drop its links."""
        # Answers to HEAD are all alike, and so are error pages that go to handlers (`handle_statuses`).
        if not self._limit or not page.body or page.status >= 300:
            return False
        runs, task = self._runs, page.task
        is_sample = self._noted % SAMPLE_EVERY == 0
        self._noted += 1
        # Reading the text takes a few percent of parsing: a sample is enough until a page repeats.
        if not is_sample and task.shape not in runs and task.lane not in runs:
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
        # No deadline interrupts this code: large pages get only the quick checks.
        if len(text) <= LONGEST_FOLDED and _DATED.search(page.url):
            text = _NO_LETTERS.sub("", text)
        # The text alone first: links may differ by session ids. But a gallery's pages differ only in their pictures,
        # and pages that scripts fill in often only in their meta elements.
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
