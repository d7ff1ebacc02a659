"""`shoal status`: the state of crawls now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.numbers import count, duration, moment, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_option, place_options
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl, Progress
    from shoal.processes.opening import Places
    from shoal.processes.stats import Snapshot

CRAWLS_SHOWN = 20
# Many: the lane that finishes last may have few tasks waiting.
LANES_READ = 2000


@click.command(short_help="Counts, rate, time left, lanes and workers of a crawl.")
@crawl_argument
@place_options()
@json_option
def status(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Counts, rate, time left, lanes and workers of a crawl; without CRAWL, of all crawls.

    \b
    Example: shoal status books-1 --json
    """
    from shoal.cli.loop import run

    run(_status(crawl, places=places, as_json=as_json))


async def _status(name: str | None, *, places: Places, as_json: bool) -> None:
    from shoal.cli.which import choose_all
    from shoal.processes.coordinator import Coordinator
    from shoal.processes.opening import opened
    from shoal.store.base import ItemFilter

    screen = Screen()
    async with opened(places) as (frontier, store):
        chosen = choose_all(await frontier.crawls(), name)
        if len(chosen) > 1:
            rows = await _read(frontier, chosen if as_json else chosen[:CRAWLS_SHOWN], screen)
            if not as_json:
                _show_crawls(rows, screen, older=len(chosen) - CRAWLS_SHOWN)
                return
            chosen = [crawl for crawl, _ in rows]
        snapshots, items = [], []
        for crawl in chosen:
            watcher = Coordinator(crawl, frontier=frontier, store=store, show=_ignore, say=screen.say)
            snapshots.append(await watcher.look(lanes=LANES_READ))
            items.append(await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id)))
    if as_json:
        documents = [document(snapshot, items=number) for snapshot, number in zip(snapshots, items, strict=True)]
        screen.json(documents[0] if name is not None else documents)
    else:
        show_snapshot(snapshots[0], screen, items=items[0])
        _show_next(snapshots[0], screen, places=places)


async def _read(frontier: Frontier, crawls: Sequence[Crawl], screen: Screen) -> list[tuple[Crawl, Progress]]:
    """Crawls with their counts. A crawl that this version refuses gets one line; the others are shown."""
    rows = []
    for crawl in crawls:
        try:
            rows.append((crawl, await frontier.progress(crawl.id)))
        except UsageError as error:
            screen.say(str(error))
    return rows


def document(snapshot: Snapshot, *, items: int) -> dict[str, Any]:
    """A snapshot for scripts."""
    from shoal.processes.stats import seconds_left, spent_budget

    crawl, progress = snapshot.crawl, snapshot.progress
    return {
        "crawl": crawl.id,
        "spider": crawl.spider,
        "state": progress.state,
        "created": crawl.created,
        "finished": crawl.finished,
        "progress": progress,
        "left": progress.left,
        "known": progress.known,
        "items": items,
        "pages_per_second": snapshot.rate,
        "eta_seconds": snapshot.eta_seconds,
        "slowest_lane": snapshot.slowest_lane,
        "last_lanes": [{"lane": lane.lane, "seconds": seconds_left(lane)} for lane in snapshot.last_lanes],
        "bound": snapshot.bound,
        "cost": progress.cost,
        "budget": crawl.budgets.cost or None,
        "is_budget_spent": bool(spent_budget(crawl, progress)),
        "lanes": snapshot.lanes,
        "workers": snapshot.workers,
    }


def show_snapshot(snapshot: Snapshot, screen: Screen, *, items: int) -> None:
    """For people."""
    from shoal.cli.display.progress import last_lane, line_of, picture, troubles
    from shoal.cli.display.tables import show_lanes, show_workers

    crawl, progress = snapshot.crawl, snapshot.progress
    if screen.out.is_terminal:
        screen.out.print(picture(snapshot, elapsed=_lifetime(snapshot)))
    else:
        screen.line(line_of(snapshot))
        if last_lane(snapshot):
            screen.line(last_lane(snapshot))
        for trouble in troubles(snapshot):
            screen.line(f"trouble: {trouble}")
    ended = f", ended {moment(crawl.finished)}" if crawl.finished else ""
    screen.line(f"began {moment(crawl.created)}{ended}, {several(items, 'item')}")
    outcomes = sorted(progress.outcomes.items(), key=lambda pair: -pair[1])
    if outcomes:
        screen.line()
        screen.pairs([(name, count(number)) for name, number in outcomes], indent="")
    show_lanes(snapshot.lanes, screen)
    show_workers(snapshot.workers, screen)


def _show_next(snapshot: Snapshot, screen: Screen, *, places: Places) -> None:
    """The command that lets a crawl go on whose budget is spent."""
    from shoal.cli.next_commands import run_again
    from shoal.processes.stats import raised_budget, spent_budget

    if spent_budget(snapshot.crawl, snapshot.progress):
        screen.line()
        screen.line(f"next: {run_again(snapshot.crawl, places, budget=raised_budget(snapshot.crawl))}")


def _lifetime(snapshot: Snapshot) -> float:
    return (snapshot.crawl.finished or time.time()) - snapshot.crawl.created


def _show_crawls(rows: Sequence[tuple[Crawl, Progress]], screen: Screen, *, older: int) -> None:
    columns = ("crawl", "state", "done", "left", "dead", "began", "took")
    cells = [
        (
            crawl.id,
            progress.state,
            count(progress.done),
            count(progress.left),
            count(progress.dead),
            moment(crawl.created),
            duration((crawl.finished or time.time()) - crawl.created),
        )
        for crawl, progress in rows
    ]
    screen.table(columns, cells, right=("done", "left", "dead", "took"), spare=("took", "began"), folds=("crawl",))
    if older > 0:
        screen.say(f"and {several(older, 'older crawl')}; --json lists them all")


def _ignore(snapshot: Snapshot) -> None:
    """Does nothing: the command shows its snapshots itself."""
