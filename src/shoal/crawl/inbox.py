"""The inbox: URLs that other programs push into a crawl; taken in batches, put, and only then removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn, Protocol

import msgspec

from shoal.crawl.feeder import Stayer, staying
from shoal.crawl.record import is_unfinished, with_refusals
from shoal.crawl.sources import LONGEST_LINE
from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_PRIORITY
from shoal.frontier.rules.keys import keys_dropped
from shoal.journey.intake import Found, Intake
from shoal.model import Crawl, CrawlState, Render, Task
from shoal.settings.values import parse_duration, parse_revisit
from shoal.spider.spider import Request
from shoal.text.secrets import masked_text
from shoal.urls.canonical import fingerprint
from shoal.urls.scope import REASONS
from shoal.worker.outages import until_reachable

BATCH = 500
MOST_BATCHES = 20
LOOK_SECONDS = 0.5
HELD_SECONDS = 60.0  # longer than an inbox keeps the entries of a dead taker for it
LONGEST_SHOWN = 2048
LONGEST_REASON = 500
LONGEST_DELAY = 3650 * 86_400
LANE = "@inbox"  # of entries that name no host
# Reasons that make an entry a dead letter, for its sender to see; URLs rejected for other reasons are only counted.
UNUSABLE = frozenset({"invalid_url", "scheme", "credentials", "url_too_long"})

Small = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Depth = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Inbox(Protocol):
    """Lists that any program may push to, each with the name of a crawl or a spider. If a taker dies, the next one gets
    its entries."""

    def place(self, name: str) -> str:
        """Where programs push, for messages: a list, or a folder."""

    async def names(self) -> list[str]:
        """All names that have entries, also unknown ones. Slow: scans a whole server."""

    async def waiting(self, names: Sequence[str]) -> list[str]:
        """Which of these names have entries."""

    async def count(self, names: Sequence[str]) -> dict[str, int]:
        """How many entries each of these names has, taken ones included; without names that have none."""

    async def take(self, name: str, limit: int) -> list[bytes]:
        """Up to `limit` entries, oldest first; none while another process holds some.

        Returns the same entries again until they are forgotten."""

    async def forget(self, name: str) -> None:
        """Remove the taken entries: they are in the frontier now."""

    async def give_back(self, name: str) -> None:
        """Let other processes take the entries that this one took and has not forgotten."""

    async def delete(self, name: str) -> None:
        """Remove the entries, taken or not."""

    async def close(self) -> None:
        """Close connections."""


class NoInbox:
    """The inbox of a frontier without one: always empty."""

    def place(self, name: str) -> str:
        return ""

    async def names(self) -> list[str]:
        return []

    async def waiting(self, names: Sequence[str]) -> list[str]:
        return []

    async def count(self, names: Sequence[str]) -> dict[str, int]:
        return {}

    async def take(self, name: str, limit: int) -> list[bytes]:
        return []

    async def forget(self, name: str) -> None:
        """Nothing was taken."""

    async def give_back(self, name: str) -> None:
        """Nothing was taken."""

    async def delete(self, name: str) -> None:
        """There is nothing."""

    async def close(self) -> None:
        """Nothing is open."""


class PushedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a JSON entry, named as in a spider's `Request`."""

    url: str
    handler: str = "parse"
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: str | None = None
    meta: dict[str, Any] | None = None
    priority: Small = 0
    depth: Depth | None = None
    key: str | None = None
    dedup: bool = True
    pool: str | None = None
    kind: str | None = None
    region: str | None = None
    render: bool | Render | None = None
    delay: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_DELAY)] | str = 0.0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    json: Any = None
    revisit: str | None = None


_DECODER = msgspec.json.Decoder(PushedRequest)


