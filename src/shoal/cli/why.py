"""`shoal why`: what happened to a URL, or which rule rejected it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.numbers import duration, key_given, key_shown, moment, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_option, place_options
from shoal.errors import UsageError
from shoal.insight.why import document, sentence
from shoal.model import DIRECT, TaskState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.insight.why import Fate, PageItem
    from shoal.store.base import FetchRow

MOST_IN_FULL = 5


@click.command(short_help="What happened to a URL, or which rule rejected it.")
@click.argument("url")
@crawl_argument
@click.option("--method", metavar="METHOD", help="Only tasks with this method: GET, POST.")
@click.option("--key", metavar="KEY", help="Only the task with this key.")
@place_options()
@json_option
def why(url: str, crawl: str | None, *, method: str | None, key: str | None, places: Places, as_json: bool) -> None:
    """What happened to a URL, or which rule rejected it. Several tasks may have one URL, with different
    methods, bodies or keys: all are shown, or the latest if there are many.

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
        _show_task(fates[0], screen, places=places)
        return
    _show_tasks(fates, screen)
    for fate in fates if len(fates) <= MOST_IN_FULL else []:
        screen.line()
        screen.heading(f"{fate.request}, key {key_shown(fate.key)}")
        _show_task(fate, screen, places=places)


def _show_tasks(fates: list[Fate], screen: Screen) -> None:
    """A table of the tasks of one URL."""
    from shoal.insight.why import TASKS_SHOWN

    shown = fates[:TASKS_SHOWN]
    number = f"more than {TASKS_SHOWN}" if len(fates) > TASKS_SHOWN else str(len(fates))
    screen.line(f"{number} tasks have this URL in {fates[0].crawl}; --method or --key shows one of them")
    rows = [
        (fate.request, fate.pool, key_shown(fate.key), fate.state, fate.fetch.outcome if fate.fetch else "")
        for fate in shown
    ]
    screen.table(("request", "pool", "key", "state", "outcome"), rows)


def _show_task(fate: Fate, screen: Screen, *, places: Places) -> None:
    """One task: its state, its facts, its attempts."""
    screen.line(sentence(fate))
    screen.pairs((name, value) for name, value in _facts(fate) if value not in (None, ""))
    if len(fate.attempts) > 1:
        _show_attempts(fate.attempts, screen)
    if fate.state is TaskState.DEAD:
        screen.line(f"to queue it again: {_requeueing(fate, places)}")


def _show_attempts(attempts: list[FetchRow], screen: Screen) -> None:
    """The attempts in the log, newest first."""
    rows = [
        (
            line.attempt,
            moment(line.at),
            line.outcome,
            line.status or "",
            duration(line.elapsed) if line.elapsed else "",
            line.exit,
            line.worker,
            line.error,
        )
        for line in attempts
    ]
    columns = ("attempt", "at", "outcome", "status", "took", "exit", "worker", "error")
    screen.table(columns, rows, right=("attempt", "status"), spare=("worker", "exit", "took"), folds=("error",))


async def _why(url: str, name: str | None, wanted: dict[str, Any], *, places: Places) -> list[Fate]:
    from shoal.cli.crawl_choice import choose_all
    from shoal.cli.crawl_stores import stores_of_crawls
    from shoal.insight.why import Choice, fates_of

    async with stores_of_crawls(places, say=Screen().say) as (frontier, store_of):
        crawls, choice = choose_all(await frontier.crawls(), name), Choice(**wanted)
        fates = await fates_of(url, crawls, frontier=frontier, store_of=store_of, choice=choice)
    chosen = [fate for fate in fates if choice.has(fate.key, fate.request)]
    is_known = fates[0].state is not TaskState.UNKNOWN or fates[0].fetch is not None
    if not chosen and not is_known:
        return fates
    if not chosen:
        known = ", ".join(f"{fate.request} (key {key_shown(fate.key)})" for fate in fates[:MOST_IN_FULL])
        raise UsageError(f"{fates[0].url} has no such task in {fates[0].crawl}, only {known}")
    return chosen


def _requeueing(fate: Fate, places: Places) -> str:
    """The command that requeues a dead letter; all dead letters of its reason if a rule dropped them together."""
    from shoal.cli.display.next_commands import command, quote

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
    yield "items", "\n".join(_item_line(item, fate.crawl) for item in fate.items)
    yield "detail", fate.task.detail
    yield "also met as", "\n".join(fate.merged)


def _item_line(item: PageItem, crawl: str) -> str:
    since = f", written again by {item.crawl} since" if item.crawl != crawl else ""
    return f"{item.key}, {size(item.size)}{since}"


def _fetch_facts(fetch: FetchRow) -> Iterator[tuple[str, Any]]:
    status = f"status {fetch.status}, {size(fetch.size)}, " if fetch.status else ""
    took = f" in {duration(fetch.elapsed)}" if fetch.elapsed else ""
    yield "last attempt", f"{moment(fetch.at)}, number {fetch.attempt}: {status}{fetch.outcome}{took}"
    yield "exit", fetch.exit if fetch.exit != DIRECT else None
    yield "worker", fetch.worker
    yield "error", fetch.error
