"""Parts of a worker that do as a test tells them: a scripted fetcher, calls that are watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shoal.exits.passage import Passages
from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.fetch.exits import ExitConfig
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Lease, Pool, Task
from shoal.settings.table import Settings
from shoal.spider.page import Page
from shoal.spider.session import Session
from shoal.store.base import Store
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules, key_of, lane_of

HTML = "text/html; charset=utf-8"
Answer = Response | Fault


class ScriptedFetcher:
    """Answers from a script: for each URL one answer, or several in order, of which the last is repeated.

    A URL that is not in the script gets `otherwise`. While `gate` is shut, no request is answered."""

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
    """A request that got no answer."""
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


def passages_for(
    fetcher: Fetcher, *, settings: Settings, pools: Sequence[Pool] = (), frontier: Frontier | None = None
) -> Passages:
    """Opens the passages of a worker: direct ones, and through the exits of these pools, which are proxies."""

    async def log_in(_: Session) -> None:
        raise AssertionError("a worker without accounts has nothing to log in")

    return Passages(
        exits={name: ExitConfig(name=name, kind="proxy") for pool in pools for name in pool.exits},
        pools=pools,
        frontier=frontier or MemoryFrontier(clock=time.time),
        fetcher=fetcher,
        log_in=log_in,
        rules=UrlRules(settings),
        settings=settings,
        say=print,
    )


def store_for_all(store: Store) -> Callable[[Crawl], Awaitable[Store]]:
    """Gives the same store for every crawl."""

    async def store_of(crawl: Crawl) -> Store:
        return store

    return store_of
