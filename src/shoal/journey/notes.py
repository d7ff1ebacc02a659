"""Notes that results of pages carry for the summary of the crawl; and the pause of a crawl whose handler fails on each
of its first pages (`stop_after_failures`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal.journey.harvest import Harvest
from shoal.journey.results import Finished
from shoal.journey.sitemaps import PAGES, SITEMAP
from shoal.model import DUPLICATE, Dead, Done, Result, Task
from shoal.policy.failures import (
    FOLLOW,
    FOLLOWED,
    HANDLED,
    ITEMS,
    KEYLESS,
    SAME_KEY,
    SITEMAP_NOTE,
    START_FAILED,
    START_OK,
    UNUSED,
    NoteNames,
    code_line_in,
    note_name,
    stopped_by,
)
from shoal.spider.page import Page

LONGEST_TEXT = 160
MOST_PAIRS = 50
MOST_SITEMAPS = 10
MOST_KEYS = 20
SELECTOR_KEPT = 150
KEY_KEPT = 60
# More than once: the result that carries the note may be lost with its lease.
FOLLOWED_SAID = 3

REDIRECTED = "redirected"
BAD_SITEMAP = "bad_sitemap"
# One fetched page of a list would be enough, but its lease may be lost, and its note with it.
ENOUGH_LISTED = 20


class _Record(msgspec.Struct):
    """The first pages of one handler. `handled`: pages whose results are not settled yet."""

    failed: dict[int, str] = msgspec.field(default_factory=dict)
    handled: set[int] = msgspec.field(default_factory=set)


class FailingHandlers:
    """Counts a worker's failed pages per handler, until the handler has succeeded once.

    `reason`: why the crawl must pause; empty: it may go on."""

    def __init__(self, limit: int) -> None:
        self.reason = ""
        self._limit = limit
        self._proven: set[str] = set()
        self._records: dict[str, _Record] = {}

    @property
    def is_watching(self) -> bool:
        """Whether some handler has had pages, but no settled success yet."""
        return bool(self._records)

    def handled(self, task: Task) -> None:
        """The handler returned. Whether it succeeded is known when the page is settled: an item may be unstorable."""
        if self._limit and task.handler not in self._proven:
            self._record(task).handled.add(task.key)

    def failed(self, task: Task, what: str) -> None:
        """The handler raised on this page, or yielded an unstorable item."""
        if not self._limit or task.handler in self._proven or task.handler == SITEMAP:
            return
        record = self._record(task)
        record.handled.discard(task.key)
        # By key: a retry is not one more page.
        record.failed[task.key] = what[:LONGEST_TEXT]
        if len(record.failed) >= self._limit and not record.handled and not self.reason:
            self.reason = stopped_by(_name_of(task), pages=len(record.failed), what=_most_frequent(record.failed))

    def settled(self, result: Result) -> None:
        """The frontier has settled this page."""
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
        """Forget all failures, after a pause: the spider may have been fixed."""
        self.reason = ""
        self._records.clear()

    def _record(self, task: Task) -> _Record:
        return self._records.setdefault(task.handler, _Record())


def _most_frequent(failed: dict[int, str]) -> str:
    """A failure of the most frequent kind: kinds differ by type and line of code, not by message."""
    kinds = [(what.partition(":")[0], code_line_in(what)) for what in failed.values()]
    return dict(zip(kinds, failed.values(), strict=True))[Counter(kinds).most_common(1)[0][0]]


def _name_of(task: Task) -> str:
    return str((task.meta or {}).get("handler", task.handler)) if task.handler == PAGES else task.handler


class PageNotes:
    """Makes the notes of one worker's pages. Each kind of note has a limited number of names."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}  # notes sent that a handler's selector finds links
        self._keys: dict[str, str] = {}
        self._sitemaps = NoteNames(SITEMAP_NOTE, most=MOST_SITEMAPS, rest="")

    def of(self, page: Page, harvest: Harvest, *, handler: str) -> dict[str, int]:
        """The notes of a handled page."""
        notes: dict[str, int] = {}
        for selector, has_found in page.follows:
            if self._said.get((handler, selector), 0) < FOLLOWED_SAID:
                self._note_follow(handler, selector, notes, kind=FOLLOWED if has_found else FOLLOW)
        for selector in page.unused_follows:
            if not self._said.get((handler, selector)):
                self._note_follow(handler, selector, notes, kind=UNUSED)
        if harvest.items:
            notes[ITEMS] = len(harvest.items)
            if len(harvest.items) > 1:
                self._note_same_keys(page, harvest, notes)
        if harvest.keyless:
            notes[KEYLESS] = harvest.keyless
        return notes

    def of_sitemap(self, problem: str) -> dict[str, int]:
        """The note of a sitemap that could not be read in full."""
        name = self._sitemaps.of(problem.removeprefix(SITEMAP_NOTE))
        return {name: 1} if name else {}

    def _note_follow(self, handler: str, selector: str, notes: dict[str, int], *, kind: str) -> None:
        pair = (handler, selector)
        if pair not in self._said:
            if len(self._said) >= MOST_PAIRS:
                return
            self._said[pair] = 0
        self._said[pair] += kind == FOLLOWED
        notes[note_name(f"{kind}{handler} {' '.join(selector.split())[:SELECTOR_KEPT]}")] = 1

    def _note_same_keys(self, page: Page, harvest: Harvest, notes: dict[str, int]) -> None:
        keys = [item.key for item in harvest.items]
        if len(set(keys)) == len(keys):
            return
        seen: set[str] = set()
        for key in keys:
            if key in seen and (name := self._same_key(key[:KEY_KEPT], page.url)):
                notes[name] = 1
            seen.add(key)

    def _same_key(self, key: str, url: str) -> str:
        if key not in self._keys:
            if len(self._keys) >= MOST_KEYS:
                return ""
            self._keys[key] = note_name(f"{SAME_KEY}{key} on {url}")
        return self._keys[key]


class StartNotes:
    """Adds a note to the result of a start URL: did it succeed? For a sitemap, the pages it lists have the notes."""

    def __init__(self, *, handle_statuses: Sequence[int]) -> None:
        self._handled = frozenset({*HANDLED, *(f"http_{status}" for status in handle_statuses)})
        self._failed = NoteNames(START_FAILED)
        self._listed = 0

    def added(self, finished: Finished) -> Finished:
        """The result of a page at depth 0, with the note if the start URL ends with it."""
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
        """Why the start URL failed; empty: it was handled; None: another task has the note."""
        if BAD_SITEMAP in result.rejected and not result.found and DUPLICATE not in result.rejected:
            return BAD_SITEMAP
        if result.lease.task.handler == SITEMAP and result.found:
            return None
        if result.outcome != REDIRECTED:
            return "" if result.outcome in self._handled else result.outcome
        return None if result.found or DUPLICATE in result.rejected else next(iter(result.rejected), REDIRECTED)


def _is_listed(task: Task) -> bool:
    """Whether the URL comes from a sitemap or a range of pages."""
    return task.parent is not None and not task.hops
