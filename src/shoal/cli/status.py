"""`shoal status`: the current state of crawls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from shoal.cli.display.numbers import count, duration, moment, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import check_exists, crawl_argument, json_option, place_options
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.crawl.opening import Places, StoreOf
    from shoal.crawl.places import RememberedPlace, ResultPlaces
    from shoal.frontier.base import Frontier
    from shoal.insight.stats import KindShown, Snapshot
    from shoal.model import Crawl, Heartbeat, Progress
    from shoal.worker.workers import Member


class View(NamedTuple):
    """A crawl as it is shown. items: None if its store cannot be reached."""

    snapshot: Snapshot
    items: int | None
    results: ResultPlaces
    crew: Sequence[Member]
    foreign_store: str = ""  # the store with the items counted, if it is not the crawl's own

    @property
    def workers_with_other_code(self) -> list[Heartbeat]:
        """Working workers whose code of the spider differs from the crawl's."""
        from shoal.crawl.code import others
        from shoal.crawl.record import code_known
        from shoal.worker.workers import Presence

        at_work = (member.beat for member in self.crew if member.presence is Presence.WORKING)
        return others(at_work, code_known(self.snapshot.crawl))


CRAWLS_SHOWN = 20
WORKERS_NAMED = 3
# Many: the lane that finishes last may have few waiting tasks.
LANES_READ = 2000


