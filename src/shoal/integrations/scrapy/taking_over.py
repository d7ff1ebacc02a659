"""The queue and the filter of scrapy-redis taken over into a crawl. Every step may be repeated: an import that was
killed is run again, and neither loses nor doubles a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from scrapy import Request

from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.integrations.scrapy.crawl_of_spider import ScrapyCrawl, crawl_to_fill
from shoal.integrations.scrapy.fingerprints import FORMS, NEWEST, PROJECT
from shoal.integrations.scrapy.queue_entries import (
    QueuedRequests,
    UnreadableEntry,
    fields_of,
    is_pickled,
    request_of,
)
from shoal.integrations.scrapy.queue_source import QueueSource, SourceState
from shoal.integrations.scrapy.stored_requests import UnfitRequest
from shoal.model import Task
from shoal.text.errors import several

SAMPLE = 200  # waiting requests that are looked up in the filter, to tell how its fingerprints were made
KNOWN_AT_ONCE = 4_000
EXAMPLES = 5

Show = Callable[[Callable[[], str]], None]


class TakeOver(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants. `form`: how the filter's fingerprints were made, empty where that is to be found out.
    `skips_unreadable`: the filter is taken over though requests are left out. `again`: into a new crawl, though one
    that took over a queue is finished."""

    crawl: ScrapyCrawl
    form: str = ""
    trusts_pickle: bool = False
    skips_unreadable: bool = False
    again: bool = False
    removes: bool = False


class TakenOver(msgspec.Struct, kw_only=True):
    """What became of it. `requests` are those that the crawl has now as tasks, `new` those of them that it lacked;
    `keys` and `new_keys` the same of the filter. `is_sure`: requests of the queue are in the filter by this form of
    fingerprints. `problems` say what was not taken over, and what to do."""

    crawl: str = ""
    is_begun: bool = False
    waiting: int = 0
    requests: int = 0
    new: int = 0
    dead_letters: int = 0
    unreadable: int = 0
    refused: int = 0
    examples: list[str] = msgspec.field(default_factory=list)
    known: int = 0
    keys: int = 0
    new_keys: int = 0
    fingerprints: str = ""
    is_sure: bool = False
    start_urls: int = 0
    removed: bool = False
    problems: list[str] = msgspec.field(default_factory=list)

    def note(self, example: str) -> None:
        """Keep the first few examples of what is wrong."""
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


async def take_over(wanted: TakeOver, *, source: QueueSource, frontier: Frontier, show: Show) -> TakenOver:
    """First the requests, then the filter, which knows them too. A filter is taken over only after every request of
    the queue was: one that is left out would count as done."""
    state = await source.state()
    taken = TakenOver(waiting=state.waiting, known=state.known, start_urls=await source.start_urls())
    _check_there(source, state, taken)
    sample = await _looked_through(source, state, wanted, show=show)
    form, taken.is_sure = await _form(source, state, wanted, sample)
    crawl, taken.fingerprints, taken.is_begun = await crawl_to_fill(
        wanted.crawl, form, frontier=frontier, again=wanted.again, otherwise=NEWEST if state.known else PROJECT
    )
    taken.crawl = crawl.id
    await _Intake(source, frontier, taken, show).run(state)
    _judge(taken, wanted, source)
    if not taken.problems:
        await _take_filter(state, taken, source=source, frontier=frontier, show=show)
    if taken.unreadable and wanted.skips_unreadable:
        taken.problems.append(f"{several(taken.unreadable, 'entry')} that cannot be read were left out, as you asked")
    if taken.dead_letters:
        taken.problems.append(
            f"{several(taken.dead_letters, 'request')} cannot be done by another process and became dead letters of"
            f" {taken.crawl}: `shoal dead list {taken.crawl}` shows them"
        )
    if wanted.removes and not taken.problems:
        await _remove(state, taken, source)
    return taken


async def _remove(state: SourceState, taken: TakenOver, source: QueueSource) -> None:
    taken.removed = await source.remove(state)
    if not taken.removed:
        taken.problems.append(
            f"{source.keys.queue} and {source.keys.filter} were not removed: they have changed since they were read"
        )


def _check_there(source: QueueSource, state: SourceState, taken: TakenOver) -> None:
    if state.waiting or state.known:
        return
    keys = source.keys
    start = f"; {several(taken.start_urls, 'start URL')} in {keys.start} need no import" if taken.start_urls else ""
    raise UsageError(
        f"there is neither {keys.queue} nor {keys.filter} in Redis at {source.shown}{start}: check the spider's name"
        " and the database, or name them with --from, --queue-key and --dupefilter-key"
    )


async def _looked_through(source: QueueSource, state: SourceState, wanted: TakeOver, *, show: Show) -> list[Request]:
    """Some requests that must be in the filter. Refuses pickled entries that nobody trusts, before anything begins."""
    sample: list[Request] = []
    seen = pickled = 0
    async for entries in source.entries(state):
        seen += len(entries)
        show(partial(_line, "looking", seen, state.waiting, "request"))
        for entry in entries:
            if is_pickled(entry) and not wanted.trusts_pickle:
                pickled += 1
            elif len(sample) < SAMPLE and (request := _filtered_request(entry)) is not None:
                sample.append(request)
        if len(sample) >= SAMPLE and wanted.trusts_pickle:
            break
    if pickled:
        raise ShoalError(
            f"{pickled:,} of {several(seen, 'request')} in {source.keys.queue} are pickled, and nothing was taken over:"
            " to unpickle runs any code that whoever can write to this Redis has put there. Add --trust-pickle if only"
            " your own processes can, or let scrapy-redis finish its queue"
        )
    return sample


