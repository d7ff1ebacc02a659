"""`shoal why`: what became of a URL, or which rule kept it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shoal.cli.display.numbers import duration, key_given, key_shown, moment, several, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_option, place_options
from shoal.errors import UsageError
from shoal.frontier.rules.tasks import BAD_RECORD
from shoal.model import DIRECT, TaskState, TaskStatus
from shoal.secrecy import MASK, masked_headers

if TYPE_CHECKING:
    from shoal.cli.url_fate import Fate
    from shoal.processes.opening import Places
    from shoal.store.base import FetchRow

STORIES_TOLD = 5


@click.command(short_help="What became of a URL, or which rule kept it out.")
@click.argument("url")
@crawl_argument
@click.option("--method", metavar="METHOD", help="Only its tasks with this method: GET, POST.")
@click.option("--key", metavar="KEY", help="Only its task with this key.")
@place_options()
@json_option
def why(url: str, crawl: str | None, *, method: str | None, key: str | None, places: Places, as_json: bool) -> None:
    """What became of a URL, or which rule kept it out. Several tasks may have one URL: with other methods, bodies or
    keys of their own. All of them are told, the latest ones if they are many.

    \b
    Example: shoal why https://books.toscrape.com/catalogue/page-2.html
    """
    from shoal.cli.loop import run

    wanted = {"method": method and method.upper(), "key": None if key is None else key_given(key)}
    fates = run(_why(url, crawl, wanted, places=places))
    screen = Screen()
    if as_json:
        documents = [document(fate) for fate in fates]
        screen.json(documents[0] if len(documents) == 1 else documents)
        return
    screen.heading(fates[0].url)
    if len(fates) == 1:
        _tell(fates[0], screen, places=places)
        return
    _show_tasks(fates, screen)
    for fate in fates if len(fates) <= STORIES_TOLD else []:
        screen.line()
        screen.heading(f"{fate.request}, key {key_shown(fate.key)}")
        _tell(fate, screen, places=places)


def _show_tasks(fates: list[Fate], screen: Screen) -> None:
    """Several tasks of one URL at a glance."""
    from shoal.cli.url_fate import TASKS_SHOWN

    shown = fates[:TASKS_SHOWN]
    number = f"more than {TASKS_SHOWN}" if len(fates) > TASKS_SHOWN else str(len(fates))
    screen.line(f"{number} tasks have this URL in {fates[0].crawl}; --method or --key tells of one of them")
    rows = [
        (fate.request, fate.pool, key_shown(fate.key), fate.state, fate.fetch.outcome if fate.fetch else "")
        for fate in shown
    ]
    screen.table(("request", "pool", "key", "state", "outcome"), rows)


def _tell(fate: Fate, screen: Screen, *, places: Places) -> None:
    """The life of one task."""
    screen.line(sentence(fate))
    screen.pairs((name, value) for name, value in _facts(fate) if value not in (None, ""))
    if fate.state is TaskState.DEAD:
        screen.line(f"to queue it again: {_requeueing(fate, places)}")


async def _why(url: str, name: str | None, wanted: dict[str, Any], *, places: Places) -> list[Fate]:
    from shoal.cli.reading import stores_of_crawls
    from shoal.cli.url_fate import Choice, fates_of
    from shoal.cli.which import choose_all

    async with stores_of_crawls(places, say=Screen().say) as (frontier, store_of):
        crawls, choice = choose_all(await frontier.crawls(), name), Choice(**wanted)
        fates = await fates_of(url, crawls, frontier=frontier, store_of=store_of, choice=choice)
    chosen = [fate for fate in fates if choice.has(fate.key, fate.request)]
    is_known = fates[0].state is not TaskState.UNKNOWN or fates[0].fetch is not None
    if not chosen and not is_known:
        return fates
    if not chosen:
        known = ", ".join(f"{fate.request} (key {key_shown(fate.key)})" for fate in fates[:STORIES_TOLD])
        raise UsageError(f"{fates[0].url} has no such task in {fates[0].crawl}; it has {known}")
    return chosen


def document(fate: Fate) -> dict[str, Any]:
    """For scripts."""
    task = fate.task.task
    if task is not None:
        # A request's headers and body may hold secrets that are only for its site.
        headers = masked_headers(task.headers) if task.headers else None
        task = msgspec.structs.replace(task, headers=headers, body=MASK.encode() if task.body else None)
        fate = msgspec.structs.replace(fate, task=msgspec.structs.replace(fate.task, task=task))
    values: dict[str, Any] = msgspec.to_builtins(fate)
    return {"state": fate.state, "sentence": sentence(fate), **values}


def sentence(fate: Fate) -> str:
    """What became of the URL, in one sentence."""
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
            return f"waiting for {duration(task.due_in)}{last}{f': {task.reason}' if task.reason else ''}"
        case TaskState.CANCELLED:
            return "set aside when the crawl was cancelled"
        case _:
            return f"queued: it waits for its turn in its lane{_lost(task)}"


def _death(task: TaskStatus) -> str:
    """What a page did that ended its worker each time."""
    from shoal.frontier.rules.tasks import WORKER_LOST

    if not task.reason.startswith(WORKER_LOST) or task.task is None:
        return ""
    return (
        f"; at each attempt the worker process ended while it had only this page, for its handler {task.task.handler}"
    )


def _why_done(fate: Fate) -> str:
    if fate.fetch is None:
        if fate.set_aside:
            return f"done, or lost with a record of the crawl: {fate.set_aside}"
        return "done: nothing more is known of it"
    match fate.fetch.outcome:
        case "redirected":
            return f"done: it redirects to {fate.fetch.final_url}"
        case "robots":
            return f"not fetched: {_reason('robots')}"
        case outcome:
            return f"done: {outcome or 'nothing more is known of it'}"


def _lost(task: TaskStatus) -> str:
    """What is known of leases of this task that were lost with their workers."""
    from shoal.frontier.rules.tasks import WORKER_LOST, is_suspect

    if not task.losses:
        return ""
    cause = task.reason.removeprefix(WORKER_LOST).removeprefix(": ") if task.reason.startswith(WORKER_LOST) else ""
    before = f"; it was lost with its worker before{f' ({cause})' if cause else ''}"
    return f"{before}, so it is lent alone" if is_suspect(task.losses) else before


def _why_unknown(fate: Fate) -> str:
    if fate.kept_out is not None:
        return f"kept out ({fate.kept_out}): {_reason(fate.kept_out)}{_raised_by([fate.kept_out])}"
    if fate.maybe:
        reasons = "; or ".join(f"{name}: {_reason(name)}" for name in fate.maybe)
        known = f"not known: never found, or kept out by one of the limits that were reached ({reasons})"
        return known + _raised_by(fate.maybe)
    return "never found: no rule keeps it out, but no page, source or command has named it"


def _reason(name: str) -> str:
    from shoal.scope import REASONS

    return REASONS.get(name, name)


def _raised_by(names: list[str]) -> str:
    """How to raise the limits that kept URLs out."""
    from shoal.scope import RAISED_BY

    settings = [f"--set {RAISED_BY[name]}=N" for name in names if name in RAISED_BY]
    if not settings:
        return ""
    return f"; to let in more, run the command that began the crawl again with --again and {' or '.join(settings)}"


def _requeueing(fate: Fate, places: Places) -> str:
    """The command that requeues a dead letter; with it those like it, where a rule has given up all of them."""
    from shoal.cli.next_commands import command, quote

    one = f"--url {quote(fate.url)}" if fate.is_plain else f"--key {key_shown(fate.key)}"
    which = "--reason equal_pages" if fate.task.reason.startswith("equal_pages") else one
    return command(f"dead requeue {quote(fate.crawl)} {which}", places)


def _facts(fate: Fate) -> Iterator[tuple[str, Any]]:
    task = fate.task.task
    yield "crawl", fate.crawl
    yield "lane", fate.lane
    yield "key", key_shown(fate.key)
    yield "request", fate.request if fate.request != "GET" else None
    yield "merged with", fate.merged_with
    yield "found on", fate.found_on
    if task is not None:
        yield "handler", f"{task.handler}, depth {task.depth}, priority {task.priority}"
    if fate.fetch is not None:
        yield from _fetch_facts(fate.fetch)
    yield "detail", fate.task.detail
    yield "also met as", "\n".join(fate.merged)


def _fetch_facts(fetch: FetchRow) -> Iterator[tuple[str, Any]]:
    status = f"status {fetch.status}, {size(fetch.size)}, " if fetch.status else ""
    took = f" in {duration(fetch.elapsed)}" if fetch.elapsed else ""
    yield "last attempt", f"{moment(fetch.at)}, number {fetch.attempt}: {status}{fetch.outcome}{took}"
    yield "exit", fetch.exit if fetch.exit != DIRECT else None
    yield "worker", fetch.worker
    yield "error", fetch.error
