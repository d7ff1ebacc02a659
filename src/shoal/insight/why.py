"""What became of one URL, from the frontier, the fetch log and the rules: as a sentence and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from shoal.crawl.opening import StoreOf
from shoal.crawl.record import record_of, url_rules_of
from shoal.fetch.robots import Robots
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import BAD_RECORD, WORKER_LOST, bad_record_key, is_suspect
from shoal.journey.results import request_of
from shoal.model import DIRECT, HTTP, STAGE, VIA, Crawl, Progress, TaskState, TaskStatus, stage_lane
from shoal.policy.failures import set_aside
from shoal.settings.table import Settings
from shoal.store.base import ITEMS_NAMED, FetchRow, StoredItem, some_item_keys
from shoal.text.errors import duration, several
from shoal.text.secrets import MASK, masked_headers
from shoal.urls.canonical import Link, canonical, named_key, spelling_names
from shoal.urls.scope import RAISED_BY, REASONS

# Rules that depend on where and when a link was found: only their counters show that they rejected links.
CIRCUMSTANCES = ("max_pages", "max_per_host", "max_per_shape", "facets", "equal_pages", "depth", "too_many_links")
MERGED_SHOWN = 10
TASKS_SHOWN = 20
DATA_SHOWN = 64 * 1024  # bytes of an item
PLAIN = "GET"
KNOWN_TTL, SKIP_KNOWN = "known_ttl", "skip_known"


class PageItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a page yielded, as stored now. `data` is None if it is larger than DATA_SHOWN."""

    key: str
    url: str
    crawl: str
    last_seen: float
    version: int
    size: int
    data: Any


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one task of a URL in one crawl.

    - `attempts`: lines of the fetch log, newest first; `fetch` is the latest
    - `items`: the first items of the latest attempt that yielded any
    - `kept_out`: the rule that rejected it; `maybe`: rules that may have rejected it
    - `request`: its method, with size and hash of its body; `is_plain`: its key comes from the URL alone
    - `set_aside`: unreadable records of the crawl, if nothing else is known of the task
    - `untold`: why no more is known: `known_ttl`, the crawl has forgotten its URLs; `skip_known`, an earlier crawl has
      done it"""

    url: str
    crawl: str
    key: int
    lane: str
    task: TaskStatus
    fetch: FetchRow | None = None
    found_on: str | None = None
    kept_out: str | None = None
    maybe: list[str] = msgspec.field(default_factory=list)
    merged_with: str | None = None
    merged: list[str] = msgspec.field(default_factory=list)
    request: str = PLAIN
    pool: str = ""
    is_plain: bool = True
    set_aside: str = ""
    untold: str = ""
    attempts: list[FetchRow] = msgspec.field(default_factory=list)
    items: list[PageItem] = msgspec.field(default_factory=list)

    @property
    def state(self) -> TaskState:
        return self.task.state


class Log(Protocol):
    """The methods of a store that are used here."""

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]: ...

    async def fetches_of(self, crawls: Sequence[str], url: str) -> list[FetchRow]: ...

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]: ...

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]: ...


class NoLog:
    """The empty log, for a crawl whose store cannot be reached."""

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """None."""
        return []

    async def fetches_of(self, crawls: Sequence[str], url: str) -> list[FetchRow]:
        """None."""
        return []

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """None."""
        return []

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """None."""
        return []


async def fate_of(url: str, crawls: Sequence[Crawl], *, frontier: Frontier, store_of: StoreOf) -> Fate:
    """The URL's first task in the newest crawl that knows it; else why the newest crawl does not know it."""
    return (await fates_of(url, crawls, frontier=frontier, store_of=store_of))[0]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Selects tasks of a URL."""

    method: str | None = None
    key: int | None = None

    def has(self, key: int, request: str) -> bool:
        """Whether a task with this key and request is selected."""
        return self.key in (None, key) and self.method in (None, request.partition(" ")[0])


ANY_TASK = Choice()


async def fates_of(
    url: str, crawls: Sequence[Crawl], *, frontier: Frontier, store_of: StoreOf, choice: Choice = ANY_TASK
) -> list[Fate]:
    """Every task of the URL in the newest crawl that has one: first the plain one, then tasks with another method, body
    or key, newest first; at most TASKS_SHOWN + 1, those of `choice` first. If no crawl has one: why the newest crawl
    does not know the URL."""
    url = canonical(url)
    for crawl in crawls:
        store: Log = await store_of(crawl) or NoLog()
        rows = await store.fetches_of([crawl.id], url)
        link = msgspec.structs.replace(
            url_rules_of(crawl).resolve(url), key=await known_key(url, crawl, frontier=frontier)
        )
        status = await frontier.look_up(crawl.id, link.key)
        fates = []
        is_logged = status.state is TaskState.UNKNOWN and await _is_forgotten(link, crawl, store=store)
        if is_logged and crawl.keys != "known":
            status = TaskStatus(state=TaskState.DONE)
        if status.state is not TaskState.UNKNOWN or is_logged:
            fates.append(await _known(url, link, crawl, status, frontier=frontier, store=store))
        spellings = [url]
        if fates and fates[0].merged_with is not None:
            spellings.append(fates[0].merged_with)
            rows += await store.fetches_of([crawl.id], spellings[1])
        tasks = UrlTasks(url=url, link=link, crawl=crawl, frontier=frontier, store=store)
        fates += await tasks.of_others(spellings, rows, choice=choice)
        if fates:
            return _without_traces(fates)[: TASKS_SHOWN + 1]
    return [await _unknown(url, crawls[0], frontier=frontier)]


def _without_traces(fates: list[Fate]) -> list[Fate]:
    """A task whose record was set aside leaves its key, which looks done, and a dead letter: keep only the letter."""
    is_told = any(fate.key == bad_record_key(fate.merged_with or fate.url) for fate in fates)
    return [fate for fate in fates if not (is_told and fate.set_aside)]


def _age(row: FetchRow | None, status: TaskStatus | None) -> float:
    """The time of the latest fact about the task."""
    created = status.task.created if status is not None and status.task is not None else 0.0
    return max(row.at if row is not None else 0.0, created)


@dataclass(frozen=True, kw_only=True)
class UrlTasks:
    """Collects what is known of the tasks of one URL."""

    url: str
    link: Link
    crawl: Crawl
    frontier: Frontier
    store: Log

    async def of_others(self, spellings: Sequence[str], rows: Sequence[FetchRow], *, choice: Choice) -> list[Fate]:
        """The tasks of the URL other than the plain one, newest first, those of `choice` before others."""
        lane, crawl = self.link.lane, self.crawl
        kinds = (await self.frontier.progress(crawl.id)).kinds
        stages = [stage_lane(lane, kind) for kind in kinds]
        lanes = [lane, *(f"{lane}{VIA}{pool.name}" for pool in crawl.pools), *stages]
        lines = {row.key: row for row in rows}
        statuses: dict[int, TaskStatus] = {}
        for url in spellings:
            found = await self.frontier.tasks_of(crawl.id, url, lanes=lanes)
            statuses |= {status.task.key: status for status in found if status.task is not None}

        def rank(key: int) -> tuple[bool, float, int]:
            row, status = lines.get(key), statuses.get(key)
            return choice.has(key, _request(status, row)), _age(row, status), key

        keys = sorted((lines.keys() | statuses.keys()) - {self.link.key}, key=rank, reverse=True)
        return [await self.of(key, lines.get(key), statuses.get(key)) for key in keys[: TASKS_SHOWN + 1]]

    async def of(self, key: int, fetch: FetchRow | None, status: TaskStatus | None) -> Fate:
        """The fate of the task with this key."""
        crawl, store = self.crawl, self.store
        if status is None:
            # A task in the log that is not waiting, leased or dead is done, unless its key may have expired.
            is_asked = bool(crawl.dedup_ttl) and crawl.keys == "known"
            status = await self.frontier.look_up(crawl.id, key) if is_asked else TaskStatus(state=TaskState.DONE)
        parent = status.task.parent if status.task else fetch.parent if fetch else None
        parents = await store.fetches(crawl.id, [parent]) if parent is not None else []
        taken = status.task.url if status.task else fetch.url if fetch else self.url
        is_plain = key == self.link.key
        is_traceless = status.state is TaskState.DONE and fetch is None
        is_skipped = is_traceless and record_of(crawl).skips_known
        attempts = await store.attempts(crawl.id, key) if fetch else []
        return Fate(
            url=self.url,
            crawl=crawl.id,
            key=key,
            lane=status.task.lane if status.task else _lane(self.link, crawl, exit_name=fetch.exit if fetch else ""),
            task=status,
            fetch=fetch,
            found_on=parents[0].url if parents else None,
            merged_with=taken if taken != self.url else None,
            request=_request(status, fetch),
            pool=status.task.pool if status.task else fetch.exit.partition("/")[0] if fetch else "",
            is_plain=is_plain,
            set_aside=set_aside(await self.frontier.progress(crawl.id)) if is_traceless else "",
            untold=SKIP_KNOWN if is_skipped else "",
            attempts=attempts,
            items=await _items(attempts, crawl, store=store),
        )


async def _items(attempts: Sequence[FetchRow], crawl: Crawl, *, store: Log) -> list[PageItem]:
    """The items of the latest attempt that yielded any."""
    keys = next((keys for line in attempts if (keys := some_item_keys(line))), [])
    if not keys:
        return []
    return [
        PageItem(
            key=item.key,
            url=item.url,
            crawl=item.crawl,
            last_seen=item.last_seen,
            version=item.version,
            size=len(item.data),
            data=msgspec.json.decode(item.data) if len(item.data) <= DATA_SHOWN else None,
        )
        for item in await store.items_named(crawl.spider, keys[:ITEMS_NAMED])
    ]


def _request(status: TaskStatus | None, fetch: FetchRow | None) -> str:
    if status is not None and status.task is not None:
        return request_of(status.task)
    return (fetch.request if fetch else "") or PLAIN


async def known_key(url: str, crawl: Crawl, *, frontier: Frontier) -> int:
    """The key of a canonical URL in the crawl: of the page, or of this spelling if a redirect led to it."""
    key = url_rules_of(crawl).resolve(url).key
    for spelled in map(named_key, reversed(spelling_names(key, url))):
        if (await frontier.look_up(crawl.id, spelled)).state is not TaskState.UNKNOWN:
            return spelled
    return key


async def _is_forgotten(link: Link, crawl: Crawl, *, store: Log) -> bool:
    """Whether only the fetch log still has the URL: its key has expired or was dropped."""
    forgets = crawl.dedup_ttl or crawl.keys != "known"
    return bool(forgets and await store.fetches(crawl.id, [link.key]))


async def _known(url: str, link: Link, crawl: Crawl, status: TaskStatus, *, frontier: Frontier, store: Log) -> Fate:
    rows = await store.fetches(crawl.id, [link.key])
    tasks = UrlTasks(url=url, link=link, crawl=crawl, frontier=frontier, store=store)
    fate = await tasks.of(link.key, rows[0] if rows else None, status)
    merged = await _merged(crawl, link.key, fate.merged_with or url, frontier=frontier)
    return msgspec.structs.replace(fate, merged=merged)


async def _unknown(url: str, crawl: Crawl, *, frontier: Frontier) -> Fate:
    link = url_rules_of(crawl).resolve(url)
    progress = await frontier.progress(crawl.id)
    kept_out = await _sampled(url, crawl, progress, frontier=frontier) or link.rejected
    if kept_out is None and not await _robots_allow(link, crawl, frontier=frontier):
        kept_out = "robots"
    maybe = [name for name in CIRCUMSTANCES if progress.rejected.get(name)]
    return Fate(
        url=url,
        crawl=crawl.id,
        key=link.key,
        lane=_lane(link, crawl),
        task=TaskStatus(state=TaskState.UNKNOWN),
        kept_out=kept_out,
        maybe=[] if kept_out else maybe,
        untold="" if kept_out or crawl.keys == "known" else KNOWN_TTL,
    )


async def _sampled(url: str, crawl: Crawl, progress: Progress, *, frontier: Frontier) -> str | None:
    """The rule that has this URL as a sample of rejected links."""
    for reason in progress.rejected:
        if reason in REASONS and reason != "merged" and url in await frontier.samples(crawl.id, reason):
            return reason
    return None


async def _robots_allow(link: Link, crawl: Crawl, *, frontier: Frontier) -> bool:
    if not crawl.needs_rules:
        return True
    version, rules = await frontier.rules(crawl.id, _lane(link, crawl))
    return version == 0 or Robots(rules, _settings(crawl).user_agent).allows(link.url)


async def _merged(crawl: Crawl, key: int, taken: str, *, frontier: Frontier) -> list[str]:
    """Other spellings of this URL among the samples of merged links."""
    rules = url_rules_of(crawl)
    samples = await frontier.samples(crawl.id, "merged")
    return [url for url in dict.fromkeys(samples) if url != taken and rules.resolve(url).key == key][:MERGED_SHOWN]


def _lane(link: Link, crawl: Crawl, *, exit_name: str = "") -> str:
    """The lane via the pool of the exit that was used, else via the crawl's default pool."""
    pool = exit_name.partition("/")[0] or record_of(crawl).pool or DIRECT
    return link.lane if pool == DIRECT else f"{link.lane}{VIA}{pool}"


