"""`shoal add`: adds URLs to a crawl."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, place_options

if TYPE_CHECKING:
    from shoal.crawl.adding import Added, Lines
    from shoal.crawl.opening import Places
    from shoal.errors import UsageError
    from shoal.frontier.base import Frontier
    from shoal.journey.intake import Intake
    from shoal.model import Crawl
    from shoal.spider.spider import Request

STDIN = "-"
FAILED = 1
FULL_SECONDS = 0.5
LONGEST_SAMPLE = 80


@click.command(short_help="Add URLs to a crawl, running or finished.")
@click.argument("crawl_or_url", metavar="[CRAWL]", required=False)
@click.argument("urls", metavar="URL...|-", nargs=-1)
@click.option(
    "-f",
    "--file",
    "file",
    metavar="FILE",
    help="Also add the lines of this file; all are checked before the first is added.",
)
@click.option("--handler", metavar="NAME", help="The method that handles the pages.  [default: parse]")
@click.option("--priority", metavar="N", type=int, help="Tasks with a higher number go first at their host.")
@click.option("--depth", metavar="N", type=click.IntRange(0), help="Links away from a start URL.  [default: 0]")
@click.option("--pool", metavar="NAME", help="The pool of proxies or accounts.  [default: the spider's pool]")
@click.option("--region", metavar="NAME", help="Instead of a pool: use exits that workers offer for this region.")
@click.option("--kind", metavar="NAME", help="Only workers of this kind take the tasks.  [default: the spider's kind]")
@click.option(
    "--meta",
    metavar="NAME=TEXT",
    multiple=True,
    help="A value for page.meta; repeatable. Or a JSON object.",
)
@click.option("--delay", metavar="TIME", help="Fetch no earlier than after this time: 90s, 10m, 2h.")
@click.option(
    "--max-attempts", metavar="N", type=click.IntRange(1), help="Attempts before a page becomes a dead letter."
)
@place_options(store=False)
@json_with("crawl", "new", "duplicates", "rejected", "samples")
def add(
    crawl_or_url: str | None,
    urls: tuple[str, ...],
    *,
    file: str | None,
    meta: tuple[str, ...],
    places: Places,
    as_json: bool,
    **options: Any,
) -> int:
    """Add URLs to a crawl, running or finished; - reads them from standard input, one per line.

    A line may be a JSON object with the fields of a request. While max_pending tasks wait, the command waits too.

    \b
    Example: shoal add books-1 https://books.toscrape.com/catalogue/page-7.html
             zcat urls.gz | shoal add books - --priority 5 --meta from=sales
             shoal add books -f urls.txt --handler book --delay 10m
    """
    from shoal.cli.loop import run

    crawl = crawl_or_url
    if crawl_or_url is not None and ("://" in crawl_or_url or crawl_or_url == STDIN):
        crawl, urls = None, (crawl_or_url, *urls)
    if not urls and file is None:
        raise click.UsageError(
            "Give the URLs to add, or - to read them from standard input", click.get_current_context()
        )
    fields = {name: value for name, value in {**options, **_checked(options, meta)}.items() if value is not None}
    screen = Screen()
    report = run(_add(crawl, urls, file, fields=fields, places=places, screen=screen))
    if as_json:
        screen.json(report)
    else:
        _show(report, screen)
    if report.rejected and not report.new + report.duplicates:
        screen.say(f"nothing was added to {report.crawl}: every URL was kept out")
        return FAILED
    return 0


def _checked(options: dict[str, Any], meta: tuple[str, ...]) -> dict[str, Any]:
    """The options that must be parsed; a mistake is refused before anything is opened."""
    from shoal.crawl.inbox import parse_delay
    from shoal.errors import UsageError
    from shoal.exits.pools import check_region
    from shoal.frontier.rules.constants import MAX_PRIORITY
    from shoal.settings.values import check_kind

    if options["kind"] is not None:
        check_kind(options["kind"], what="--kind")
    if options["region"] is not None:
        check_region(options["region"], what="--region")
    if options["priority"] is not None and abs(options["priority"]) > MAX_PRIORITY:
        raise UsageError(f"--priority {options['priority']} is not between {-MAX_PRIORITY} and {MAX_PRIORITY}")
    delay, found = options["delay"], _meta(meta)
    try:
        return {"meta": found, "delay": None if delay is None else parse_delay(delay)}
    except (ValueError, UsageError) as error:
        raise UsageError(f"--delay {delay!r}: {error}") from None


def _meta(given: tuple[str, ...]) -> dict[str, Any] | None:
    """`meta` from NAME=TEXT pairs and JSON objects; a later value wins."""
    import msgspec

    from shoal.errors import UsageError

    found: dict[str, Any] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if one.lstrip().startswith("{"):
            try:
                found |= msgspec.json.decode(one, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise UsageError(f"--meta {one} is not a JSON object: {error}") from None
        elif sign and name:
            found[name] = text
        else:
            raise UsageError(f"--meta {one}: write it as --meta NAME=TEXT, or as a JSON object")
    return found or None


async def _add(
    crawl_name: str | None,
    urls: tuple[str, ...],
    file: str | None,
    *,
    fields: dict[str, Any],
    places: Places,
    screen: Screen,
) -> Added:
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.crawl.adding import Lines
    from shoal.run.intakes import intake_of

    async with chosen_crawl(places, crawl_name) as (frontier, crawl):
        intake = intake_of(crawl)
        lines = Lines(crawl, intake=intake, fields=fields)
        if "handler" in fields and not lines.knows_handlers:
            screen.say(f"{crawl.id} does not say which handlers it has: {fields['handler']!r} is not checked")
        requests = _given(urls, file, lines)
        with Counting.on(screen) as counting:
            idle = partial(_idle_line, crawl, fields, frontier=frontier, places=places)
            room = Room(crawl, frontier=frontier, most=intake.settings.max_pending, idle=idle, say=screen.say)
            added = await _put(requests, intake=intake, frontier=frontier, room=room, counting=counting)
        if added.new and (line := await idle()):
            screen.say(line)
        return added


async def _idle_line(crawl: Crawl, fields: dict[str, Any], *, frontier: Frontier, places: Places) -> str:
    """The message that no worker does the new tasks, and what to start; empty if one does. Read after the URLs were
    added: workers may have ended meanwhile."""
    from shoal.cli.display.next_commands import command, quote
    from shoal.insight.stats import unserved, unserved_line
    from shoal.model import CrawlState
    from shoal.worker.workers import at_work

    progress = await frontier.progress(crawl.id)
    if progress.state not in (CrawlState.RUNNING, CrawlState.FINISHED):
        return f"{crawl.id} is {progress.state}: {command(f'resume {quote(crawl.id)}', places)} lets it go on"
    workers = await at_work(crawl.id, frontier=frontier)
    if (workers or fields.keys() & {"kind", "region"}) and (missing := unserved(progress, workers)):
        return unserved_line(missing, crawl, workers)
    return "" if workers else f"nobody works on {crawl.id} now: run the command that began it again"


class Room:
    """Waits while a crawl has max_pending tasks waiting, and says so."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        most: int,
        idle: Callable[[], Awaitable[str]],
        say: Callable[[str], None],
    ) -> None:
        self.say = say
        self.crawl = crawl.id
        self._frontier = frontier
        self._most = most
        self._idle = idle
        self._has_said = False
        self._said = ""

    async def wait(self) -> None:
        from shoal.crawl.adding import has_room

        while not await has_room(self.crawl, frontier=self._frontier, max_pending=self._most):
            if not self._has_said:
                self._has_said = True
                self.say(
                    f"{count(self._most)} tasks wait in {self.crawl} (max_pending): waiting before adding the rest"
                )
            # Said again when it changes: people may pause or cancel the crawl meanwhile.
            if (line := await self._idle()) and line != self._said:
                self.say(line)
            self._said = line
            await asyncio.sleep(FULL_SECONDS)


