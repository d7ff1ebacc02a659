"""What became of one URL, from the frontier, the fetch log and the rules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.fetch.robots import Robots
from shoal.frontier.base import Frontier
from shoal.model import DIRECT, VIA, Crawl, Progress, TaskState, TaskStatus
from shoal.processes.crawl_record import record_of, url_rules_of
from shoal.settings import Settings
from shoal.store.base import FetchRow, Store
from shoal.urls import REASONS, Link, canonical, named_key, spelling_names

# Rules that depend on where and when a link was found: only their counters show that they kept out something.
CIRCUMSTANCES = ("max_pages", "max_per_host", "max_per_shape", "facets", "equal_pages", "depth", "too_many_links")
MERGED_SHOWN = 10


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a URL in one crawl. `kept_out` names the rule that kept it out, `maybe` rules that may have."""

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

    @property
    def state(self) -> TaskState:
        return self.task.state


async def fate_of(url: str, crawls: Sequence[Crawl], *, frontier: Frontier, store: Store) -> Fate:
    """What became of the URL in the newest crawl that knows it; else why the newest crawl does not know it."""
    url = canonical(url)
    for crawl in crawls:
        link = msgspec.structs.replace(
            url_rules_of(crawl).resolve(url), key=await known_key(url, crawl, frontier=frontier)
        )
        status = await frontier.look_up(crawl.id, link.key)
        if status.state is not TaskState.UNKNOWN or await _is_expired(link, crawl, store=store):
            return await _known(url, link, crawl, status, frontier=frontier, store=store)
    return await _unknown(url, crawls[0], frontier=frontier)


async def known_key(url: str, crawl: Crawl, *, frontier: Frontier) -> int:
    """The key by which a crawl knows a canonical URL: that of the page, or of this spelling if a redirect led to it."""
    key = url_rules_of(crawl).resolve(url).key
    for spelled in map(named_key, reversed(spelling_names(key, url))):
        if (await frontier.look_up(crawl.id, spelled)).state is not TaskState.UNKNOWN:
            return spelled
    return key


async def _is_expired(link: Link, crawl: Crawl, *, store: Store) -> bool:
    """Whether the crawl had this URL and its key has expired: then only the fetch log still has it."""
    return bool(crawl.dedup_ttl and await store.fetches(crawl.id, [link.key]))


async def _known(url: str, link: Link, crawl: Crawl, status: TaskStatus, *, frontier: Frontier, store: Store) -> Fate:
    rows = await store.fetches(crawl.id, [link.key])
    fetch = rows[0] if rows else None
    parent = status.task.parent if status.task else fetch.parent if fetch else None
    parents = await store.fetches(crawl.id, [parent]) if parent is not None else []
    taken = status.task.url if status.task else fetch.url if fetch else url
    return Fate(
        url=url,
        crawl=crawl.id,
        key=link.key,
        lane=status.task.lane if status.task else _lane(link, crawl, exit_name=fetch.exit if fetch else ""),
        task=status,
        fetch=fetch,
        found_on=parents[0].url if parents else None,
        merged_with=taken if taken != url else None,
        merged=await _merged(crawl, link.key, taken, frontier=frontier),
    )


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
    )


async def _sampled(url: str, crawl: Crawl, progress: Progress, *, frontier: Frontier) -> str | None:
    """The rule for which exactly this URL was kept as a sample."""
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
    """Other spellings of this URL that were found, as far as they were kept as samples."""
    rules = url_rules_of(crawl)
    samples = await frontier.samples(crawl.id, "merged")
    return [url for url in dict.fromkeys(samples) if url != taken and rules.resolve(url).key == key][:MERGED_SHOWN]


def _lane(link: Link, crawl: Crawl, *, exit_name: str = "") -> str:
    """The lane of the pool whose exit was used; else of the pool that requests take when they name none."""
    pool = exit_name.partition("/")[0] or record_of(crawl).pool or DIRECT
    return link.lane if pool == DIRECT else f"{link.lane}{VIA}{pool}"


def _settings(crawl: Crawl) -> Settings:
    return record_of(crawl).settings
