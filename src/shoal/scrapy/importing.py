"""Imports the queue and the filter of scrapy-redis into a crawl: reads both in Redis, makes tasks of the entries, which
are JSON or pickled dicts, and puts them. Every step may be repeated: after a crash, an import runs again and neither
loses nor doubles a request. Nothing in Redis changes except by `remove`."""

from __future__ import annotations

import pickle
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from scrapy import Request

from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.redis.connections import RedisConnections
from shoal.model import Task
from shoal.scrapy.crawl import ScrapyCrawl, crawl_to_fill
from shoal.scrapy.fingerprints import FORMS, KEY_BYTES, NEWEST, PROJECT, key_of
from shoal.scrapy.requests import StoredRequests, UnfitRequest
from shoal.text.errors import several

READ_AT_ONCE = 200
SCANNED_AT_ONCE = 2_000

# Deletes the keys unless the queue or the filter has changed: scrapy-redis may be running again.
_REMOVE = """
local kind = redis.call('TYPE', KEYS[1]).ok
local waiting = kind == 'list' and redis.call('LLEN', KEYS[1]) or kind == 'zset' and redis.call('ZCARD', KEYS[1]) or 0
if waiting ~= tonumber(ARGV[1]) or redis.call('SCARD', KEYS[2]) ~= tonumber(ARGV[2]) then return 0 end
return 1 + redis.call('UNLINK', KEYS[1], KEYS[2])
"""


class SourceKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the keys. `start` holds start URLs, which need no import."""

    queue: str
    filter: str
    start: str


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of queue and filter at one moment. `ends`: the first and the last entry; every push and pop changes one
    of them, or the number."""

    kind: str
    waiting: int
    ends: tuple[bytes, ...]
    known: int


class FilterKeys(msgspec.Struct, kw_only=True):
    """The keys of a filter, eight bytes each; the number of members that are no fingerprints, and the last of these."""

    keys: array[int]
    others: int = 0
    example: bytes = b""

    def take(self, member: bytes) -> None:
        """Note one member."""
        try:
            fingerprint = bytes.fromhex(member.decode())
        except ValueError:
            fingerprint = b""
        if len(fingerprint) >= KEY_BYTES:
            self.keys.append(key_of(fingerprint))
        else:
            self.others, self.example = self.others + 1, member


