"""Parts of a worker that do as a test tells them: a store in memory, a scripted fetcher, calls that are watched."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.exits.passage import Passages
from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.fetch.exits import ExitConfig
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Lease, Pool, Task
from shoal.settings.table import Settings
from shoal.spider.page import Page
from shoal.spider.session import Session
from shoal.store.base import (
    ATTEMPTS_KEPT,
    Difference,
    FetchRow,
    ItemFilter,
    ItemPage,
    ItemRow,
    ItemRule,
    PageLook,
    QueryAnswer,
    Store,
    StoredItem,
    wrong_position,
)
from shoal.store.rules import (
    Content,
    Folded,
    History,
    check_moments,
    content_at,
    difference,
    fold,
    looked_at,
    marked_gone,
    mended,
    storable,
    storable_looks,
)
from shoal.testing.model.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules, key_of, lane_of

HTML = "text/html; charset=utf-8"
Answer = Response | Fault


class MemoryStore:
    """A `Store` in dicts. It takes no SQL statements."""

    wants_hashes = False

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], ItemRow] = {}
        self.log: dict[tuple[str, int], FetchRow] = {}
        self.lines: dict[tuple[str, int], dict[int, FetchRow]] = {}
        self.kept: dict[tuple[str, str, int], StoredItem] = {}
        self._folded: dict[tuple[str, str], Folded] = {}

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        looks: Sequence[PageLook] = (),
    ) -> dict[int, str]:
        good, refused = storable(items)
        for row, _ in good:
            self._write_item(row, rule)
        for look in storable_looks(looks):
            for (spider, key), before in self._folded.items():
                if spider == look.spider:
                    self._folded[spider, key] = looked_at(before, look, key=key)
        for line in map(mended, fetches):
            earlier = self.log.get((line.crawl, line.key))
            if earlier is None or earlier.token <= line.token:
                self.lines.setdefault((line.crawl, line.key), {})[line.token] = line
                keeps = earlier is not None and earlier.archived and not line.archived
                kept = {"content_hash": earlier.content_hash, "archived": earlier.archived} if earlier and keeps else {}
                self.log[line.crawl, line.key] = msgspec.structs.replace(line, **kept)
        return refused

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        marked = {
            name: marked_gone(item, at=at, missing_before=missing_before, unseen_since=unseen_since)
            for name, item in self._folded.items()
            if name[0] == spider
        }
        gone = sum(item is not self._folded[name] for name, item in marked.items())
        self._folded |= marked
        return gone

    def _write_item(self, row: ItemRow, rule: ItemRule) -> None:
        name = (row.spider, row.key)
        if rule.keep_versions and name in self._folded:
            self._keep(name)
        self._folded[name] = latest = fold(self._folded.get(name), row, rule=rule)
        self.rows[name] = msgspec.structs.replace(
            row, crawl=latest.crawl, url=latest.url, data=latest.data, token=latest.token, at=latest.last_seen
        )
        if rule.keep_versions:
            self._keep(name)

    def _keep(self, name: tuple[str, str]) -> None:
        self.kept.setdefault((*name, self._folded[name].version), _stored(name, self._folded[name]))

    async def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        for name, item in list(self._folded.items()):
            if _matches(which, name[0], item):
                yield _stored(name, item)

    async def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        for (spider, key, _), version in list(self.kept.items()):
            item = self._folded[spider, key]
            if _matches(which, spider, item):
                yield msgspec.structs.replace(version, gone_at=item.gone_at)

    async def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        check_moments(since, until)
        for name, item in list(self._folded.items()):
            history = self._history(name, item, since, until)
            found = difference(history, since=since, until=until) if name[0] == spider else None
            if found is not None:
                yield found

    def _history(self, name: tuple[str, str], item: Folded, since: float, until: float) -> History:
        current = Content(version=item.version, at=item.changed_at, data=item.data)
        versions = {number: one for (*owner, number), one in self.kept.items() if tuple(owner) == name}

        def kept(moment: float) -> Content | None:
            number = max((number for number, one in versions.items() if one.changed_at <= moment), default=0)
            if not number or (number + 1 != item.version and number + 1 not in versions):
                return None
            return Content(version=number, at=versions[number].changed_at, data=versions[number].data)

        return History(
            key=name[1],
            url=item.url,
            first_seen=item.first_seen,
            changed_at=item.changed_at,
            gone_at=item.gone_at,
            left_at=item.left_at,
            back_at=item.back_at,
            moves=item.moves,
            was=content_at(since, current, kept),
            then=content_at(until, current, kept),
        )

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        return len([item async for item in self.items(which)])

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        return dict(Counter([item.crawl async for item in self.items(ItemFilter(spider=spider))]))

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        if after and (not after.isdigit() or len(after) > 19):
            raise wrong_position(after)
        found = [
            item
            async for item in self.items(which)
            if any(search.lower() in text.lower() for text in (item.key, item.url, item.data.decode()))
        ]
        found, skipped = found[::-1], int(after or 0)
        then = str(skipped + limit) if len(found) > skipped + limit else ""
        return ItemPage(items=found[skipped : skipped + limit], after=then)

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        names = [(spider, key) for key in dict.fromkeys(keys)]
        return [_stored(name, self._folded[name]) for name in names if name in self._folded]

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        return [self.log[crawl, key] for key in dict.fromkeys(keys) if (crawl, key) in self.log]

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        found = [line for line in self.log.values() if line.crawl in crawls and line.url == url]
        return sorted(found, key=lambda line: (line.at, line.token), reverse=True)[:limit]

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        lines = self.lines.get((crawl, key), {})
        return [lines[token] for token in sorted(lines, reverse=True)][:ATTEMPTS_KEPT]

    async def tidy(self, *, retention: float) -> int:
        before, gone = time.time() - retention, 0
        for name, lines in list(self.lines.items()):
            kept = {token: line for token, line in lines.items() if line.at >= before}
            gone += len(lines) - len(kept)
            self.lines[name] = kept
            if self.log[name].at < before:
                del self.log[name], self.lines[name]
        return gone

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        before, kept = time.time() - retention, dict(self.kept)
        for (owner, key, number), one in kept.items():
            newer = [other.changed_at for (*name, other_number), other in kept.items()
                     if name == [owner, key] and other_number > number]  # fmt: skip
            item = self._folded[owner, key]
            newer += [item.changed_at] if item.version > number else []
            if spider in (None, owner) and one.changed_at < before and any(at < before for at in newer):
                del self.kept[owner, key, number]
        return len(kept) - len(self.kept)

    async def query(self, sql: str, *, limit: int) -> QueryAnswer:
        raise UsageError("a store in memory takes no statements")

    async def has_log(self, crawl: str) -> bool:
        return any(name[0] == crawl for name in self.log)

    async def delete_crawl(self, crawl: str) -> None:
        self.log = {name: row for name, row in self.log.items() if name[0] != crawl}
        self.lines = {name: lines for name, lines in self.lines.items() if name[0] != crawl}

    async def delete_items(self, spider: str, crawl: str) -> int:
        gone = [name for name, item in self._folded.items() if name[0] == spider and item.crawl == crawl]
        for name in gone:
            del self._folded[name]
            self.rows.pop(name, None)
        self.kept = {name: one for name, one in self.kept.items() if name[:2] not in gone}
        return len(gone)

    async def close(self) -> None:
        pass

    def outcomes(self) -> dict[str, str]:
        """The outcome of each URL in the log."""
        return {row.url: row.outcome for row in self.log.values()}


def _stored(name: tuple[str, str], item: Folded) -> StoredItem:
    return StoredItem(
        spider=name[0],
        key=name[1],
        crawl=item.crawl,
        url=item.url,
        data=item.data,
        first_seen=item.first_seen,
        last_seen=item.last_seen,
        changed_at=item.changed_at,
        version=item.version,
        gone_at=item.gone_at,
    )


def _matches(which: ItemFilter, spider: str, item: Folded) -> bool:
    return (
        which.spider in (None, spider)
        and which.crawl in (None, item.crawl)
        and item.last_seen >= (which.since or 0.0)
        and item.changed_at >= (which.changed_since or 0.0)
        and item.url.startswith(which.url_prefix or "")
        and which.gone in (None, item.gone_at is not None)
    )


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