class Listener:
    """Turns the entries of an inbox into tasks, by the rules of `intake_of(crawl)`."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        frontier: Frontier,
        intake_of: Callable[[Crawl], Intake],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._inbox = inbox
        self._frontier = frontier
        self._intake_of = intake_of
        self._say = say
        self._clock = clock
        self._lock = asyncio.Lock()
        self._said: set[str] = set()
        self._closed: set[str] = set()

    async def listen(self, crawl: Crawl) -> NoReturn:
        """Put entries as they arrive, until cancelled."""
        while True:
            if not await self.take_in([crawl]):
                await asyncio.sleep(LOOK_SECONDS)

    async def listen_to_all(self) -> None:
        """Put the entries of all crawls as they arrive, until cancelled, and keep crawls with `--stay` open. If entries
        cannot be put, says so and leaves them; other crawls do not wait."""
        stayer = Stayer(self._frontier, say=self._say)
        try:
            # Without an inbox there is nothing to do.
            while not isinstance(self._inbox, NoInbox):
                crawls = [crawl for crawl in await self._crawls() if crawl.settings and not crawl.refusal]
                await stayer.hold(staying(crawls))
                if not await self._take_in_each(crawls):
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            await stayer.leave()

    async def _take_in_each(self, crawls: Sequence[Crawl]) -> int:
        taken, pairs = 0, inboxes_of(crawls)
        waiting = set(await until_reachable(partial(self._inbox.waiting, [name for name, _ in pairs]), say=self._say))
        for name, crawl in pairs:
            if name not in waiting or self._is_closed(crawl):
                continue
            try:
                async with self._lock:
                    taken += await self._take_in(name, crawl)
            except ShoalError as error:
                if (line := f"URLs pushed into {name} are not taken in: {error}") not in self._said:
                    self._said.add(line)
                    self._say(line)
        return taken

    async def _crawls(self) -> list[Crawl]:
        return with_refusals(await until_reachable(self._frontier.crawls, say=self._say))

    async def take_in(self, crawls: Sequence[Crawl]) -> int:
        """Put a bounded number of the entries for these crawls and their spiders. Returns how many."""
        pairs = inboxes_of(crawls)
        # One call at a time: `forget` removes what was taken last, also if another task of this process took it.
        async with self._lock:
            names = [name for name, _ in pairs]
            waiting = set(await until_reachable(partial(self._inbox.waiting, names), say=self._say))
            taken = [(name, crawl) for name, crawl in pairs if name in waiting and not self._is_closed(crawl)]
            return sum([await self._take_in(name, crawl) for name, crawl in await self._of_no_other(taken)])

    async def _of_no_other(self, pairs: list[tuple[str, Crawl]]) -> list[tuple[str, Crawl]]:
        """These inboxes without those of a spider's name that belong to a crawl of another file with a spider of the
        same name."""
        if all(name == crawl.id for name, crawl in pairs):
            return pairs
        takers = dict(inboxes_of([crawl for crawl in await self._crawls() if not crawl.refusal]))
        return [(name, crawl) for name, crawl in pairs if takers.get(name, crawl).id == crawl.id]

    async def spiders_waiting(self, spiders: Sequence[str]) -> list[str]:
        """Which of these spiders have entries under their own name."""
        return await until_reachable(partial(self._inbox.waiting, spiders), say=self._say)

    async def begin_for(self, spider: str, begin: Callable[[], Awaitable[Crawl]]) -> Crawl | None:
        """Begin a crawl for the entries of a spider without one, and put the first entries. None: another process has
        taken them. If the crawl cannot begin, gives them back."""
        async with self._lock:
            entries = await until_reachable(partial(self._inbox.take, spider, BATCH), say=self._say)
            if not entries:
                return None
            try:
                crawl = await begin()
            except ShoalError:
                await until_reachable(partial(self._inbox.give_back, spider), say=self._say)
                raise
            await self._put(crawl.id, entries, self._intake_of(crawl))
            await until_reachable(partial(self._inbox.forget, spider), say=self._say)
            return crawl

    async def take_in_all(self, crawl: Crawl, *, stop: asyncio.Event) -> None:
        """Put all entries of a crawl that is about to end. Waits for entries that another process holds, as long as it
        may hold them."""
        began = time.monotonic()
        while not stop.is_set() and await self.waiting(crawl):
            if await self.take_in([crawl]):
                began = time.monotonic()
                continue
            progress = await until_reachable(partial(self._frontier.progress, crawl.id), say=self._say)
            if progress.state is not CrawlState.FINISHED or time.monotonic() - began > HELD_SECONDS:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def waiting(self, crawl: Crawl) -> int:
        """How many entries the crawl's inboxes have, taken ones included."""
        names = [name for name, _ in inboxes_of([crawl])]
        counts = await until_reachable(partial(self._inbox.count, names), say=self._say)
        return sum(counts[name] for name, _ in await self._of_no_other([(name, crawl) for name in counts]))

    def _is_closed(self, crawl: Crawl) -> bool:
        """Whether a crawl takes no more URLs. Pushed URLs stay in its inbox, where `shoal status` shows them."""
        if crawl.keys != "known" and crawl.id not in self._closed:
            self._closed.add(crawl.id)
            self._say(f"URLs pushed into {crawl.id} are not taken in: {keys_dropped(crawl.id)}")
        return crawl.keys != "known"

    async def _take_in(self, name: str, crawl: Crawl) -> int:
        intake, total = self._intake_of(crawl), 0
        for _ in range(MOST_BATCHES):
            if not await self._has_room(crawl.id, intake.settings.max_pending):
                break
            entries = await until_reachable(partial(self._inbox.take, name, BATCH), say=self._say)
            if not entries:
                break
            await self._put(crawl.id, entries, intake)
            await until_reachable(partial(self._inbox.forget, name), say=self._say)
            total += len(entries)
        return total

    async def _has_room(self, crawl: str, max_pending: int) -> bool:
        progress = await until_reachable(partial(self._frontier.progress, crawl), say=self._say)
        is_wanted = progress.state not in (CrawlState.CANCELLED, CrawlState.STOPPED)
        return is_wanted and progress.queued + progress.delayed < max_pending

    async def _put(self, crawl: str, entries: Sequence[bytes], intake: Intake) -> None:
        found, letters = Found(), list[tuple[Task, str]]()
        for entry in entries:
            try:
                _take(request_of(entry), intake, found)
            except (ValueError, UsageError) as error:
                letters.append(letter_of(entry, str(error), at=self._clock()))
        if letters:
            await until_reachable(partial(self._frontier.bury, crawl, letters), say=self._say)
        tasks = list(found.tasks.values())
        if tasks or found.rejected:
            put = partial(self._frontier.put, crawl, tasks, rejected=found.rejected, samples=found.samples)
            await until_reachable(put, say=self._say)


