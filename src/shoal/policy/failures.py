"""Whether a crawl failed and why, whether it saw the whole site, and the names of the notes that it counts for that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from shoal.frontier.rules.constants import MAX_KINDS
from shoal.frontier.rules.tasks import BAD_RECORD, MAX_PAGES, MAX_PER_HOST, MAX_PER_SHAPE, SET_ASIDE, TOO_MANY_KINDS
from shoal.model import CrawlState, Progress
from shoal.policy.retries import RETRIED_STATUSES
from shoal.settings.table import Settings
from shoal.settings.values import parse_max_failures
from shoal.text.errors import several

ITEMS: Final = "items"  # of settled pages
BYTES: Final = "bytes"  # of settled pages, after decompression; only counted if a limit needs it
KEYLESS: Final = "keyless"  # items with an empty key
UNREACHED: Final = "unreached visits"  # failed visits of pages that were reached before
START_OK: Final = "start ok"

# Kinds of notes: the beginnings of their names.
START_FAILED: Final = "start failed "  # then the outcome
RAISED: Final = "raised "  # then the exception and the line of the spider: dead letters
FOLLOW: Final = "follow "  # then the handler and the selector: pages on which it found no link
FOLLOWED: Final = "followed "  # the same: the selector found a link, so it is right
UNUSED: Final = "unused "  # the same: pages on which the result of `page.follow` was neither yielded nor iterated
SAME_KEY: Final = "same key "  # then the key, " on " and the URL of the page
SITEMAP_NOTE: Final = "sitemap "  # then its URL and what is wrong

LONGEST_NAME: Final = 200
MOST_NAMES: Final = 100
OTHER: Final = "other"


class NoteNames:
    """A bounded number of names of one kind of notes."""

    def __init__(self, kind: str, *, most: int = MOST_NAMES, rest: str = OTHER) -> None:
        self._kind = kind
        self._most = most
        self._rest = f"{kind}{rest}" if rest else ""
        self._names: dict[str, str] = {}

    def of(self, ending: str) -> str:
        """The name with this ending; after too many different ones, the name with the ending `rest` ("" without it)."""
        name = self._names.get(ending)
        if name is None:
            if len(self._names) >= self._most:
                return self._rest
            name = self._names[ending] = note_name(f"{self._kind}{ending}")
        return name


def note_name(text: str) -> str:
    """A text as the name of a note: shortened, without characters that a frontier cannot store (surrogates, NUL)."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:LONGEST_NAME]