@click.command(short_help="Counts, rate, time left, lanes and workers of a crawl.")
@crawl_argument
@place_options(exists=False)
@json_option
def status(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Counts, rate, time left, lanes and workers of a crawl; without CRAWL, of all crawls.

    \b
    Example: shoal status books-1 --json
    """
    from shoal.cli.loop import run

    run(_status(crawl, places=places, as_json=as_json))


async def _status(name: str | None, *, places: Places, as_json: bool) -> None:
    from shoal.cli.crawl_choice import choose_all
    from shoal.cli.crawl_stores import has_frontier, stores_of_crawls
    from shoal.crawl.joining import foreign_store
    from shoal.pipes.pump import unreadable_lines

    screen = Screen()
    if not has_frontier(places):
        await _say_unread([], name, places=places, frontier=None, screen=screen)
        check_exists(places)
    if places.store:
        check_store_exists(places.store)
    async with stores_of_crawls(places, say=screen.say) as (frontier, store_of):
        crawls = await frontier.crawls()
        await _say_unread(crawls, name, places=places, frontier=frontier, screen=screen)
        chosen = choose_all(crawls, name, say=screen.say)
        if len(chosen) > 1:
            rows = await _read_progress(frontier, chosen if as_json else chosen[:CRAWLS_SHOWN], screen)
            if not as_json:
                _show_crawls(rows, screen, older=len(chosen) - CRAWLS_SHOWN)
                return
            chosen = [crawl for crawl, _ in rows]
        views = [await _read_view(crawl, frontier=frontier, store_of=store_of, screen=screen) for crawl in chosen]
        views = [view._replace(foreign_store=foreign_store(view.snapshot.crawl, places)) for view in views]
        for line in await unreadable_lines(frontier):
            screen.say(line)
    if as_json:
        documents = [document(view) for view in views]
        screen.json(documents[0] if name is not None else documents)
    else:
        show_view(views[0], screen)
        _show_next(views[0].snapshot, screen, places=places)


async def _say_unread(
    crawls: Sequence[Crawl], name: str | None, *, places: Places, frontier: Frontier | None, screen: Screen
) -> None:
    from shoal.cli.display.inboxes import say_unread
    from shoal.crawl.record import with_refusals

    usable = [crawl for crawl in with_refusals(crawls) if not crawl.refusal]
    only = next((crawl for crawl in usable if name in (crawl.id, crawl.spider)), None)
    named = [only.id, only.spider] if only else [name] if name else []
    await say_unread(usable, places=places, frontier=frontier, named=named, say=screen.say)


async def _read_view(crawl: Crawl, *, frontier: Frontier, store_of: StoreOf, screen: Screen) -> View:
    from shoal.crawl.record import results_known
    from shoal.run.coordinator import Coordinator
    from shoal.store.base import ItemFilter
    from shoal.worker.workers import workers_of

    watcher = Coordinator(crawl, frontier=frontier, show=lambda _: None, say=screen.say)
    snapshot = await watcher.snapshot(lanes=LANES_READ)
    store = await store_of(crawl)
    items = None
    if store is not None:
        items = await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id))
    crew = await workers_of(crawl.id, frontier=frontier)
    return View(snapshot=snapshot, items=items, results=results_known(crawl), crew=crew)


async def _read_progress(frontier: Frontier, crawls: Sequence[Crawl], screen: Screen) -> list[tuple[Crawl, Progress]]:
    """Crawls with their counts; a message about each crawl that this version cannot read."""
    rows = []
    for crawl in crawls:
        try:
            rows.append((crawl, await frontier.progress(crawl.id)))
        except UsageError as error:
            screen.say(str(error))
    return rows


def document(view: View) -> dict[str, Any]:
    """A crawl as JSON."""
    from shoal.crawl.record import code_known
    from shoal.insight.stats import seconds_left, spent_budget
    from shoal.policy.failures import asides

    snapshot, results = view.snapshot, view.results
    crawl, progress = snapshot.crawl, snapshot.progress
    return {
        "crawl": crawl.id,
        "spider": crawl.spider,
        "state": progress.state,
        "priority": crawl.priority,
        "weight": crawl.weight,
        "pace_scope": crawl.pace_scope,
        "created": crawl.created,
        "finished": crawl.finished,
        "progress": progress,
        "left": progress.left,
        "known": progress.known,
        "items": view.items,
        "store": results.store.shown if results.store else None,
        "other_stores": results.other_stores,
        "archive": results.archive.shown if results.archive else None,
        "other_archives": results.other_archives,
        "pages_per_second": snapshot.rate,
        "eta_seconds": snapshot.eta_seconds,
        "slowest_lane": snapshot.slowest_lane,
        "last_lanes": [{"lane": lane.lane, "seconds": seconds_left(lane)} for lane in snapshot.last_lanes],
        "bound": snapshot.bound,
        "late": late_line(snapshot),
        "limits": [{"reason": limit.why, "most": limit.most} for limit in crawl.limits],
        "cost": progress.cost,
        "budget": crawl.budgets.cost or None,
        "set_aside": asides(progress),
        "is_budget_spent": bool(spent_budget(crawl, progress)),
        "lanes": snapshot.lanes,
        "kinds": [one._asdict() for one in _kinds(snapshot)],
        "code": code_known(crawl).digest or None,
        "other_code": len(view.workers_with_other_code),
        "workers": [{**msgspec.structs.asdict(one.beat), "state": one.presence} for one in view.crew],
    }


def late_line(snapshot: Snapshot) -> str:
    """The warning that the crawl will probably miss its deadline, and what would help; else empty."""
    from shoal.insight.deadline import DeadlineWatch

    known_for = msgspec.structs.replace(snapshot, elapsed=_lifetime(snapshot))
    return DeadlineWatch().look(known_for, now=time.time())


def _stops_at(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The limits that will stop the crawl, with the current values."""
    from shoal.crawl.record import is_unfinished
    from shoal.policy.limits import COUNTED, counted_for

    crawl, progress = snapshot.crawl, snapshot.progress
    if not crawl.limits or not is_unfinished(progress.state):
        return
    parts = []
    for limit in crawl.limits:
        name, _, value = limit.why.removesuffix(" reached").removesuffix(" passed").partition(" ")
        at = f"{counted_for(limit, progress):,.0f} now" if name in COUNTED else moment(limit.most)
        parts.append(f"{name} {value} ({at})")
    yield "stops at:", ", ".join(parts)


def _beside_others(crawl: Crawl) -> list[tuple[str, str]]:
    """Priority, weight and pace scope, if they are not the default."""
    priority = [("priority:", str(crawl.priority))] if crawl.priority else []
    weight = [("weight:", f"{crawl.weight:g}")] if crawl.weight != 1.0 else []
    scope = [("limits of hosts:", "its own (pace_scope = crawl)")] if crawl.pace_scope == "crawl" else []
    return [*priority, *weight, *scope]


def show_view(view: View, screen: Screen) -> None:
    """Show a crawl for people."""
    from shoal.cli.display.progress import last_lane, line_of, picture, troubles
    from shoal.cli.display.tables import show_lanes, show_workers
    from shoal.policy.failures import NOT_FED, set_aside

    snapshot = view.snapshot
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
    items = "" if view.items is None else f", {several(view.items, 'item')}"
    screen.line(f"began {moment(crawl.created)}{ended}{items}")
    if progress.feeders_lost and not progress.feeding:
        screen.line(NOT_FED)
    if not screen.out.is_terminal and (line := set_aside(progress)):
        screen.line(line)
    if late := late_line(snapshot):
        screen.line(late)
    screen.pairs([*_stops_at(snapshot), *_beside_others(crawl), *result_places(view), *code_pairs(view)], indent="")
    outcomes = sorted(progress.outcomes.items(), key=lambda pair: -pair[1])
    if outcomes:
        screen.line()
        screen.pairs([(name, count(number)) for name, number in outcomes], indent="")
    if progress.kinds:
        screen.line()
        rows = [(one.kind, count(one.waiting), count(one.workers)) for one in _kinds(snapshot)]
        screen.table(("kind", "waiting", "workers"), rows, right=("waiting", "workers"))
    show_lanes(snapshot.lanes, screen, crawl=crawl)
    show_workers(view.crew, screen, now=time.time())


def _kinds(snapshot: Snapshot) -> list[KindShown]:
    from shoal.insight.stats import kinds_shown

    return kinds_shown(snapshot.progress, snapshot.workers)


def result_places(view: View) -> Iterator[tuple[str, str]]:
    """Where items and raw pages are, unless they are only in the frontier's file."""
    results = view.results
    if results.store is not None and view.foreign_store:
        number = "" if view.items is None else f"{count(view.items)} in {view.foreign_store}; "
        yield "items:", f"{number}its own are in {_places_shown(results.store, results.other_stores)}"
    elif results.store is not None and (not results.store.in_frontier or results.other_stores):
        number = "" if view.items is None else f"{count(view.items)} in "
        yield "items:", number + _places_shown(results.store, results.other_stores)
    if results.archive is not None:
        yield "raw pages:", _places_shown(results.archive, results.other_archives)


def code_pairs(view: View) -> Iterator[tuple[str, str]]:
    """The working workers with other code of the spider, if any."""
    if others := view.workers_with_other_code:
        names = [beat.worker for beat in others[:WORKERS_NAMED]]
        rest = [f"{len(others) - len(names)} more"] if len(others) > len(names) else []
        yield (
            "code:",
            f"{several(len(others), 'worker')} with other code than the crawl's: {', '.join([*names, *rest])}",
        )


def _places_shown(place: RememberedPlace, others: Sequence[str]) -> str:
    return place.shown + (f"; also in {', '.join(others)}" if others else "")


def _show_next(snapshot: Snapshot, screen: Screen, *, places: Places) -> None:
    """The command that continues a crawl whose budget is spent or whose limit is reached."""
    from shoal.cli.display.next_commands import run_again
    from shoal.insight.stats import raised_budget, spent_budget
    from shoal.policy.limits import raised, reached_by

    if spent_budget(snapshot.crawl, snapshot.progress):
        screen.line()
        screen.line(f"next: {run_again(snapshot.crawl, places, budget=raised_budget(snapshot.crawl))}")
    limit = reached_by(snapshot.crawl, snapshot.progress, now=time.time())
    if limit is not None and snapshot.progress.state == "stopped":
        screen.line()
        changes = raised(snapshot.crawl, snapshot.progress)
        screen.line(f"next: {run_again(snapshot.crawl, places, **changes)}")


def _lifetime(snapshot: Snapshot) -> float:
    return (snapshot.crawl.finished or time.time()) - snapshot.crawl.created


def _show_crawls(rows: Sequence[tuple[Crawl, Progress]], screen: Screen, *, older: int) -> None:
    from shoal.policy.failures import set_aside

    has_priorities = any(crawl.priority for crawl, _ in rows)
    columns = ["crawl", "state", *["priority"] * has_priorities, "done", "left", "dead", "began", "took"]
    cells = [
        (
            crawl.id,
            progress.state,
            *[str(crawl.priority)] * has_priorities,
            count(progress.done),
            count(progress.left),
            count(progress.dead),
            moment(crawl.created),
            duration((crawl.finished or time.time()) - crawl.created),
        )
        for crawl, progress in rows
    ]
    numbers = ("priority", "done", "left", "dead", "took")
    screen.table(columns, cells, right=numbers, spare=("took", "began"), folds=("crawl",))
    for crawl, progress in rows:
        if line := set_aside(progress):
            screen.say(f"{crawl.id}: {line}")
    if older > 0:
        screen.say(f"and {several(older, 'older crawl')}; --json lists them all")
