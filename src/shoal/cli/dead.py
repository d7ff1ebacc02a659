"""`shoal dead`: lists, requeues and drops dead letters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count, key_given, moment, moment_given, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import Command, crawl_argument, json_option, json_with, place_options

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl, DeadFilter, DeadLetter


def filter_options(command: Command) -> Command:
    """The filters for dead letters, passed as one argument `which`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        which = {name: options.pop(name) for name in ("host", "reason", "since", "url", "key")}
        return command(*args, which=which, **options)

    for name, kind, text in (
        ("--key", "KEY", "Only the task with this key, as `shoal why` shows it."),
        ("--url", "URL", "Only this URL."),
        ("--since", "TIME", "Only letters since then: 30m, 2h or 7d ago, or a date."),
        ("--reason", "TEXT", "Only letters whose reason begins with this: http_503, handler, timeout."),
        ("--host", "HOST", "Only letters of this host."),
    ):
        wrapped = click.option(name, metavar=kind, help=text)(wrapped)
    return wrapped


@click.group(short_help="List, requeue or drop the tasks that were given up.")
def dead() -> None:
    """List, requeue or drop the tasks that were given up.

    \b
    Example: shoal dead list books-1 --reason http_503
    """


@dead.command("list", short_help="Show dead letters, newest first.")
@crawl_argument
@filter_options
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@click.option("-v", "--verbose", is_flag=True, help="With tracebacks and all details.")
@place_options(store=False)
@json_option
def list_(crawl: str | None, *, places: Places, which: dict[str, Any], **options: Any) -> None:
    """Show dead letters, newest first.

    \b
    Example: shoal dead list books-1 --host example.com -v
    """
    from shoal.cli.loop import run

    run(_list(crawl, which, places=places, **options))


@dead.command(short_help="Queue dead letters again; their attempts count from zero.")
@crawl_argument
@filter_options
@place_options(store=False)
@json_with("crawl", "requeued")
def requeue(crawl: str | None, *, places: Places, which: dict[str, Any], as_json: bool) -> None:
    """Queue dead letters again; their attempts count from zero.

    A page that was lost with its worker is leased alone, with no other page in that worker.

    \b
    Example: shoal dead requeue books-1 --reason timeout
    """
    from shoal.cli.loop import run

    screen = Screen()
    name, number = run(_change(crawl, which, "requeue", places=places, screen=screen))
    if as_json:
        screen.json({"crawl": name, "requeued": number})
        return
    what = "; run the command that began the crawl again" if number else ""
    screen.line(f"{name}: {several(number, 'dead letter')} queued again{what}")


@dead.command(short_help="Delete dead letters for good.")
@crawl_argument
@filter_options
@place_options(store=False)
@json_with("crawl", "dropped")
def drop(crawl: str | None, *, places: Places, which: dict[str, Any], as_json: bool) -> None:
    """Delete dead letters for good.

    \b
    Example: shoal dead drop books-1 --since 2h
    """
    from shoal.cli.loop import run

    screen = Screen()
    name, number = run(_change(crawl, which, "drop", places=places, screen=screen))
    if as_json:
        screen.json({"crawl": name, "dropped": number})
        return
    screen.line(f"{name}: {several(number, 'dead letter')} dropped")


async def _list(
    crawl_name: str | None, which: dict[str, Any], *, places: Places, limit: int, verbose: bool, as_json: bool
) -> None:
    from shoal.cli.crawl_choice import chosen_crawl

    async with chosen_crawl(places, crawl_name) as (frontier, crawl):
        letters = await frontier.dead(crawl.id, await _filter(which, crawl, frontier=frontier), limit=limit)
        total = (await frontier.progress(crawl.id)).dead
    screen = Screen()
    if as_json:
        screen.json([_document(letter) for letter in letters])
    elif verbose:
        _show_whole(letters, screen)
    else:
        _show(letters, screen)
    if not as_json:
        hint = "; -v shows why" if letters and not verbose else ""
        shown = f"{count(len(letters))} of {several(total, 'dead letter')}" if total else "no dead letters"
        screen.say(f"{crawl.id}: {shown}{hint}")
        if letters:
            screen.say(f"to queue them again: {_requeueing(crawl, which, places=places)}")


def _requeueing(crawl: Crawl, which: dict[str, Any], *, places: Places) -> str:
    """The command that requeues the dead letters listed."""
    from shoal.cli.display.next_commands import command, quote

    options = [f"--{name} {quote(value)}" for name, value in which.items() if value is not None]
    return command(" ".join(["dead requeue", quote(crawl.id), *options]), places)


async def _change(
    name: str | None, which: dict[str, Any], verb: Literal["requeue", "drop"], *, places: Places, screen: Screen
) -> tuple[str, int]:
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.run.steering import clear_dead

    async with chosen_crawl(places, name) as (frontier, crawl):
        with Counting.on(screen) as counting:
            chosen = await _filter(which, crawl, frontier=frontier)

            def told(number: int) -> None:
                counting.show(lambda: f"{crawl.id}: {several(number, 'dead letter')} so far")

            number = await clear_dead(crawl, chosen, verb, frontier=frontier, told=told)
        if verb == "requeue" and (stay := (await frontier.count_dead(crawl.id, chosen)).matching):
            screen.say(
                f"{several(stay, 'other')} cannot be queued again, as inbox entries: correct them and push them again"
            )
        return crawl.id, number


async def _filter(which: dict[str, Any], crawl: Crawl, *, frontier: Frontier) -> DeadFilter:
    from shoal.insight.why import known_key
    from shoal.model import DeadFilter
    from shoal.run.steering import lane_given
    from shoal.urls.canonical import canonical

    key = None
    if which["key"] is not None:
        key = key_given(which["key"])
    elif which["url"] is not None:
        key = await known_key(canonical(which["url"]), crawl, frontier=frontier)
    return DeadFilter(
        lane=None if which["host"] is None else lane_given(which["host"]),
        reason=which["reason"],
        since=None if which["since"] is None else moment_given(which["since"]),
        key=key,
    )


def _document(letter: DeadLetter) -> dict[str, Any]:
    task = letter.task
    return {
        "url": task.url,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "at": letter.at,
        "detail": letter.detail,
        "handler": task.handler,
        "depth": task.depth,
        "method": task.method,
        "key": task.key,
        "lane": task.lane,
    }


def _show(letters: Sequence[DeadLetter], screen: Screen) -> None:
    rows = [(letter.task.url, letter.reason, letter.attempts, moment(letter.at)) for letter in letters]
    if rows:
        columns = ("url", "reason", "attempts", "when")
        screen.table(columns, rows, right=("attempts",), spare=("attempts", "when"), folds=("url", "reason"))


def _show_whole(letters: Sequence[DeadLetter], screen: Screen) -> None:
    for letter in letters:
        screen.heading(letter.task.url)
        rows = [
            ("reason", letter.reason),
            ("attempts", letter.attempts),
            ("when", moment(letter.at)),
            ("handler", letter.task.handler),
            ("detail", letter.detail),
        ]
        screen.pairs([(name, value) for name, value in rows if value])
