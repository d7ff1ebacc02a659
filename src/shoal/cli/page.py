"""`shoal page`: shows an archived page."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from shoal.cli.display.counting import Counting
from shoal.cli.display.lines import shown
from shoal.cli.display.numbers import moment, moment_given, several, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_option, output_option, place_options
from shoal.errors import StorageError, UsageError

if TYPE_CHECKING:
    from shoal.archive.base import Archive, Capture
    from shoal.crawl.opening import Places

BINARY_BYTES = 4096


class CaptureQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Captures of a URL in one crawl or any, none after `until`; `every` one or the latest.

    picture: the screenshot instead of the body. key: the URL's key in a crawl with default settings."""

    url: str
    key: int
    crawl: str | None
    until: float | None
    every: bool
    picture: bool = False


@click.command(short_help="Show an archived page.")
@click.argument("url")
@click.option("--crawl", metavar="ID", help="Fetched in this crawl.  [default: in any]")
@click.option("--at", metavar="TIME", help="The page at that time: 2h or 7d ago, or a date.  [default: the latest]")
@click.option("--list", "as_list", is_flag=True, help="List all captures of the page instead.")
@click.option("--headers", is_flag=True, help="Show the status and the headers instead.")
@click.option("--screenshot", is_flag=True, help="Show the screenshot of a rendered page instead (PNG).")
@output_option("Write the page to a file.")
@place_options(exists=False, archive=True)
@json_option
def page(
    url: str,
    *,
    places: Places,
    crawl: str | None,
    at: str | None,
    as_list: bool,
    headers: bool,
    screenshot: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Show an archived page: its bytes, as the spider's handler saw them.

    \b
    Example: shoal page https://books.toscrape.com/ > page.html
    """
    from shoal.cli.loop import run
    from shoal.settings.table import Settings
    from shoal.urls.canonical import UrlRules, canonical

    screen = Screen()
    until = None if at is None else moment_given(at)
    link = UrlRules(Settings()).resolve(canonical(url))
    query = CaptureQuery(url=canonical(url), key=link.key, crawl=crawl, until=until, every=as_list, picture=screenshot)
    has_no_body = as_list or headers or as_json
    found, body = run(_find(query, places, screen=screen, with_body=not has_no_body or output is not None))
    if output is not None:
        _write(Path(output), body)
        screen.say(f"{size(len(body))} in {output}")
    if as_json:
        screen.json(msgspec.to_builtins(found if as_list else found[-1]))
    elif as_list:
        _list(found, screen)
    elif headers:
        _head(found[-1], screen)
    elif output is None:
        _print(found[-1], body)


async def _find(query: CaptureQuery, places: Places, *, screen: Screen, with_body: bool) -> tuple[list[Capture], bytes]:
    """The matching captures, oldest first, and the body of the latest."""
    from shoal.cli.crawl_stores import with_archive
    from shoal.cli.display.next_commands import command, quote
    from shoal.crawl.opening import archive_at

    if not places.archive:
        places = replace(places, archive=(await with_archive(places, query.crawl)).archive)
    async with archive_at(places.archive or "") as archive:
        found = [] if query.every or query.until is not None else await _by_log(query, places, archive=archive)
        found = found or await _by_scan(query, archive=archive, screen=screen)
        if not found:
            why = command(f"why {quote(query.url)}", places)
            raise UsageError(f"{query.url} is not in the archive; `{why}` shows what happened to it")
        if not with_body:
            return found, b""
        if query.picture and not found[-1].screenshot:
            raise UsageError(f"{query.url} was archived without a screenshot: request one with Render(screenshot=True)")
        return found, await archive.body(found[-1].screenshot if query.picture else found[-1].content_hash)


async def _by_log(query: CaptureQuery, places: Places, *, archive: Archive) -> list[Capture]:
    """Captures found through the fetch log, which names their objects: faster than a scan."""
    from shoal.cli.crawl_stores import has_frontier, stores_of_crawls
    from shoal.crawl.record import with_refusals
    from shoal.insight.why import known_key

    if not has_frontier(places):
        return []
    found = []
    # No message about an unreachable store: the scan finds the captures too.
    async with stores_of_crawls(places, say=lambda _: None) as (frontier, store_of):
        for crawl in with_refusals(await frontier.crawls()):
            if crawl.refusal:
                continue
            if query.crawl in (None, crawl.id) and (store := await store_of(crawl)) is not None:
                rows = await store.fetches(crawl.id, [await known_key(query.url, crawl, frontier=frontier)])
                for row in rows:
                    # Not compared by token: if the latest attempt got no response, the log names an earlier capture.
                    found += [one for one in await _captures(archive, row.archived) if one.key == row.key]
    return _in_order(found)


async def _captures(archive: Archive, name: str) -> list[Capture]:
    """The captures in an object of this archive; none if the crawl wrote it to another archive."""
    try:
        return await archive.captures(name) if name else []
    except StorageError:
        return []


async def _by_scan(query: CaptureQuery, *, archive: Archive, screen: Screen) -> list[Capture]:
    """The matching captures, by reading all captures of the archive."""
    found: list[Capture] = []
    read = 0
    with Counting.on(screen) as counting:
        for crawl in await archive.crawls():
            if query.crawl in (None, crawl):
                async for captures in archive.scan(crawl):
                    found += [one for one in captures if one.key == query.key or query.url in (one.url, one.final_url)]
                    read += len(captures)
                    counting.show(partial(_read_line, read))
    return _in_order(one for one in found if query.until is None or one.at <= query.until)


def _read_line(captures: int) -> str:
    return f"{several(captures, 'capture')} read"


def _in_order(captures: Iterable[Capture]) -> list[Capture]:
    return sorted(captures, key=lambda capture: (capture.at, capture.token))


def _list(captures: list[Capture], screen: Screen) -> None:
    columns = ("fetched", "crawl", "status", "size", "handler", "content")
    rows = [
        (moment(one.at), one.crawl, one.status, size(one.size), one.handler, one.content_hash[:12]) for one in captures
    ]
    screen.table(columns, rows, right=("size",))


def _head(capture: Capture, screen: Screen) -> None:
    screen.heading(f"{capture.status} {capture.final_url}")
    screen.pairs(capture.headers.items())


def _print(capture: Capture, body: bytes) -> None:
    """Write bytes to a pipe; to a terminal, text without control characters."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(body)
        return
    if b"\x00" in body[:BINARY_BYTES]:
        raise UsageError("the page is not text: write it to a file with -o FILE")
    from shoal.urls.charset import charset_of, text_of

    text = text_of(body, charset_of(body, capture.headers.get("content-type")))
    sys.stdout.write(shown(text) + "\n")


def _write(target: Path, body: bytes) -> None:
    try:
        target.write_bytes(body)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from None