REASONS_SHOWN: Final = 3
HANDLER: Final = "handler"
GIVEN_UP: Final = "equal_pages"  # dead letters of a trap, not fetched: failures only if max_failures is 0
# Tasks with these outcomes are no pages: not fetched, or led to another task, or dropped by an operator.
NO_PAGES: Final = frozenset({"redirected", "robots", "robots_unavailable", "dropped", GIVEN_UP})
# Pages that the spider has handled, now or at their last change.
HANDLED: Final = frozenset({"ok", "not_modified"})
NOT_FED: Final = (
    "the start was not fed to its end, a process that fed it was stopped or lost: run the same command again"
)
_STATUS = re.compile(r"http_(\d{3})")
_STOPPED = re.compile(r"\S+ failed on its first \d+ pages: ")
_CODE_LINE = re.compile(r" at (\S+:\d+)$")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why some pages of a crawl failed: an outcome, or an exception and the line of the spider that raised it."""

    reason: str
    pages: int
    at: str = ""
    message: str = ""


def faults_of(progress: Progress, *, max_failures: str) -> list[str]:
    """Why the crawl failed, one sentence each; empty: it did not."""
    not_fed = NOT_FED if progress.feeders_lost and progress.state is not CrawlState.STOPPED else ""
    kinds = _too_many_kinds(progress)
    found = (_too_many(progress, max_failures), _no_start(progress), not_fed, kinds, set_aside(progress))
    return [fault for fault in found if fault]


def _too_many_kinds(progress: Progress) -> str:
    number = progress.rejected.get(TOO_MANY_KINDS, 0)
    if not number:
        return ""
    return (
        f"{several(number, 'task')} kept out: a crawl has at most {MAX_KINDS} kinds of tasks, and the spider names"
        " more; let requests share kinds"
    )


def asides(progress: Progress) -> dict[str, int]:
    """How many unreadable records of the frontier were set aside, by the name of their table or key."""
    return {name.removeprefix(SET_ASIDE): n for name, n in progress.notes.items() if name.startswith(SET_ASIDE) and n}


def set_aside(progress: Progress) -> str:
    """One line on the unreadable records of the frontier, with what to do; empty: none."""
    found = asides(progress)
    if not found:
        return ""
    number = sum(found.values())
    were = "was" if number == 1 else "were"
    by_name = ", ".join(f"{n} in {name}" for name, n in sorted(found.items()))
    return (
        f"{several(number, 'record')} of the frontier could not be read and {were} set aside"
        f" ({by_name}): pages among them whose URL could be told are dead letters, `shoal dead requeue --reason"
        f" '{BAD_RECORD}'` queues them again"
    )


def pages_of(progress: Progress) -> int:
    """How many tasks ended as pages. Not counted: redirects, and tasks kept out by robots.txt or as traps."""
    return progress.done + progress.dead - sum(progress.outcomes.get(name, 0) for name in NO_PAGES)


def failures_of(progress: Progress, *, earlier: Mapping[str, int], settings: Settings) -> list[Failure]:
    """Why pages failed, the most frequent reason first. `earlier`: the notes from before this run, which also count
    the exceptions of dead letters that were requeued since."""
    handled = {f"http_{status}" for status in settings.handle_statuses}
    found = [
        Failure(reason=name, pages=min(number, progress.dead))
        for name, number in progress.outcomes.items()
        if number > 0 and name != HANDLER and name not in handled and _is_failure(name)
    ]
    raised = progress.outcomes.get(HANDLER, 0)
    exceptions = _exceptions(progress.notes)
    if exceptions.total() > raised:
        exceptions -= _exceptions(earlier)
    for name, number in exceptions.items():
        kind, _, line = name.partition(" ")
        found.append(Failure(reason=kind, pages=number, at=line))
    unnamed = raised - exceptions.total()
    if unnamed > 0:
        found.append(Failure(reason=HANDLER, pages=unnamed))
    return sorted(found, key=lambda failure: (-failure.pages, failure.reason, failure.at)) if progress.dead else []


def shown_failures(failures: Sequence[Failure]) -> list[Failure]:
    """The most frequent reasons; the most frequent exception is always among them."""
    first = list(failures[:REASONS_SHOWN])
    exception = next((failure for failure in failures if failure.at), None)
    if exception is not None and exception not in first:
        first[-1] = exception
    return first


def stopped_by(handler: str, *, pages: int, what: str) -> str:
    """The reason of the pause when a handler has failed on each of its first pages."""
    return f"{handler} failed on its first {pages} pages: {what}"


def is_stopped(progress: Progress) -> bool:
    """Whether a worker paused the crawl because a handler failed on each of its first pages."""
    return progress.state is CrawlState.PAUSED and _STOPPED.match(progress.reason) is not None


def code_line_in(reason: str) -> str:
    """The line of the spider that the reason of a pause names; empty: none."""
    found = _CODE_LINE.search(reason)
    return found[1] if found else ""


def _too_many(progress: Progress, max_failures: str) -> str:
    limit, is_share = parse_max_failures(max_failures)
    failed, pages = progress.dead, pages_of(progress)
    if limit:
        failed -= progress.outcomes.get(GIVEN_UP, 0)
    else:
        pages += progress.outcomes.get(GIVEN_UP, 0)
    if failed <= (limit * pages / 100 if is_share else limit):
        return ""
    share = f" ({100 * failed / pages:.3g} %)" if pages else ""
    allowed = f"more than max_failures={max_failures}" if limit else "none may (max_failures=0)"
    return f"{failed:,} of {pages:,} pages failed{share}: {allowed}"


def _no_start(progress: Progress) -> str:
    """Why no start URL worked: all failed, or all were kept out; empty: some worked."""
    failed = {name.removeprefix(START_FAILED): n for name, n in progress.notes.items() if name.startswith(START_FAILED)}
    if failed and not progress.notes.get(START_OK):
        return f"every start URL failed: {_counted(failed)}"
    if progress.known == 0 and progress.rejected:
        return f"every start URL was kept out: {_counted(progress.rejected)}"
    return ""


def _counted(names: Mapping[str, int]) -> str:
    most = sorted(names.items(), key=lambda pair: (-pair[1], pair[0]))[:REASONS_SHOWN]
    return ", ".join(f"{name} ({number:,})" for name, number in most)


def _is_failure(outcome: str) -> bool:
    """Whether tasks with this outcome are dead letters, not done."""
    status = _STATUS.fullmatch(outcome)
    if status is not None:
        return int(status[1]) in RETRIED_STATUSES
    return outcome not in HANDLED and outcome not in NO_PAGES


def _exceptions(notes: Mapping[str, int]) -> Counter[str]:
    return Counter({name.removeprefix(RAISED): n for name, n in notes.items() if name.startswith(RAISED)})


# Outcomes of pages that are fully known: handled, missing, or replaced by another page.
_KNOWN_IN_FULL: Final = frozenset({"ok", "not_modified", "redirected", "handed_over", "http_404", "http_410", "robots"})
# Limits that may keep out pages which the next crawl lets in.
_LIMITS: Final = (
    MAX_PAGES,
    MAX_PER_HOST,
    MAX_PER_SHAPE,
    "too_many_links",
    "equal_pages",
    "bad_sitemap",
    "sitemap_entry",
)


def why_not_whole(progress: Progress) -> str:
    """Why items that the crawl did not see may still be on the site; empty: it saw all of it."""
    if progress.state is not CrawlState.FINISHED:
        return f"the crawl is not finished, but {progress.state}"
    if progress.feeders_lost:
        return "its start was not fed to the end"
    if progress.dead or progress.cancelled:
        return f"{several(progress.dead + progress.cancelled, 'page')} not done (dead letters, or cancelled)"
    for outcome, number in progress.outcomes.items():
        if number and outcome not in _KNOWN_IN_FULL:
            return f"{several(number, 'page')} ended as {outcome}"
    for limit in _LIMITS:
        if progress.rejected.get(limit):
            return f"{several(progress.rejected[limit], 'link')} kept out by {limit}"
    return "" if any(progress.outcomes.get(name) for name in HANDLED) else "it handled no page"