def _settings(crawl: Crawl) -> Settings:
    return record_of(crawl).settings


def document(fate: Fate) -> dict[str, Any]:
    """The fate for JSON, without secrets."""
    task = fate.task.task
    if task is not None:
        # Headers and body of a request may hold secrets.
        headers = masked_headers(task.headers) if task.headers else None
        # Bytes in meta come from an integration, not from a spider, and may hold cookies.
        meta = {name: MASK if isinstance(value, bytes) else value for name, value in (task.meta or {}).items()}
        body = MASK.encode() if task.body else None
        task = msgspec.structs.replace(task, headers=headers, body=body, meta=meta or None)
        fate = msgspec.structs.replace(fate, task=msgspec.structs.replace(fate.task, task=task))
    values: dict[str, Any] = msgspec.to_builtins(fate)
    return {"state": fate.state, "sentence": sentence(fate), **values}


def sentence(fate: Fate) -> str:
    """The fate in one sentence."""
    task, outcome = fate.task, fate.fetch.outcome if fate.fetch else ""
    match fate.state:
        case TaskState.UNKNOWN if fate.fetch is not None:
            return f"was done ({outcome}) and is forgotten since (dedup_ttl): the next link to it lets it in again"
        case TaskState.UNKNOWN:
            return _why_unknown(fate)
        case TaskState.DONE:
            return _why_done(fate)
        case TaskState.DEAD if task.reason == BAD_RECORD:
            return f"dead ({BAD_RECORD}): its record in the frontier could not be read and was set aside"
        case TaskState.DEAD:
            return f"dead after {several(task.attempts, 'attempt')}: {task.reason}{_death(task)}"
        case TaskState.LEASED:
            return f"in flight, attempt {task.attempts}, with {task.worker}{_lost(task)}"
        case TaskState.DELAYED:
            last = f" after {several(task.attempts, 'attempt')}" if task.attempts else ""
            if task.task is not None and task.task.visit is not None and task.task.visit.visits and not task.reason:
                visits = several(task.task.visit.visits, "time")
                return f"visited {visits}: the next visit is due in {duration(task.due_in)}{last}"
            return f"waiting for {duration(task.due_in)}{last}{f': {task.reason}' if task.reason else ''}"
        case TaskState.CANCELLED:
            return "set aside when the crawl was cancelled"
        case _:
            return f"{_queued(task)}{_lost(task)}"


