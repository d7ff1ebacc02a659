"""Turns requests into tasks with canonical form, key, lane and depth; or names the reason why not."""

from __future__ import annotations

import functools
import math
import operator
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from shoal.errors import UsageError
from shoal.exits.pools import pool_of_region, regional_kind
from shoal.journey.plain_requests import Asked, PlainRequests
from shoal.journey.recent_keys import RecentKeys
from shoal.model import BROWSER, DIRECT, DUPLICATE, REGION, VIA, Render, Task, Visit, random_key
from shoal.settings.table import Settings
from shoal.settings.values import check_kind, parse_revisit
from shoal.spider.follow import Follow, Iteration
from shoal.spider.page import Page
from shoal.spider.spider import Request, handler_name
from shoal.urls.canonical import Link, UrlRules, named_key, origin_of

SAMPLES_PER_PAGE = 3
LOOKED_AT_PER_LINK_TAKEN = 5
_KEY = operator.attrgetter("key")
_ENCODER = msgspec.msgpack.Encoder()
_FIELD = re.compile(r"`\$\[(\d{1,2})\]`")
_DECODER = msgspec.msgpack.Decoder(Task)
# Rules for links of pages; a URL that a person asks for may override them.
OVERRIDABLE = frozenset({"out_of_scope", "facets"})
# Options of `page.follow` that many links can share; with any other option each link becomes a request of its own.
BULK_OPTIONS = frozenset({"priority", "meta", "delay", "max_attempts", "headers", "pool", "region", "kind"})


