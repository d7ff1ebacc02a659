"""`--skip-known`: a new crawl takes no URL that an earlier crawl of its spider has done.

Pages whose items a store has already, kept out of a crawl: for one whose frontier is lost.
"""

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
from shoal.urls.canonical import KEY_RULES
from shoal.worker.outages import until_reachable

# Settings by which the same URL has another key.
OF_KEYS: Final = ("strip_parameters", "same_page")
NAMED: Final = 3


class Earlier(NamedTuple):
    """The ended crawls that say what was done, newest first, and why others cannot, a clause each."""

    known_from: tuple[str, ...]
    missing: tuple[str, ...]


def earlier_crawls(crawls: Sequence[Crawl], settings: Settings) -> Earlier:
    """Which crawls of the spider's file, newest first, the new one learns from: not those that a newer one of them has
    learnt from. Refuses when there are some and none can tell: what was to be skipped would be fetched again."""
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
            f"--skip-known: no earlier crawl can say which URLs it has done: {_listed(missing)}; --skip-stored REGEX"
            " goes by the items instead, a longer known_ttl helps the next crawl, and without --skip-known everything"
            " is fetched"
        )
    return Earlier(tuple(known_from), tuple(missing))


async def learn_earlier(crawl: Crawl, *, frontier: Frontier, say: Callable[[str], None]) -> Crawl:
    """Let the URLs that earlier crawls have done count as known, if that was asked for and is not done yet; gives the
    crawl. A process that dies meanwhile leaves the crawl's record as it is: the next one does it again."""
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
            f"{crawl.id} was begun with --skip-known, and what it was to skip is lost: {lost[0]}; --fresh begins a"
            " crawl in its place"
        )
    for line in lost:
        say(f"{line}; its URLs may be fetched again")
    say(
        f"{several(new, 'URL')} that {_listed(record.known_from)} did count as known: they are not fetched, not even"
        " those of the start; Request(URL, dedup=False) is fetched all the same"
    )
    settings = msgspec.to_builtins(msgspec.structs.replace(record, known_from=()))
    learnt = msgspec.structs.replace(crawl, settings=settings)
    await until_reachable(partial(frontier.open_crawl, learnt), say=say)
    return learnt


def missing_line(missing: Sequence[str]) -> str:
    """What the new crawl cannot skip, for people."""
    return f"what these crawls did may be fetched again: {_listed(missing)}"


def _why_not(crawl: Crawl, settings: Settings) -> str:
    record = record_of(crawl)
    if crawl.keys != "known":
        return _dropped(crawl)
    if crawl.dedup.startswith("bloom"):
        return "it kept its URLs in a Bloom filter"
    if record.key_rules != KEY_RULES or record.fingerprints:
        return "its keys are made in another way"
    changed = next((name for name in OF_KEYS if getattr(record.settings, name) != getattr(settings, name)), "")
    return f"{changed} was another" if changed else ""


def _dropped(crawl: Crawl) -> str:
    return f"its URL keys were dropped, known_ttl = {record_of(crawl).settings.known_ttl}"


def _has_learnt(newer: Crawl, older: Crawl) -> bool:
    """Whether a crawl that skips what was known has learnt, after the end of an older one, what that had done: as long
    as that one had its keys."""
    record, end = record_of(newer), older.created if older.finished is None else older.finished
    until = math.inf if older.keys == "known" else end + parse_duration(record_of(older).settings.known_ttl)
    return record.skips_known and not record.known_from and end <= newer.created < until


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


STORED: Final = "stored: the store has its items"
BATCH = 500


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression for the pages that may be skipped."""
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
    """Let the URLs that match, and under which the store has items of the spider, count as known in the crawl, and as
    dropped; gives how many are new. Repeating it is harmless."""
    found, new = Found(), 0
    async for item in store.items(ItemFilter(spider=crawl.spider)):
        if pattern.search(item.url):
            intake.request(Request(item.url), found, parent=None, base=item.url, scoped=False)
        if len(found.tasks) >= BATCH:
            new, found = new + await _drop(crawl.id, found, frontier=frontier, say=say), Found()
    return new + await _drop(crawl.id, found, frontier=frontier, say=say)


async def _drop(crawl: str, found: Found, *, frontier: Frontier, say: Callable[[str], None]) -> int:
    """Nobody works on these tasks: they are dead letters for a moment, and then keys that are known."""
    letters = [(task, STORED) for task in found.tasks.values()]
    report = await until_reachable(lambda: frontier.bury(crawl, letters), say=say)
    which = DeadFilter(reason=outcome_of(STORED))
    is_dropping = True
    while is_dropping:
        # Until none is left, also of a process that was killed here.
        is_dropping = bool(await until_reachable(lambda: frontier.drop_dead(crawl, which, limit=BATCH), say=say))
    return report.new


def skipped_line(number: int) -> str:
    """What was done, for people."""
    return f"{several(number, 'page')} whose items the store has count as known, and as dropped: they are not fetched"