def _queued(status: TaskStatus) -> str:
    """The sentence about a waiting task."""
    task = status.task
    if task is not None and STAGE in task.lane:
        return f"fetched: its page waits for its handler {task.handler}, which runs in workers of the kind {task.kind}"
    if task is not None and task.kind != HTTP:
        return f"queued: it waits for its turn in its lane, and for a worker of the kind {task.kind}"
    return "queued: it waits for its turn in its lane"


def _death(task: TaskStatus) -> str:
    """The end of the sentence about a page that has killed its workers."""
    if not task.reason.startswith(WORKER_LOST) or task.task is None:
        return ""
    return (
        f"; at each attempt the worker process ended while it had only this page, for its handler {task.task.handler}"
    )


def _why_done(fate: Fate) -> str:
    if fate.untold == SKIP_KNOWN:
        return "not fetched: an earlier crawl of the spider has done it (--skip-known)"
    if fate.fetch is None:
        if fate.set_aside:
            return f"done, or lost with a record of the crawl: {fate.set_aside}"
        return "done: nothing more is known of it"
    match fate.fetch.outcome:
        case "redirected":
            return f"done: it redirects to {fate.fetch.final_url}"
        case "robots":
            return f"not fetched: {_reason('robots')}"
        case "not_modified":
            return "done: the site says that it has not changed since it was last fetched (304)"
        case outcome:
            return f"done: {outcome or 'nothing more is known of it'}"


