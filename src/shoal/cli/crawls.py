"""`shoal crawls`: every crawl of a frontier, its size there, and when it is removed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shoal.cli.display.numbers import count, duration, several, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, place_options

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.duties.clearing import Removal
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl, Progress

COLUMNS = ("crawl", "state", "age", "pages", "urls", "bytes", "kept or removed")
FIELDS = (
    "crawl", "spider", "state", "created", "finished", "pages", "left", "dead", "bytes", "is_estimate", "keys",
    "keys_dropped_at", "keys_dropped_by", "removed_at", "removed_by", "stays", "refusal",
)  # fmt: skip


class Row(NamedTuple):
    """A crawl as it is listed; without numbers if this version cannot read it."""

    crawl: Crawl
    fate: Removal
    progress: Progress | None = None
    octets: int | None = None
    is_estimate: bool = True


@click.command(short_help="All crawls: age, pages, URLs, bytes, and when each is removed.")
@place_options(store=False)
@json_with(*FIELDS)
def crawls(*, places: Places, as_json: bool) -> None:
    """All crawls of a frontier, newest first: state, age, pages done, known URLs, bytes in the frontier, and when each
    is removed.

    The bytes are an estimate from a sample of a crawl's records. Ended crawls are removed from the frontier by the
    settings keep_crawls and crawl_ttl, and forget their URLs after known_ttl; `shoal delete` removes them now.

    \b
    Example: shoal crawls --json
    """
    from shoal.cli.loop import run

    run(_crawls(places, as_json=as_json))


async def _crawls(places: Places, *, as_json: bool) -> None:
    from shoal.crawl.opening import frontier_at
    from shoal.crawl.record import with_refusals
    from shoal.duties.clearing import removals

    screen = Screen()
    async with frontier_at(places.frontier) as frontier:
        rest = await frontier.half_deleted()
        found = [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.id not in rest]
        plan = removals(found)
        rows = [await _row(crawl, plan[crawl.id], frontier=frontier) for crawl in found]
    if as_json:
        screen.json([_document(row) for row in rows])
        return
    if rows:
        _show(rows, screen)
    else:
        screen.say("there is no crawl in this frontier")
    for name in rest:
        screen.say(f"{name} is half deleted: `shoal delete {name}` or the next process here removes the rest")


async def _row(crawl: Crawl, fate: Removal, *, frontier: Frontier) -> Row:
    from shoal.errors import UsageError

    if crawl.refusal:
        return Row(crawl, fate)
    try:
        progress, taken = await frontier.progress(crawl.id), await frontier.size(crawl.id)
    except UsageError:
        # It was deleted meanwhile.
        return Row(crawl, fate)
    return Row(crawl, fate, progress, taken.bytes, taken.is_estimate)


def _show(rows: Sequence[Row], screen: Screen) -> None:
    now = time.time()
    cells = [
        (
            row.crawl.id,
            row.crawl.state,
            _age(now - row.crawl.created),
            "" if row.progress is None else count(row.progress.ended),
            _urls(row),
            "" if row.octets is None else size(row.octets),
            _removal(row, now=now),
        )
        for row in rows
    ]
    numbers = ("age", "pages", "urls", "bytes")
    screen.table(COLUMNS, cells, right=numbers, spare=("age", "urls", "pages"), folds=("crawl", COLUMNS[-1]))
    total = sum(row.octets or 0 for row in rows)
    screen.say(f"{several(len(rows), 'crawl')}, about {size(total)} in the frontier")
    for row in rows:
        if row.crawl.refusal:
            screen.say(row.crawl.refusal)


def _age(seconds: float) -> str:
    """The largest unit alone: 13 d, 5 h."""
    return " ".join(duration(max(0, int(seconds))).split()[:2])


def _urls(row: Row) -> str:
    """How many URLs the crawl knows."""
    if row.progress is None:
        return ""
    return count(row.progress.known) if row.crawl.keys == "known" else "forgotten"


def _removal(row: Row, *, now: float) -> str:
    """When the crawl and its URLs are removed, or why it is kept."""
    fate = row.fate
    if row.crawl.refusal:
        return "left alone"
    if fate.removed_at is None:
        removal = f"kept ({fate.stays})"
    else:
        removal = f"removed {_when(fate.removed_at, now)} ({fate.removed_by})"
        if (fate.keys_dropped_at or 0.0) >= fate.removed_at:
            return removal
    return removal if fate.keys_dropped_at is None else f"{removal}; URLs forgotten {_when(fate.keys_dropped_at, now)}"


def _when(at: float, now: float) -> str:
    return "soon" if at <= now else f"in {duration(at - now)}"


def _document(row: Row) -> dict[str, Any]:
    """A crawl for scripts."""
    crawl, fate, progress = row.crawl, row.fate, row.progress
    return {
        "crawl": crawl.id,
        "spider": crawl.spider,
        "state": crawl.state,
        "created": crawl.created,
        "finished": crawl.finished,
        "pages": None if progress is None else progress.ended,
        "left": None if progress is None else progress.left,
        "dead": None if progress is None else progress.dead,
        "bytes": row.octets,
        "is_estimate": row.is_estimate,
        "keys": crawl.keys,
        "keys_dropped_at": fate.keys_dropped_at,
        "keys_dropped_by": fate.keys_dropped_by or None,
        "removed_at": fate.removed_at,
        "removed_by": fate.removed_by or None,
        "stays": fate.stays or None,
        "refusal": crawl.refusal or None,
    }