class QueueSource:
    """Reads from one Redis server."""

    def __init__(self, url: str, keys: SourceKeys) -> None:
        self._connections = RedisConnections(url)
        self.shown = self._connections.shown
        self.keys = keys

    async def state(self) -> SourceState:
        """The present state. Refuses keys that are neither a queue nor a filter."""
        kind, filter_kind = await self._kind(self.keys.queue), await self._kind(self.keys.filter)
        if kind not in ("list", "zset", "none"):
            raise UsageError(f"{self.keys.queue} is a {kind}, no queue of scrapy-redis: --queue-key names another")
        if filter_kind not in ("set", "none"):
            raise UsageError(
                f"{self.keys.filter} is a {filter_kind}, no filter of scrapy-redis: --dupefilter-key names another"
            )
        ends = [*await self._read(0, 0, kind), *await self._read(-1, -1, kind)]
        waiting = await self._length(kind, self.keys.queue)
        known = await self._length(filter_kind, self.keys.filter)
        return SourceState(kind=kind, waiting=waiting, ends=tuple(ends), known=known)

    async def start_urls(self) -> int:
        """The number of waiting start URLs."""
        return await self._length(await self._kind(self.keys.start), self.keys.start)

    async def entries(self, state: SourceState) -> AsyncIterator[list[bytes]]:
        """All entries in the order of scrapy-redis; of a list, the oldest first."""
        for start in range(0, state.waiting, READ_AT_ONCE):
            if state.kind == "zset":
                yield await self._read(start, start + READ_AT_ONCE - 1, state.kind)
            else:
                # From the right, where the oldest are: new entries do not shift these positions.
                yield (await self._read(-start - READ_AT_ONCE, -start - 1, state.kind))[::-1]

    async def filter_keys(self, show: Callable[[int], None]) -> FilterKeys:
        """The whole filter. A member may be returned twice."""
        found = FilterKeys(keys=array("q"))
        cursor = b"0"
        while True:
            cursor, members = await self._call("SSCAN", self.keys.filter, cursor, "COUNT", SCANNED_AT_ONCE)
            for member in members:
                found.take(member)
            show(len(found.keys))
            if cursor == b"0":
                return found

    async def known_among(self, fingerprints: Sequence[bytes]) -> int:
        """How many of these fingerprints are in the filter."""
        async with self._connections.borrow() as connection:
            for fingerprint in fingerprints:
                await connection.send("SISMEMBER", self.keys.filter, fingerprint.hex())
            return sum(await connection.answers())

    async def remove(self, state: SourceState) -> bool:
        """Delete queue and filter if they are unchanged; returns whether they were."""
        keys = (self.keys.queue, self.keys.filter)
        return bool(await self._call("EVAL", _REMOVE, 2, *keys, state.waiting, state.known))

    async def close(self) -> None:
        await self._connections.close()

    async def _read(self, first: int, last: int, kind: str) -> list[bytes]:
        if kind == "none":
            return []
        return list(await self._call("ZRANGE" if kind == "zset" else "LRANGE", self.keys.queue, first, last))

    async def _kind(self, key: str) -> str:
        kind = await self._call("TYPE", key)
        return kind.decode() if isinstance(kind, bytes) else str(kind)

    async def _length(self, kind: str, key: str) -> int:
        command = {"list": "LLEN", "zset": "ZCARD", "set": "SCARD"}.get(kind)
        return 0 if command is None else int(await self._call(command, key))

    async def _call(self, *command: str | bytes | int) -> Any:
        async with self._connections.borrow() as connection:
            return await connection.call(*command)


PICKLED = b"\x80"  # every pickle that scrapy-redis writes begins with it
SHOWN_BYTES = 60

Fields = dict[str, Any]


class UnreadableEntry(Exception):  # noqa: N818 -- reads as what is wrong
    """An entry that is no request; says what is wrong with it."""


def is_pickled(entry: bytes) -> bool:
    """Whether reading this entry may run code."""
    return entry.startswith(PICKLED)