async def _put(
    requests: AsyncIterator[Request | None], *, intake: Intake, frontier: Frontier, room: Room, counting: Counting
) -> Added:
    from shoal.crawl.adding import Added, add_requests
    from shoal.errors import UsageError
    from shoal.worker.outages import until_reachable

    added = Added(crawl=room.crawl)
    try:
        while (batch := await _batch(requests)).requests or batch.refusal:
            if batch.requests:
                await until_reachable(room.wait, say=room.say)
                put = partial(add_requests, batch.requests, added, intake=intake, frontier=frontier)
                await until_reachable(put, say=room.say)
                counting.show(partial(_line, added))
            if batch.refusal:
                said = f"{batch.refusal}; of those before it, {_line(added)}: correct it and send all again"
                raise UsageError(said) from None
    except asyncio.CancelledError:
        room.say(f"interrupted; so far {_line(added)}: the same command adds the rest")
        raise
    return added


class Batch(NamedTuple):
    """Requests to put at once. `refusal`: the error in the line after them, if any."""

    requests: list[Request]
    refusal: UsageError | None = None


async def _batch(requests: AsyncIterator[Request | None]) -> Batch:
    """The next requests; fewer if the next line has not arrived yet. Empty: the end."""
    from shoal.crawl.adding import BATCH
    from shoal.errors import UsageError

    found: list[Request] = []
    try:
        async for request in requests:
            if request is not None:
                found.append(request)
            if len(found) >= BATCH or (request is None and found):
                break
    except UsageError as error:
        return Batch(found, error)
    return Batch(found)


