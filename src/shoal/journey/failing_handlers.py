"""Notices a handler that fails on each of its first pages, so that the crawl is paused before all its pages fail."""

from __future__ import annotations

from collections import Counter

import msgspec

from shoal.journey.listings import PAGES, SITEMAP
from shoal.model import Dead, Done, Result, Task
from shoal.policy.verdicts import code_line_in, stopped_by

LONGEST_TEXT = 160


class _Record(msgspec.Struct):
    """The first pages of one handler. `handled`: the handler gave its results, which are not stored yet."""

    failed: dict[int, str] = msgspec.field(default_factory=dict)
    handled: set[int] = msgspec.field(default_factory=set)


class FailingHandlers:
    """What one worker knows of its handlers. A handler that has succeeded once is not watched any more.

    `reason` says why the crawl must pause; empty: it may go on."""

    def __init__(self, limit: int) -> None:
        self.reason = ""
        self._limit = limit
        self._proven: set[str] = set()
        self._records: dict[str, _Record] = {}

    @property
    def is_watching(self) -> bool:
        """Whether a handler has had pages and no success among them that is settled."""
        return bool(self._records)

    def handled(self, task: Task) -> None:
        """The handler has given the page's results. That no item of them is unstorable is known when they are
        settled."""
        if self._limit and task.handler not in self._proven:
            self._record(task).handled.add(task.key)

    def failed(self, task: Task, what: str) -> None:
        """The handler failed on this page: by an exception, or with an item that no store takes."""
        if not self._limit or task.handler in self._proven or task.handler == SITEMAP:
            return
        record = self._record(task)
        record.handled.discard(task.key)
        # By key: a page that is tried again is not one more page.
        record.failed[task.key] = what[:LONGEST_TEXT]
        if len(record.failed) >= self._limit and not record.handled and not self.reason:
            self.reason = stopped_by(_name_of(task), pages=len(record.failed), what=_most_frequent(record.failed))

    def settled(self, result: Result) -> None:
        """The frontier has confirmed the end of this page."""
        task = result.lease.task
        record = self._records.get(task.handler)
        if record is None or task.key not in record.handled:
            return
        if isinstance(result, Done):
            self._proven.add(task.handler)
            del self._records[task.handler]
        elif isinstance(result, Dead):
            self.failed(task, result.reason)
        else:
            record.handled.discard(task.key)

    def begin_again(self) -> None:
        """The crawl was paused: when it is resumed, the spider may have been fixed."""
        self.reason = ""
        self._records.clear()

    def _record(self, task: Task) -> _Record:
        return self._records.setdefault(task.handler, _Record())


def _most_frequent(failed: dict[int, str]) -> str:
    """A failure of the most frequent kind: the same type at the same line, whatever its message says of its page."""
    kinds = [(what.partition(":")[0], code_line_in(what)) for what in failed.values()]
    return dict(zip(kinds, failed.values(), strict=True))[Counter(kinds).most_common(1)[0][0]]


def _name_of(task: Task) -> str:
    return str((task.meta or {}).get("handler", task.handler)) if task.handler == PAGES else task.handler
