"""`--skip-known`: a new crawl takes no URL that an earlier crawl of its spider has done; and `--skip-stored`: no page
whose items are in the store, if the earlier frontier is lost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shoal.crawl.record import is_unfinished, record_of
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import outcome_of
from shoal.journey.intake import Found, Intake
from shoal.model import Crawl, DeadFilter
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.spider.spider import Request
from shoal.store.base import ItemFilter, Store
from shoal.text.errors import several
from shoal.worker.outages import until_reachable

# Settings that change the key of a URL.
OF_KEYS: Final = ("strip_parameters", "same_page")
NAMED: Final = 3


class EarlierCrawls(NamedTuple):
    """The ended crawls whose URLs are skipped, newest first; and why those of others cannot be, a clause each."""

    known_from: tuple[str, ...]
    missing: tuple[str, ...]


def earlier_crawls(crawls: Sequence[Crawl], settings: Settings) -> EarlierCrawls:
    """Whose URLs a new crawl of the spider's file skips. `crawls`: newest first; without those whose keys a newer one
    has copied. Refuses if there are crawls and none has usable keys: everything would be fetched again."""
    held, known_from, missing = list[Crawl](), list[str](), list[str]()
    for crawl in crawls:
        if not crawl.settings or is_unfinished(crawl.state):
            continue
        why = _why_not(crawl, settings)
        is_learnt = why in ("", _dropped(crawl)) and any(_has_learnt(newer, crawl) for newer in held)
        if why and not is_learnt:
            missing.append(f"{crawl.id} ({why})")
            continue
        held.append(crawl)
        if not is_learnt:
            known_from.append(crawl.id)
    if missing and not known_from:
        raise UsageError(
            f"--skip-known: the URLs of no earlier crawl are known: {_listed(missing)}; --skip-stored REGEX skips pages"
            " with stored items instead, a longer known_ttl helps the next crawl, and without --skip-known all URLs are"
            " fetched"
        )
    return EarlierCrawls(tuple(known_from), tuple(missing))


async def learn_earlier(crawl: Crawl, *, frontier: Frontier, say: Callable[[str], None]) -> Crawl:
    """Copy the URL keys of earlier crawls, if that was asked for and is not done yet. Returns the crawl. If the process
    dies meanwhile, the next one does it again."""
    record = record_of(crawl)
    if not record.known_from:
        return crawl
    new, lost = 0, []
    for earlier in record.known_from:
        try:
            new += await until_reachable(partial(frontier.know_from, crawl.id, earlier), say=say)
        except UsageError as error:
            lost.append(str(error))
    if lost and len(lost) == len(record.known_from):
        raise UsageError(
            f"{crawl.id} was begun with --skip-known, and the URLs to skip are lost: {lost[0]}; --fresh begins a"
            " crawl in its place"
        )
    for line in lost:
        say(f"{line}; its URLs may be fetched again")
    say(
        f"{several(new, 'URL')} of {_listed(record.known_from)} count as known: they are not fetched, also not from"
        " `start`; Request(URL, dedup=False) is always fetched"
    )
    settings = msgspec.to_builtins(msgspec.structs.replace(record, known_from=()))
    learnt = msgspec.structs.replace(crawl, settings=settings)
    await until_reachable(partial(frontier.open_crawl, learnt), say=say)
    return learnt


def missing_line(missing: Sequence[str]) -> str:
    """A line on what the new crawl cannot skip."""
    return f"what these crawls did may be fetched again: {_listed(missing)}"


def _why_not(crawl: Crawl, settings: Settings) -> str:
    record = record_of(crawl)
    if crawl.keys != "known":
        return _dropped(crawl)
    if crawl.dedup.startswith("bloom"):
        return "it kept its URLs in a Bloom filter"
    if record.fingerprints:
        return "its keys have another form"
    changed = next((name for name in OF_KEYS if getattr(record.settings, name) != getattr(settings, name)), "")
    return f"{changed} has changed" if changed else ""


def _dropped(crawl: Crawl) -> str:
    return f"its URL keys were dropped, known_ttl = {record_of(crawl).settings.known_ttl}"


def _has_learnt(newer: Crawl, older: Crawl) -> bool:
    """Whether `newer` copied `older`'s keys before they were dropped."""
    record, end = record_of(newer), older.created if older.finished is None else older.finished
    until = math.inf if older.keys == "known" else end + parse_duration(record_of(older).settings.known_ttl)
    return record.skips_known and not record.known_from and end <= newer.created < until


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


STORED: Final = "stored: the store has its items"
BATCH = 500


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression of `--skip-stored`."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--skip-stored {pattern!r} is no regular expression: {error}") from None


async def skip_stored(
    crawl: Crawl,
    pattern: re.Pattern[str],
    *,
    frontier: Frontier,
    store: Store,
    intake: Intake,
    say: Callable[[str], None],
) -> int:
    """Mark the matching URLs of the spider's stored items as known and dropped. Returns how many are new."""
    found, new = Found(), 0
    async for item in store.items(ItemFilter(spider=crawl.spider)):
        if pattern.search(item.url):
            intake.request(Request(item.url), found, parent=None, base=item.url, scoped=False)
        if len(found.tasks) >= BATCH:
            new, found = new + await _drop(crawl.id, found, frontier=frontier, say=say), Found()
    return new + await _drop(crawl.id, found, frontier=frontier, say=say)


async def _drop(crawl: str, found: Found, *, frontier: Frontier, say: Callable[[str], None]) -> int:
    """Bury these tasks and drop the dead letters: only their keys stay."""
    letters = [(task, STORED) for task in found.tasks.values()]
    report = await until_reachable(lambda: frontier.bury(crawl, letters), say=say)
    which = DeadFilter(reason=outcome_of(STORED))
    is_dropping = True
    while is_dropping:
        # Until none is left, also of a process that was killed at this point.
        is_dropping = bool(await until_reachable(lambda: frontier.drop_dead(crawl, which, limit=BATCH), say=say))
    return report.new


def skipped_line(number: int) -> str:
    """A line on how many pages are skipped."""
    return f"{several(number, 'page')} whose items the store has count as known, and as dropped: they are not fetched"