def _lost(task: TaskStatus) -> str:
    """The end of the sentence about a task whose leases were lost with their workers."""
    if not task.losses:
        return ""
    cause = task.reason.removeprefix(WORKER_LOST).removeprefix(": ") if task.reason.startswith(WORKER_LOST) else ""
    before = f"; it was lost with its worker before{f' ({cause})' if cause else ''}"
    return f"{before}, so it is leased alone" if is_suspect(task.losses) else before


def _why_unknown(fate: Fate) -> str:
    if fate.kept_out is not None:
        return f"kept out ({fate.kept_out}): {_reason(fate.kept_out)}{_raised_by([fate.kept_out])}"
    if fate.untold == KNOWN_TTL:
        return (
            "not known any more: the crawl has forgotten its URLs since its end (known_ttl), and the fetch log that can"
            " be read here has no line of this one"
        )
    if fate.maybe:
        reasons = "; or ".join(f"{name}: {_reason(name)}" for name in fate.maybe)
        known = f"not known: never found, or kept out by one of the limits that were reached ({reasons})"
        return known + _raised_by(fate.maybe)
    return "never found: no rule keeps it out, but no page, source or command has named it"


def _reason(name: str) -> str:
    return REASONS.get(name, name)


def _raised_by(names: list[str]) -> str:
    """The command that raises the limits that rejected URLs."""
    settings = [f"--set {RAISED_BY[name]}=N" for name in names if name in RAISED_BY]
    if not settings:
        return ""
    return f"; to let in more, run the command that began the crawl again with --again and {' or '.join(settings)}"