def _filtered_request(entry: bytes) -> Request | None:
    try:
        request = request_of(fields_of(entry))
    except UnreadableEntry:
        return None
    return None if request.dont_filter else request


async def _form(
    source: QueueSource, state: SourceState, wanted: TakeOver, sample: Sequence[Request]
) -> tuple[str, bool]:
    """How the fingerprints of the filter were made, empty where nothing tells it; and whether the filter says so."""
    found = {name: await source.known_among([make(one) for one in sample]) for name, make in FORMS.items()}
    best = max(found, key=lambda name: found[name])
    if wanted.form:
        if found[best] and not found[wanted.form]:
            raise UsageError(
                f"{source.keys.filter} has {found[best]} of {several(len(sample), 'waiting request')} by the"
                f" fingerprints of {best}, and none by those of {wanted.form}: leave out --fingerprints"
            )
        return wanted.form, found[wanted.form] > 0
    if found[best]:
        return best, True
    if sample and state.known:
        raise UsageError(
            f"none of {several(len(sample), 'waiting request')} is in {source.keys.filter}, by whatever fingerprints:"
            " if the project's DUPEFILTER_CLASS uses a REQUEST_FINGERPRINTER_CLASS of its own, give --fingerprints"
            f" {PROJECT}; else --fingerprints {NEWEST} or another"
        )
    return "", False


class _Intake:
    """Puts the requests of a queue into a crawl."""

    def __init__(self, source: QueueSource, frontier: Frontier, taken: TakenOver, show: Show) -> None:
        self._source, self._frontier, self._taken, self._show = source, frontier, taken, show
        self._requests = QueuedRequests(taken.fingerprints)

    async def run(self, state: SourceState) -> None:
        taken, read = self._taken, 0
        async for entries in self._source.entries(state):
            tasks: list[Task] = []
            letters: list[tuple[Task, str]] = []
            for entry in entries:
                self._read(entry, tasks, letters)
            report = await self._frontier.put(taken.crawl, tasks)
            if letters:
                await self._frontier.bury(taken.crawl, letters)
            read += len(entries)
            taken.requests += len(tasks) - len(report.refused)
            taken.new += report.new
            taken.refused += len(report.refused)
            taken.dead_letters += len(letters)
            self._show(partial(_line, taken.crawl, read, taken.waiting, "request"))

    def _read(self, entry: bytes, tasks: list[Task], letters: list[tuple[Task, str]]) -> None:
        try:
            fields = fields_of(entry)
            try:
                tasks.append(self._requests.task_of(fields, entry))
            except UnfitRequest as error:
                letters.append((self._requests.letter_of(fields, entry), f"unfit: {error}"))
                self._taken.note(str(error))
        except UnreadableEntry as error:
            self._taken.unreadable += 1
            self._taken.note(str(error))


async def _check_unchanged(state: SourceState, taken: TakenOver, source: QueueSource) -> None:
    """Notice scrapy-redis processes that still work on the queue."""
    now = await source.state()
    if (now.kind, now.waiting, now.ends) != (state.kind, state.waiting, state.ends) and not taken.problems:
        taken.problems.append(
            f"{source.keys.queue} has changed meanwhile ({state.waiting:,} requests, now {now.waiting:,}): stop all"
            " scrapy-redis processes of this spider, then run this again"
        )


def _judge(taken: TakenOver, wanted: TakeOver, source: QueueSource) -> None:
    """Say what keeps the filter from being taken over."""
    if taken.refused:
        taken.problems.append(
            f"{several(taken.refused, 'request')} did not fit the limits of {taken.crawl}, and the filter was not taken"
            " over: raise SHOAL_MAX_PAGES or SHOAL_MAX_PER_HOST, run the spider once, then this again"
        )
    if taken.unreadable and not wanted.skips_unreadable:
        taken.problems.append(
            f"{several(taken.unreadable, 'entry')} of {source.keys.queue} cannot be read, and the filter was"
            " not taken over: run this where the project's modules are, or add --skip-unreadable to go on without them"
        )


async def _take_filter(
    state: SourceState, taken: TakenOver, *, source: QueueSource, frontier: Frontier, show: Show
) -> None:
    # All of it is read before any of it is known: a request that was pushed after the queue was read, whose key is
    # among these, would never be fetched. It shows before this has begun.
    found = await source.filter_keys(
        lambda number: show(partial(_line, "reading the filter", number, state.known, "key"))
    )
    await _check_unchanged(state, taken, source)
    if taken.problems:
        return
    keys = found.keys
    for start in range(0, len(keys), KNOWN_AT_ONCE):
        taken.new_keys += await frontier.know(taken.crawl, keys[start : start + KNOWN_AT_ONCE])
        taken.keys = min(start + KNOWN_AT_ONCE, len(keys))
        show(partial(_line, taken.crawl, taken.keys, len(keys), "key"))
    if found.others:
        taken.problems.append(
            f"{several(found.others, 'member')} of {source.keys.filter} are no fingerprints, such as"
            f" {found.example[:50]!r}, and were left out: --dupefilter-key names another filter"
        )
    await _check_unchanged(state, taken, source)


def _line(what: str, number: int, total: int, noun: str) -> str:
    return f"{what}: {number:,} of {several(total, noun)}"