def inboxes_of(crawls: Sequence[Crawl]) -> list[tuple[str, Crawl]]:
    """The inboxes of these crawls (newest first) by name: each crawl has its own, and the newest unfinished crawl of a
    spider also has the spider's. A name that means both is the crawl's."""
    found = {crawl.id: crawl for crawl in crawls}
    for crawl in crawls:
        if is_unfinished(crawl.state):
            found.setdefault(crawl.spider, crawl)
    return list(found.items())


def request_of(entry: bytes) -> Request:
    """The request in an entry: a URL, or a JSON object. Raises ValueError with the reason."""
    if len(entry) >= LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
    text = entry.decode("utf-8-sig", "strict").strip()
    if not text.startswith("{"):
        return Request(text, handler="parse")
    given = _DECODER.decode(text)
    if not given.handler.isidentifier() or given.handler.startswith("_"):
        raise ValueError(f"{given.handler!r} is not the name of a handler")
    if given.body is not None and given.json is not None:
        raise ValueError("it has body and json: give one of them")
    delay = given.delay if isinstance(given.delay, float) else parse_delay(given.delay)
    if given.revisit is not None:
        parse_revisit(given.revisit)
    return Request(**{**msgspec.structs.asdict(given), "delay": delay})


def parse_delay(text: str) -> float:
    """Seconds: a number, or a duration such as "10m". Raises ValueError for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        if not text:
            raise ValueError("a delay is a time such as 90s or 10m, and this text is empty") from None
        seconds = parse_duration(text)
    if not 0 <= seconds <= LONGEST_DELAY:
        raise ValueError(f"a delay is between 0 and {LONGEST_DELAY // 86400} days, not {text}")
    return seconds


def _take(request: Request, intake: Intake, found: Found) -> None:
    link = intake.rules.resolve(request.url, request.url)
    if link.rejected in UNUSABLE:
        raise ValueError(f"{link.rejected}: {REASONS[link.rejected]}")
    # Its own URL as the base: a pushed URL is always in scope.
    intake.request(request, found, parent=None, base=request.url, scoped=False)


def letter_of(entry: bytes, reason: str, *, at: float) -> tuple[Task, str]:
    """An invalid entry as a dead letter: a task without attempts, and the reason, both with secrets masked."""
    text = entry.decode("utf-8", "backslashreplace")
    task = Task(
        url=masked_text(text)[:LONGEST_SHOWN],
        key=fingerprint(f"inbox:{text}"),
        lane=LANE,
        max_attempts=0,
        created=at,
    )
    return task, f"inbox: {masked_text(' '.join(reason.split()))[:LONGEST_REASON]}"