def _given(urls: tuple[str, ...], file: str | None, lines: Lines) -> AsyncIterator[Request | None]:
    """The requests to add. Wrong URLs on the command line and in a file are refused before anything is added; on
    standard input they are only counted."""
    from shoal.urls.canonical import canonical

    named = [url if url == STDIN else canonical(url) for url in urls]
    if file is not None:
        for _ in lines.requests(_read(file), source=file):
            pass
    return _requests(named, file, lines)


async def _requests(urls: list[str], file: str | None, lines: Lines) -> AsyncIterator[Request | None]:
    """The requests, with None when the next line has not arrived yet."""
    from shoal.crawl.sources import arriving, in_groups

    for url in urls:
        if url != STDIN:
            yield lines.request(url)
            continue
        number = 1
        async for arrived in arriving(sys.stdin):
            for request in lines.requests(arrived, source="standard input", first=number):
                yield request
            number += len(arrived)
            yield None
    number = 1
    for group in [] if file is None else in_groups(_read(file)):
        for request in lines.requests(group, source=str(file), first=number):
            yield request
        number += len(group)
        yield None


def _read(file: str) -> Iterator[str]:
    from shoal.crawl.sources import open_lines, texts_in
    from shoal.errors import UsageError

    path = Path(file)
    if path.exists() and not path.is_file():
        raise UsageError(f"--file {file} is not a regular file: `shoal add CRAWL - < {file}` reads it as a stream")
    with open_lines(file, name=f"--file {file}") as opened:
        yield from texts_in(opened)


def _line(added: Added) -> str:
    return f"{added.crawl}: {count(added.new)} new, {count(added.duplicates)} known already"


def _show(added: Added, screen: Screen) -> None:
    from shoal.urls.scope import REASONS

    screen.line(_line(added))
    rows = [
        (count(number), reason, REASONS.get(reason, ""), repr(added.samples.get(reason, ""))[:LONGEST_SAMPLE])
        for reason, number in added.rejected.items()
    ]
    if rows:
        screen.table(("urls", "kept out", "", "for example"), rows, right=("urls",))
