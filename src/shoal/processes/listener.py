"""URLs pushed into a crawl from anywhere, in any language: taken in batches, put, and only then forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NoReturn, Protocol

import msgspec

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.journey.handlers import INBOX
from shoal.journey.intake import Found, Intake
from shoal.model import Crawl, CrawlState, LaneUpdate, Task
from shoal.processes.patience import patiently
from shoal.scope import REASONS
from shoal.secrecy import masked_text
from shoal.spider import Request
from shoal.urls import fingerprint

BATCH = 500
MOST_BATCHES = 20
LOOK_SECONDS = 0.5
LONGEST_SHOWN = 2048
A_YEAR = 365 * 86_400.0
# No URL at all, or none that may be fetched: whoever pushed it must hear of it. Other rules only count.
UNUSABLE = frozenset({"invalid_url", "scheme", "credentials", "url_too_long"})

Small = Annotated[int, msgspec.Meta(ge=-(2**22), le=2**22)]
Depth = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Inbox(Protocol):
    """Lists, one per crawl, that anyone may push to. What was taken comes back when its taker dies."""

    async def waiting(self, crawls: Sequence[str]) -> list[str]:
        """Those of the crawls that have something to take."""

    async def take(self, crawl: str, limit: int) -> list[bytes]:
        """Up to `limit` entries, oldest first; none while somebody else has taken some.

        Gives the same entries again until they are forgotten."""

    async def forget(self, crawl: str) -> None:
        """What was taken is in the frontier now."""

    async def delete(self, crawl: str) -> None:
        """Remove the crawl's entries, taken or not."""

    async def close(self) -> None:
        """Let go of connections."""


class NoInbox:
    """Beside a frontier that others cannot push to: nothing ever waits."""

    async def waiting(self, crawls: Sequence[str]) -> list[str]:
        return []

    async def take(self, crawl: str, limit: int) -> list[bytes]:
        return []

    async def forget(self, crawl: str) -> None:
        """Nothing was taken."""

    async def delete(self, crawl: str) -> None:
        """There is nothing."""

    async def close(self) -> None:
        """Nothing is open."""


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a JSON entry may say; the same words as in a spider's `Request`."""

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


_DECODER = msgspec.json.Decoder(Entry)


class Listener:
    """Turns the entries of an inbox into tasks. `intake_of` gives the rules of a crawl."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        frontier: Frontier,
        intake_of: Callable[[Crawl], Intake],
        say: Callable[[str], None],
    ) -> None:
        self._inbox = inbox
        self._frontier = frontier
        self._intake_of = intake_of
        self._say = say

    async def listen(self, crawl: Crawl) -> NoReturn:
        """Take in what comes, until cancelled."""
        while True:
            if not await self.take_in([crawl]):
                await asyncio.sleep(LOOK_SECONDS)

    async def take_in(self, crawls: Sequence[Crawl]) -> int:
        """Put what waits for these crawls, a bounded part of it; gives how many entries that were."""
        names = [crawl.id for crawl in crawls]
        waiting = set(await patiently(partial(self._inbox.waiting, names), say=self._say))
        return sum([await self._take_in(crawl) for crawl in crawls if crawl.id in waiting])

    async def _take_in(self, crawl: Crawl) -> int:
        intake, total = self._intake_of(crawl), 0
        for _ in range(MOST_BATCHES):
            if not await self._has_room(crawl.id, intake.settings.max_pending):
                break
            entries = await patiently(partial(self._inbox.take, crawl.id, BATCH), say=self._say)
            if not entries:
                break
            await self._put(crawl.id, entries, intake)
            await patiently(partial(self._inbox.forget, crawl.id), say=self._say)
            total += len(entries)
        return total

    async def _has_room(self, crawl: str, max_pending: int) -> bool:
        progress = await patiently(partial(self._frontier.progress, crawl), say=self._say)
        is_wanted = progress.state is not CrawlState.CANCELLED
        return is_wanted and progress.queued + progress.delayed < max_pending

    async def _put(self, crawl: str, entries: Sequence[bytes], intake: Intake) -> None:
        found, bad = Found(), list[Task]()
        for entry in entries:
            try:
                _take(request_of(entry), intake, found)
            except (ValueError, UsageError) as error:
                bad.append(_letter(entry, str(error)))
        if bad:
            # They are fetched from nowhere: neither pace nor rules hold them back.
            free = LaneUpdate(interval=0.0, base_interval=0.0, rules=b"", rules_seconds=A_YEAR)
            await patiently(partial(self._frontier.update_lane, crawl, INBOX, free), say=self._say)
        tasks = [*found.tasks.values(), *bad]
        put = partial(self._frontier.put, crawl, tasks, rejected=found.rejected, samples=found.samples)
        await patiently(put, say=self._say)


def request_of(entry: bytes) -> Request:
    """What an entry asks for: a URL, or a JSON object. Raises ValueError with the reason."""
    text = entry.decode("utf-8", "strict").strip()
    if not text.startswith("{"):
        return Request(text, handler="parse")
    given = _DECODER.decode(text)
    if not given.handler.isidentifier() or given.handler.startswith("_"):
        raise ValueError(f"{given.handler!r} is not the name of a handler")
    return Request(**msgspec.structs.asdict(given))


def _take(request: Request, intake: Intake, found: Found) -> None:
    link = intake.rules.resolve(request.url, request.url)
    if link.rejected in UNUSABLE:
        raise ValueError(f"{link.rejected}: {REASONS[link.rejected]}")
    # Its own URL as the base: what is asked for by name is in scope.
    intake.request(request, found, parent=None, base=request.url, scoped=False)


def _letter(entry: bytes, reason: str) -> Task:
    """A task that ends as a dead letter as soon as it is leased, with the reason."""
    text = entry.decode("utf-8", "backslashreplace")
    return Task(
        url=masked_text(text)[:LONGEST_SHOWN],
        key=fingerprint(f"inbox:{text}"),
        lane=INBOX,
        handler=INBOX,
        meta={"reason": masked_text(" ".join(reason.split()))[:500]},
        created=time.time(),
    )