class Found:
    """The tasks that one page led to, and the URLs that were kept out, counted by reason with a few samples.

    `links` tells the links of two visits of a page apart, those to known URLs too."""

    __slots__ = ("links", "rejected", "samples", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.rejected: dict[str, int] = {}
        self.samples: list[tuple[str, str]] = []
        self.links = 0

    def reject(self, reason: str, url: str) -> None:
        """Count a URL that is kept out."""
        seen = self.rejected.get(reason, 0)
        self.rejected[reason] = seen + 1
        if seen < SAMPLES_PER_PAGE and reason != DUPLICATE:
            self.samples.append((reason, url[:2048]))

    def reject_all(self, reason: str) -> None:
        """Keep out all tasks found so far."""
        for task in self.tasks.values():
            self.reject(reason, task.url)
        self.tasks = {}


class Intake:
    """Turns requests and links into tasks for one crawl."""

    def __init__(
        self,
        rules: UrlRules,
        settings: Settings,
        *,
        known: RecentKeys | None = None,
        pools: Collection[str] = (),
        pool: str = "",
        regions: Mapping[str, tuple[str, ...]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules
        self._pool = pool
        # The suffix that a pool adds to the lanes of its tasks.
        self._via = {DIRECT: "", **{name: f"{VIA}{name}" for name in pools}}
        self._regions = regions or {}
        self.known = known if known is not None else RecentKeys(limit=1)
        self.settings = settings
        self._render = Render() if settings.render else None
        self.clock = clock

    def follow(self, follow: Follow, into: Found, *, default_handler: str = "parse") -> None:
        """Take in every link of a `page.follow`."""
        if not BULK_OPTIONS.issuperset(follow.options):
            for request in follow:
                self.request(request, into, parent=follow.page.task, base=follow.page.url)
            return
        parent = follow.page.task
        fields = self._shared_fields(follow, default_handler)
        if self._too_deep(parent.depth + 1):
            for link in self.rules.resolve_all(self._looked_at(follow, into), follow.page.base):
                into.reject("depth", link.url)
            return
        if follow.options:
            check_task(Task(url=follow.page.url, key=0, lane="", **fields))
        hrefs, base = follow.page.rooted(self._looked_at(follow, into))
        self._links(_Links(hrefs, base, *self.rules.sort_out(hrefs, base)), follow, into, fields=fields)

    def follow_iterated(self, iteration: Iteration, into: Found, *, default_handler: str = "parse") -> bool:
        """Take in every link of a `page.follow` that a handler yields from: what each request would become.

        False: nothing was taken in, because request by request something else would come of it, such as an error."""
        follow, hrefs = iteration.follow, iteration.hrefs
        page = follow.page
        if not BULK_OPTIONS.issuperset(follow.options) or not self._has_room(len(hrefs), page, into):
            return False
        try:
            fields = self._shared_fields(follow, default_handler)
            if follow.options:
                check_task(Task(url=page.url, key=0, lane="", **fields))
        except UsageError:
            return False
        hrefs, base = page.rooted(hrefs)
        if base is not page.base:
            return False
        links = _Links(hrefs, base, *self.rules.sort_out(hrefs, base))
        if links.others and any(not link.lane or link.rejected == "credentials" for link in links.others):
            # No request is made of a URL that is none, and one without the user name and password.
            return False
        self._links(links, follow, into, fields=fields)
        return True

    def request_of_page(self, request: Request, page: Page, into: Found) -> None:
        """Take in one request that a page's handler yields."""
        if len(into.tasks) >= self.settings.max_links:
            into.reject("too_many_links", request.url)
        else:
            hrefs, base = page.rooted([request.url])
            for href in hrefs:  # none, if the URL leads to no other page
                asked = request if href == request.url else msgspec.structs.replace(request, url=href)
                self.request(asked, into, parent=page.task, base=base)

    def requests_of_page(self, requests: PlainRequests, page: Page, into: Found) -> None:
        """Take in plain requests that a page's handler yields one after the other, as if one by one."""
        urls, tasks = requests.urls, into.tasks
        hrefs, base = page.rooted(urls)
        if hrefs is not urls or base is not page.base or not self._has_room(len(urls), page, into):
            for url, asked in zip(urls, requests.asked, strict=True):
                self.request_of_page(_request(url, asked), page, into)
            return
        keys = self.rules.plain_keys(urls, base)
        into.links ^= functools.reduce(operator.xor, filter(None, keys), 0)
        fresh = self.known.unknown(keys).difference(tasks)
        duplicates = len(urls)
        for url, asked, key in zip(urls, requests.asked, keys, strict=True) if fresh else ():
            if key not in fresh or key in tasks:
                continue
            duplicates -= 1
            if key is None:  # not plain: taken in by itself
                self.request(_request(url, asked), into, parent=page.task, base=base)
            else:
                self._take_plain(self.rules.resolve(url, base), asked, page.task, into)
        self._count_duplicates(duplicates, into)

    def via(self, pool: str | None, *, parent: Task | None, region: str | None = None) -> tuple[str, str]:
        """The pool of a request, and the suffix that it adds to the name of the lane.

        A request that names no pool uses the crawl's, else the pool of the page it was found on: a site that is
        visited through proxies must not see our own address just because a request names no pool. A region stands for
        its pool."""
        if region is not None:
            if pool is not None:
                raise UsageError(f"a request names the pool {pool!r} and the region {region!r}: leave out one of them")
            pool = pool_of_region(region, self._regions, what="the region")
        elif pool is None:
            pool = self._pool or (parent.pool if parent and self._knows(parent.pool) else DIRECT)
        if isinstance(pool, str) and pool.startswith(REGION):
            pool = pool_of_region(pool.removeprefix(REGION), self._regions, what="the region")
            self._via.setdefault(pool, f"{VIA}{pool}")
        via = self._via.get(pool) if isinstance(pool, str) else None
        if via is None:
            known = ", ".join(sorted(self._via))
            where = "pools are written in shoal.toml or --proxies FILE, and accounts need a spider with a login"
            raise UsageError(f"there is no pool {pool!r}, only {known}: {where}")
        return pool, via

    def _knows(self, pool: str) -> bool:
        """Whether there is such a pool. A region is there for those who ask: workers offer its exits."""
        return pool in self._via or pool.startswith(REGION)

    def request(
        self,
        request: Request,
        into: Found,
        *,
        parent: Task | None,
        base: str,
        scoped: bool = True,
        hastens: bool = False,
    ) -> None:
        """Take in one request. With `scoped=False`, rules about links of pages do not hold for it. `hastens`: a known
        page that waits for its next visit is visited now."""
        task = self.task_of(request, into, parent=parent, base=base, scoped=scoped)
        if task is not None:
            if hastens:
                task = msgspec.structs.replace(task, hastens=True)
            # A key that was drawn for this request alone says nothing of the page.
            into.links ^= task.key if request.dedup else self.rules.key_of(task.url)
            self.add(task, into)

    def task_of(
        self, request: Request, into: Found, *, parent: Task | None, base: str, scoped: bool = True
    ) -> Task | None:
        """The task that a request becomes, known or not; None if it is kept out, which is counted."""
        depth = request.depth if request.depth is not None else (parent.depth + 1 if parent else 0)
        link = self.rules.resolve(request.url, base)
        if link.rejected and (scoped or link.rejected not in OVERRIDABLE):
            into.reject(link.rejected, link.url or request.url)
        elif self._too_deep(depth):
            into.reject("depth", link.url)
        else:
            return self._task_of(request, link, depth=depth, parent=parent)
        return None

    def _has_room(self, number: int, page: Page, into: Found) -> bool:
        """Whether neither `max_links` nor `max_depth` can keep out any of so many links of the page."""
        return len(into.tasks) + number <= self.settings.max_links and not self._too_deep(page.task.depth + 1)

    def _links(self, links: _Links, follow: Follow, into: Found, *, fields: dict[str, Any]) -> None:
        hrefs, base, plain, others = links
        elsewhere = self._fields_elsewhere(follow, fields)
        if others and not _are_only_rejected(others, plain):
            self._mixed_links(self.rules.resolve_all(hrefs, base), into, fields=fields, elsewhere=elsewhere)
            return
        for link in others:
            into.reject(link.rejected or "", link.url)
        into.links ^= functools.reduce(operator.xor, plain, 0)
        # Most links of most pages are known: only the unknown ones are looked at.
        fresh = self.known.unknown(plain).difference(into.tasks)
        wanted = {plain[key] for key in fresh}
        new = [self.rules.resolve(href, base) for href in dict.fromkeys(hrefs) if href in wanted] if wanted else []
        self._take(new, into, fields=fields, elsewhere=elsewhere)
        self._count_duplicates(len(plain) - len(new), into)

    def _mixed_links(
        self, links: list[Link], into: Found, *, fields: dict[str, Any], elsewhere: tuple[str, dict[str, Any]] | None
    ) -> None:
        """Take in links of which some share a key although their URLs differ: the first of each key counts."""
        fresh = self.known.unknown(map(_KEY, links)).difference(into.tasks)
        accepted = [link for link in links if link.rejected is None]
        if len(accepted) < len(links):
            for link in links:
                if link.rejected is not None:
                    into.reject(link.rejected, link.url)
        into.links ^= functools.reduce(operator.xor, {link.key for link in accepted}, 0)
        new = [link for link in accepted if link.key in fresh] if fresh else []
        for link in accepted:
            if link.merged and link.key not in fresh:
                into.reject("merged", link.url)
        self._take(new, into, fields=fields, elsewhere=elsewhere)
        self._count_duplicates(len(accepted) - len(new), into)

    def _count_duplicates(self, number: int, into: Found) -> None:
        if number:
            into.rejected[DUPLICATE] = into.rejected.get(DUPLICATE, 0) + number

    def _looked_at(self, follow: Follow, into: Found) -> list[str]:
        """The links of a page. If it has far more than `max_links`, the rest are not even looked at."""
        hrefs = follow.hrefs()
        most = self.settings.max_links * LOOKED_AT_PER_LINK_TAKEN
        rest = len(hrefs) - most
        if rest > 0:
            for href in hrefs[most : most + SAMPLES_PER_PAGE]:
                into.reject("too_many_links", self.rules.resolve(href, follow.page.base).url)
            into.rejected["too_many_links"] += max(0, rest - SAMPLES_PER_PAGE)
            del hrefs[most:]
        return hrefs

    def _take(
        self, links: list[Link], into: Found, *, fields: dict[str, Any], elsewhere: tuple[str, dict[str, Any]] | None
    ) -> None:
        tasks, limit, shared = into.tasks, self.settings.max_links, fields
        via = self._via[fields["pool"]]
        for link in links:
            if len(tasks) >= limit:
                into.reject("too_many_links", link.url)
            else:
                if elsewhere is not None:
                    fields = shared if link.url.startswith(elsewhere[0]) else elsewhere[1]
                tasks[link.key] = Task(
                    url=link.url, key=link.key, lane=link.lane + via, shape=link.shape, merged=link.merged, **fields
                )

    def _take_plain(self, link: Link, asked: Asked, parent: Task, into: Found) -> None:
        pool, via = self.via(None, parent=parent)
        handler, priority, meta = asked
        into.tasks[link.key] = Task(
            url=link.url,
            key=link.key,
            lane=link.lane + via,
            handler=handler,
            depth=parent.depth + 1,
            priority=priority,
            meta=meta,
            max_attempts=self.settings.max_attempts,
            pool=pool,
            parent=parent.key,
            created=self.clock(),
            shape=link.shape,
            kind=regional_kind(self._kind_of(None, self._render), pool),
            render=self._render,
        )

    def _shared_fields(self, follow: Follow, default_handler: str) -> dict[str, Any]:
        parent, kind = follow.page.task, follow.options.get("kind")
        render = self._render if kind in (None, BROWSER) else None
        pool, _ = self.via(follow.options.get("pool"), parent=parent, region=follow.options.get("region"))
        return {
            "max_attempts": self.settings.max_attempts,
            **{name: value for name, value in follow.options.items() if name != "region"},
            "pool": pool,
            "kind": regional_kind(self._kind_of(kind, render), pool),
            "render": render,
            "handler": follow.handler or default_handler,
            "depth": parent.depth + 1,
            "parent": parent.key,
            "created": self.clock(),
        }

    def _fields_elsewhere(self, follow: Follow, fields: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The page's origin, and the fields for links to other origins; None if all links get the same fields."""
        options = follow.options_elsewhere
        if options is follow.options:
            return None
        return origin_of(follow.page.url) + "/", {**fields, "headers": options["headers"]}

    def add(self, task: Task, into: Found) -> None:
        """Take in a task, unless it is known. One that hastens a visit is for the frontier to judge."""
        if task.key in into.tasks or (task.key in self.known and not task.hastens):
            into.reject(DUPLICATE, task.url)
            if task.merged:
                into.reject("merged", task.url)
        else:
            into.tasks[task.key] = task

    def _too_deep(self, depth: int) -> bool:
        return 0 < self.settings.max_depth < depth

    def _task_of(self, request: Request, link: Link, *, depth: int, parent: Task | None) -> Task:
        body, headers = _body_of(request)
        pool, via = self.via(request.pool, parent=parent, region=request.region)
        render = self._render_of(request)
        task = Task(
            url=link.url,
            key=self._key_of(request, link, body),
            lane=link.lane + via,
            handler=handler_name(request.handler) or "parse",
            depth=depth,
            priority=request.priority,
            delay=request.delay,
            method=request.method.upper(),
            headers=headers,
            body=body,
            meta=request.meta,
            max_attempts=request.max_attempts or self.settings.max_attempts,
            pool=pool,
            parent=parent.key if parent else None,
            created=self.clock(),
            shape=link.shape,
            merged=link.merged and request.dedup and request.key is None,
            kind=regional_kind(self._kind_of(request.kind, render), pool),
            render=render,
            visit=self._visit_of(request),
        )
        if headers or body or request.meta or type(request.priority) is not int or not _is_usual(task):
            check_task(task)
        return task

    def _render_of(self, request: Request) -> Render | None:
        asked = request.render
        if asked is None:
            # A request that names a kind of its own has asked for other workers than the spider's.
            return self._render if request.kind in (None, BROWSER) else None
        if isinstance(asked, bool):
            return Render() if asked else None
        if isinstance(asked, Render):
            return asked
        raise UsageError(f"a request for {request.url[:200]} has render={asked!r}: it is True, False or a Render(…)")

    def _kind_of(self, kind: str | None, render: Render | None = None) -> str:
        """The kind of a request: its own, else the spider's; `browser`, if its page is rendered. A page's kind is not
        that of its links."""
        if render is not None:
            if kind not in (None, BROWSER):
                raise UsageError(f"a request with render is of the kind {BROWSER}, not {kind!r}: leave its kind out")
            return BROWSER
        if kind is None:
            return self.settings.kind
        check_kind(kind, what="a request of the kind")
        return kind

    def _visit_of(self, request: Request) -> Visit | None:
        """What a request says of later visits. One that ignores whether its URL is known is made anew at each visit of
        its page: visited again, too, it would be there twice, then three times, and so on."""
        if request.revisit is not None:
            return Visit(asked=parse_revisit(request.revisit))
        return None if request.dedup or not self.settings.revisit else Visit(asked=0.0)

    def _key_of(self, request: Request, link: Link, body: bytes | None) -> int:
        if not request.dedup:
            return random_key()
        if request.key is not None:
            return named_key(request.key)
        if request.method.upper() == "GET" and not body:
            return link.key
        return self.rules.key_of(link.url, method=request.method.upper(), body=body)


class _Links(NamedTuple):
    """The links of one page, sorted out."""

    hrefs: list[str]
    base: str
    plain: dict[int, str]
    others: list[Link]


def _request(url: str, asked: Asked) -> Request:
    handler, priority, meta = asked
    return Request(url, handler, priority=priority, meta=meta)


def check_task(task: Task) -> None:
    """Refuse a task that a frontier could not keep or not give back, here, where the spider's traceback shows why."""
    try:
        _DECODER.decode(_ENCODER.encode(task))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"a request for {task.url[:200]} cannot be kept: {_with_names(str(error))}") from None
    for name, is_sound in (
        ("delay", math.isfinite(task.delay)),
        ("depth", task.depth >= 0),
        ("max_attempts", task.max_attempts > 0),
    ):
        if not is_sound:
            raise UsageError(f"a request for {task.url[:200]} cannot be kept: its {name} is {getattr(task, name)}")


def _with_names(problem: str) -> str:
    """What is wrong with a task, by the names of its fields: on the wire they have numbers."""
    return _FIELD.sub(lambda found: f"`{Task.__struct_fields__[int(found[1])]}`", problem)


def _are_only_rejected(links: list[Link], plain: dict[int, str]) -> bool:
    """Whether each of these links is kept out, and no two of them or of the plain links share a key."""
    keys = {link.key for link in links if link.rejected is not None}
    return len(keys) == len(links) and keys.isdisjoint(plain)


def _is_usual(task: Task) -> bool:
    depth, attempts = task.depth, task.max_attempts
    return type(depth) is int and depth >= 0 and type(attempts) is int and attempts > 0 and task.delay == 0


def _body_of(request: Request) -> tuple[bytes | None, dict[str, str] | None]:
    if request.json is not None:
        headers = {"content-type": "application/json", **(request.headers or {})}
        return msgspec.json.encode(request.json), headers
    body = request.body.encode() if isinstance(request.body, str) else request.body
    return body, request.headers
