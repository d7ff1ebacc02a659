"""Where a crawl's items are when it has fewer of its own than its pages yielded.

An item belongs to the crawl that wrote it last: a later crawl of the spider takes over what it meets again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.cli.display.numbers import count, several
from shoal.cli.next_commands import command, quote
from shoal.crawl.opening import Places
from shoal.crawl.record import record_of
from shoal.model import Crawl, Progress
from shoal.policy.verdicts import ITEMS
from shoal.settings.values import parse_duration
from shoal.store.base import ItemFilter, Store
from shoal.text.secrets import masked

SHOWN = 8


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """How many items a crawl's pages yielded (0: not known), how many it has now, and how many other crawls have."""

    crawl: Crawl
    yielded: int
    own: int
    others: dict[str, int]


async def owners_of(crawl: Crawl, progress: Progress, *, crawls: Sequence[Crawl], store: Store) -> Owners:
    """Who has the items that this crawl may have written; `crawls` are newest first."""
    yielded = progress.notes.get(ITEMS, 0)
    own = await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id))
    if own and own >= yielded:
        return Owners(crawl=crawl, yielded=yielded, own=own, others={})
    others = await store.count_by_crawl(crawl.spider)
    others.pop(crawl.id, None)
    # Fewer than were yielded may be right: several pages may yield one key. An older crawl has items of this one only
    # if this one left them as they were, because they were fresh.
    if own and not parse_duration(record_of(crawl).settings.freshness):
        names = [one.id for one in crawls]
        for name in names[names.index(crawl.id) :]:
            others.pop(name, None)
    return Owners(crawl=crawl, yielded=yielded, own=own, others=others)


def owners_line(owners: Owners, places: Places) -> str:
    """What people should know about it, in one line; empty if there is nothing to say."""
    name, spider = owners.crawl.id, owners.crawl.spider
    yielded = f"its pages yielded {several(owners.yielded, 'item')}"
    if owners.others:
        has = f"{yielded}, of which it has {count(owners.own)} now" if owners.yielded else "it has no items now"
        return (
            f"{name}: {has}: an item belongs to the crawl that wrote it last, and {_listed(owners.others)};"
            f" for all items of {spider}: {command(f'export {quote(name)} --all -o FILE', places)}"
        )
    if owners.own or not owners.yielded:
        return ""
    return f"{name}: {yielded}, but {masked(places.store)} has no item of {spider}: did it run with another --store?"


def _listed(others: dict[str, int]) -> str:
    most = sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{name} has {count(number)}" for name, number in most[:SHOWN]]
    rest = sum(number for _, number in most[SHOWN:])
    return ", ".join([*shown, f"{several(len(most) - SHOWN, 'other crawl')} {count(rest)}"] if rest else shown)