def fields_of(entry: bytes) -> Fields:
    """The fields of a request. Unpickling runs code that the entry names: only for trusted queues. Raises
    UnreadableEntry."""
    try:
        fields = pickle.loads(entry) if is_pickled(entry) else msgspec.json.decode(entry)  # noqa: S301 -- asked for
    except Exception as error:  # what a pickle names may raise anything
        shown = f"{type(error).__name__}: {error}" if is_pickled(entry) else "neither JSON nor a pickle"
        raise UnreadableEntry(f"{shown} ({entry[:SHOWN_BYTES]!r})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str | bytes):
        raise UnreadableEntry(f"no URL in it ({entry[:SHOWN_BYTES]!r})")
    return fields


class QueuedRequests:
    """Makes tasks of the entries of a queue. An entry with dont_filter gets a key from its content and its number among
    equal entries: read again, it is the same task."""

    def __init__(self, form: str) -> None:
        self._requests = StoredRequests(None, FORMS[form])
        self._unfiltered: Counter[bytes] = Counter()

    def task_of(self, fields: Fields, entry: bytes) -> Task:
        """The entry as a task. Raises UnreadableEntry, or UnfitRequest if no other process could run it."""
        request = request_of(fields)
        key = self._key(request, entry)
        more = self._requests.page_name(request, key, is_start=False)
        try:
            return self._requests.task_with(_packed_fields(fields, request), request, key, more=more)
        except (TypeError, ValueError) as error:
            raise UnfitRequest(f"{request}: {error}") from None

    def letter_of(self, fields: Fields, entry: bytes) -> Task:
        """The dead letter of an unfit entry. Call `task_of` for the entry first."""
        request = request_of(fields)
        return self._requests.letter_of(request, self._key(request, entry, is_counted=True))

    def _key(self, request: Request, entry: bytes, *, is_counted: bool = False) -> int:
        if not request.dont_filter:
            return self._requests.key_of(request, is_start=False)
        digest = blake2b(entry, digest_size=16).digest()
        self._unfiltered[digest] += not is_counted
        return self._requests.key_of(request, is_start=False, entry=f"{digest.hex()} {self._unfiltered[digest]}")


def request_of(fields: Fields) -> Request:
    """A request for keys and lanes, without its class and callbacks. Raises UnreadableEntry."""
    encoding = _encoding(fields)
    try:
        return Request(
            _text(fields["url"], encoding),
            method=_text(fields.get("method") or "GET", encoding),
            headers=_headers(fields, encoding),
            body=_bytes(fields.get("body") or b"", encoding),
            meta=fields.get("meta") if isinstance(fields.get("meta"), dict) else None,
            priority=fields.get("priority") or 0,
            dont_filter=bool(fields.get("dont_filter")),
            encoding=encoding,
        )
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UnreadableEntry(f"{error} ({fields['url']!r})") from None


def _packed_fields(fields: Fields, request: Request) -> Fields:
    """The fields as any version of Scrapy writes them for a request with its spider."""
    kept = {name: value for name, value in fields.items() if name != "_encoding"}
    kept["encoding"] = request.encoding
    kept["dont_filter"] = request.dont_filter
    kept["headers"] = {name: [bytes(value) for value in values] for name, values in request.headers.items()}
    for role in ("callback", "errback"):
        name = fields.get(role) or None
        if not (name is None or isinstance(name, str)):
            raise UnfitRequest(f"{request}: its {role} is no name of a method but {name!r}")
        kept[role] = name
    if kept.get("_class") in (None, "scrapy.http.request.Request", "scrapy.Request"):
        kept.pop("_class", None)
    elif not isinstance(kept["_class"], str):
        raise UnfitRequest(f"{request}: its class is no name but {kept['_class']!r}")
    return kept


def _headers(fields: Fields, encoding: str) -> dict[bytes, list[bytes]]:
    given = fields.get("headers") or {}
    pairs = given.items() if isinstance(given, Mapping) else given
    return {
        _bytes(name, encoding): [
            _bytes(value, encoding) for value in (values if isinstance(values, list | tuple) else [values])
        ]
        for name, values in pairs
    }


def _encoding(fields: Fields) -> str:
    given = fields.get("encoding") or fields.get("_encoding")
    return given if isinstance(given, str) else "utf-8"


def _bytes(value: Any, encoding: str) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(encoding)


def _text(value: Any, encoding: str) -> str:
    return value.decode(encoding) if isinstance(value, bytes) else str(value)


SAMPLE = 200  # waiting requests that are searched in the filter, to find the form of its fingerprints
KNOWN_AT_ONCE = 4_000
EXAMPLES = 5

Show = Callable[[Callable[[], str]], None]


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`form`: the form of the filter's fingerprints; empty: find it out. `skips_unreadable`: import the filter even if
    entries are unreadable. `again`: into a new crawl, even if a crawl that imported this queue is finished."""

    crawl: ScrapyCrawl
    form: str = ""
    trusts_pickle: bool = False
    skips_unreadable: bool = False
    again: bool = False
    removes: bool = False


class ImportReport(msgspec.Struct, kw_only=True):
    """`requests` are now tasks of the crawl, `new` of them were not before; `keys` and `new_keys` are the same for the
    filter. `is_sure`: requests of the queue were found in the filter by this form of fingerprints. `problems`: what was
    not imported, and what to do."""

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
        """Keep the first few examples of bad entries."""
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


async def import_queue(options: ImportOptions, *, source: QueueSource, frontier: Frontier, show: Show) -> ImportReport:
    """Import the requests, then the filter, which contains their keys too. The filter is imported only if every request
    was: a request that is left out would count as done."""
    state = await source.state()
    report = ImportReport(waiting=state.waiting, known=state.known, start_urls=await source.start_urls())
    _check_exists(source, state, report)
    sample = await _read_sample(source, state, options, show=show)
    form, report.is_sure = await _fingerprint_form(source, state, options, sample)
    crawl, report.fingerprints, report.is_begun = await crawl_to_fill(
        options.crawl, form, frontier=frontier, again=options.again, otherwise=NEWEST if state.known else PROJECT
    )
    report.crawl = crawl.id
    await _QueueImport(source, frontier, report, show).run(state)
    _note_filter_problems(report, options, source)
    if not report.problems:
        await _import_filter(state, report, source=source, frontier=frontier, show=show)
    if report.unreadable and options.skips_unreadable:
        report.problems.append(f"{several(report.unreadable, 'entry')} that cannot be read were left out, as you asked")
    if report.dead_letters:
        report.problems.append(
            f"{several(report.dead_letters, 'request')} cannot be done by another process and became dead letters of"
            f" {report.crawl}: `shoal dead list {report.crawl}` shows them"
        )
    if options.removes and not report.problems:
        await _remove(state, report, source)
    return report


async def _remove(state: SourceState, report: ImportReport, source: QueueSource) -> None:
    report.removed = await source.remove(state)
    if not report.removed:
        report.problems.append(
            f"{source.keys.queue} and {source.keys.filter} were not removed: they have changed since they were read"
        )


def _check_exists(source: QueueSource, state: SourceState, report: ImportReport) -> None:
    if state.waiting or state.known:
        return
    keys = source.keys
    start = f"; {several(report.start_urls, 'start URL')} in {keys.start} need no import" if report.start_urls else ""
    raise UsageError(
        f"neither {keys.queue} nor {keys.filter} is in Redis at {source.shown}{start}: check the spider's name"
        " and the database, or name them with --from, --queue-key and --dupefilter-key"
    )


async def _read_sample(source: QueueSource, state: SourceState, options: ImportOptions, *, show: Show) -> list[Request]:
    """Some requests that must be in the filter. Refuses untrusted pickled entries before anything is written."""
    sample: list[Request] = []
    seen = pickled = 0
    async for entries in source.entries(state):
        seen += len(entries)
        show(partial(_line, "reading", seen, state.waiting, "request"))
        for entry in entries:
            if is_pickled(entry) and not options.trusts_pickle:
                pickled += 1
            elif len(sample) < SAMPLE and (request := _filtered_request(entry)) is not None:
                sample.append(request)
        if len(sample) >= SAMPLE and options.trusts_pickle:
            break
    if pickled:
        raise ShoalError(
            f"{pickled:,} of {several(seen, 'request')} in {source.keys.queue} are pickled, and nothing was taken over:"
            " unpickling runs any code that somebody with write access to this Redis has put there. Add"
            " --trust-pickle if only your own processes can, or let scrapy-redis finish its queue"
        )
    return sample


def _filtered_request(entry: bytes) -> Request | None:
    try:
        request = request_of(fields_of(entry))
    except UnreadableEntry:
        return None
    return None if request.dont_filter else request


async def _fingerprint_form(
    source: QueueSource, state: SourceState, options: ImportOptions, sample: Sequence[Request]
) -> tuple[str, bool]:
    """The form of the filter's fingerprints, empty if unknown; and whether the filter confirms it."""
    found = {name: await source.known_among([make(one) for one in sample]) for name, make in FORMS.items()}
    best = max(found, key=lambda name: found[name])
    if options.form:
        if found[best] and not found[options.form]:
            raise UsageError(
                f"{source.keys.filter} has {found[best]} of {several(len(sample), 'waiting request')} by the"
                f" fingerprints of {best}, and none by those of {options.form}: leave out --fingerprints"
            )
        return options.form, found[options.form] > 0
    if found[best]:
        return best, True
    if sample and state.known:
        raise UsageError(
            f"none of {several(len(sample), 'waiting request')} is in {source.keys.filter}, by whatever fingerprints:"
            " if the project's DUPEFILTER_CLASS uses a REQUEST_FINGERPRINTER_CLASS of its own, give --fingerprints"
            f" {PROJECT}; else --fingerprints {NEWEST} or another"
        )
    return "", False


class _QueueImport:
    """Puts the requests of a queue into a crawl."""

    def __init__(self, source: QueueSource, frontier: Frontier, report: ImportReport, show: Show) -> None:
        self._source, self._frontier, self._report, self._show = source, frontier, report, show
        self._requests = QueuedRequests(report.fingerprints)

    async def run(self, state: SourceState) -> None:
        report, read = self._report, 0
        async for entries in self._source.entries(state):
            tasks: list[Task] = []
            letters: list[tuple[Task, str]] = []
            for entry in entries:
                self._read(entry, tasks, letters)
            put = await self._frontier.put(report.crawl, tasks)
            if letters:
                await self._frontier.bury(report.crawl, letters)
            read += len(entries)
            report.requests += len(tasks) - len(put.refused)
            report.new += put.new
            report.refused += len(put.refused)
            report.dead_letters += len(letters)
            self._show(partial(_line, report.crawl, read, report.waiting, "request"))

    def _read(self, entry: bytes, tasks: list[Task], letters: list[tuple[Task, str]]) -> None:
        try:
            fields = fields_of(entry)
            try:
                tasks.append(self._requests.task_of(fields, entry))
            except UnfitRequest as error:
                letters.append((self._requests.letter_of(fields, entry), f"unfit: {error}"))
                self._report.note(str(error))
        except UnreadableEntry as error:
            self._report.unreadable += 1
            self._report.note(str(error))


async def _check_unchanged(state: SourceState, report: ImportReport, source: QueueSource) -> None:
    """Detect scrapy-redis processes that still work on the queue."""
    now = await source.state()
    if (now.kind, now.waiting, now.ends) != (state.kind, state.waiting, state.ends) and not report.problems:
        report.problems.append(
            f"{source.keys.queue} has changed meanwhile ({state.waiting:,} requests, now {now.waiting:,}): stop all"
            " scrapy-redis processes of this spider, then run this again"
        )


def _note_filter_problems(report: ImportReport, options: ImportOptions, source: QueueSource) -> None:
    """Say what prevents the import of the filter."""
    if report.refused:
        report.problems.append(
            f"{several(report.refused, 'request')} did not fit the limits of {report.crawl}, and the filter was not"
            " taken over: raise SHOAL_MAX_PAGES or SHOAL_MAX_PER_HOST, run the spider once, then this again"
        )
    if report.unreadable and not options.skips_unreadable:
        report.problems.append(
            f"{several(report.unreadable, 'entry')} of {source.keys.queue} cannot be read, and the filter was"
            " not taken over: run this where the project's modules are, or add --skip-unreadable to go on without them"
        )


async def _import_filter(
    state: SourceState, report: ImportReport, *, source: QueueSource, frontier: Frontier, show: Show
) -> None:
    # Read the whole filter before any key is known: a request that was pushed after the queue was read would never be
    # fetched, because its key is in the filter. `_check_unchanged` detects it first.
    found = await source.filter_keys(
        lambda number: show(partial(_line, "reading the filter", number, state.known, "key"))
    )
    await _check_unchanged(state, report, source)
    if report.problems:
        return
    keys = found.keys
    for start in range(0, len(keys), KNOWN_AT_ONCE):
        report.new_keys += await frontier.know(report.crawl, keys[start : start + KNOWN_AT_ONCE])
        report.keys = min(start + KNOWN_AT_ONCE, len(keys))
        show(partial(_line, report.crawl, report.keys, len(keys), "key"))
    if found.others:
        report.problems.append(
            f"{several(found.others, 'member')} of {source.keys.filter} are no fingerprints, such as"
            f" {found.example[:50]!r}, and were left out: --dupefilter-key names another filter"
        )
    await _check_unchanged(state, report, source)


def _line(what: str, number: int, total: int, noun: str) -> str:
    return f"{what}: {number:,} of {several(total, noun)}"
