"""Parts of a worker that do as a test tells them: a store in memory, a scripted fetcher, calls that are watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.model import Lease, Task
from shoal.page import Page
from shoal.settings import Settings
from shoal.store.base import FetchRow, ItemRow, StoredItem
from shoal.urls import UrlRules, key_of, lane_of

HTML = "text/html; charset=utf-8"
Answer = Response | Fault


class MemoryStore:
    """Keeps the contract of `Store` in dicts."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], ItemRow] = {}
        self.log: dict[tuple[str, int], FetchRow] = {}

    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow]) -> None:
        for item in items:
            before = self.rows.get((item.spider, item.key))
            if before is None or before.token <= item.token:
                self.rows[item.spider, item.key] = item
        for fetch in fetches:
            earlier = self.log.get((fetch.crawl, fetch.key))
            if earlier is None or earlier.token <= fetch.token:
                self.log[fetch.crawl, fetch.key] = fetch

    async def items(self, spider: str | None = None, *, crawl: str | None = None) -> AsyncIterator[StoredItem]:
        for row in list(self.rows.values()):
            if spider in (None, row.spider) and crawl in (None, row.crawl):
                yield StoredItem(
                    spider=row.spider,
                    key=row.key,
                    crawl=row.crawl,
                    url=row.url,
                    data=row.data,
                    first_seen=row.at,
                    last_seen=row.at,
                )

    async def count_items(self, spider: str | None = None, *, crawl: str | None = None) -> int:
        return len([item async for item in self.items(spider, crawl=crawl)])

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        return [self.log[crawl, key] for key in keys if (crawl, key) in self.log]

    async def delete_crawl(self, crawl: str) -> None:
        self.log = {place: row for place, row in self.log.items() if place[0] != crawl}

    async def close(self) -> None:
        pass

    def outcomes(self) -> dict[str, str]:
        """The outcome of each URL in the log."""
        return {row.url: row.outcome for row in self.log.values()}


class ScriptedFetcher:
    """Answers from a script: by URL an answer, or several that are given one after the other, the last for ever.

    A URL that is not in it gets `otherwise`. While `gate` is closed nothing is answered."""

    def __init__(
        self, script: Mapping[str, Answer | Sequence[Answer]] | None = None, *, otherwise: Answer | None = None
    ) -> None:
        self._script = {
            url: [given] if isinstance(given, Answer) else list(given) for url, given in (script or {}).items()
        }
        self._otherwise = otherwise
        self.requests: list[Fetch] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self, request: Fetch) -> Answer:
        self.requests.append(request)
        await asyncio.sleep(0)
        await self.gate.wait()
        answers = self._script.get(request.url)
        if answers:
            return answers.pop(0) if len(answers) > 1 else answers[0]
        return self._otherwise or respond(request.url, "no such page", status=404)

    async def close(self) -> None:
        pass


class Watched:
    """Passes every call on to `inner` and notes it in `calls`; before that `meddle` may raise, wait or count."""

    def __init__(self, inner: Any, calls: list[tuple[str, Any]], *, meddle: Callable[..., Any] | None = None) -> None:
        self._inner = inner
        self._calls = calls
        self.meddle = meddle

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def watched(*args: Any, **options: Any) -> Any:
            self._calls.append((name, args[0] if args else None))
            if self.meddle is not None:
                waiting = self.meddle(name, *args)
                if waiting is not None:
                    await waiting
            return await method(*args, **options)

        return watched


def respond(
    url: str, body: str | bytes = b"", *, status: int = 200, kind: str = HTML, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of a site."""
    payload = body.encode() if isinstance(body, str) else body
    stated = {"content-type": kind} if kind else {}
    return Response(
        url=url,
        status=status,
        headers={**stated, **(headers or {})},
        body=payload,
        wire_size=len(payload),
        elapsed=0.01,
    )


def fault(kind: FaultKind, message: str = "as the script says") -> Fault:
    """No answer of a site."""
    return Fault(kind=kind, message=message, elapsed=0.01)


def make_page(
    body: str | bytes = b"",
    *,
    url: str = "https://a.test/dir/page",
    kind: str = HTML,
    settings: Settings | None = None,
    **task: Any,
) -> Page:
    """A page of a.test as a handler would get it; `task` are fields of its task."""
    return Page(
        respond(url, body, kind=kind),
        task=task_for(url, **task),
        resolver=UrlRules(settings or Settings(), start_hosts=["a.test"]),
    )


def task_for(url: str, **fields: Any) -> Task:
    """The task of a canonical URL."""
    return Task(**{"url": url, "key": key_of(url), "lane": lane_of(url), **fields})


def lease_for(url: str, *, task: Mapping[str, Any] | None = None, **fields: Any) -> Lease:
    """A lease of a canonical URL's task."""
    return Lease(**{"crawl": "c", "task": task_for(url, **(task or {})), "token": 7, "rules_version": 1, **fields})
