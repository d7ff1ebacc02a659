"""`shoal page`: gives back an archived page."""

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

BINARY_LOOK = 4096


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which captures are wanted: of this URL, in this crawl or any, none after `until`; `every` one or the latest.
    `picture`: the screenshot in place of the body. `key` is the URL's key in a crawl with default settings."""

    url: str
    key: int
    crawl: str | None
    until: float | None
    every: bool
    picture: bool = False


@click.command(short_help="Give back an archived page.")
@click.argument("url")
@click.option("--crawl", metavar="ID", help="As fetched in this crawl.  [default: in any]")
@click.option("--at", metavar="TIME", help="As it was at that time: 2h or 7d ago, or a date.  [default: the latest]")
@click.option("--list", "as_list", is_flag=True, help="List all captures of the page instead.")
@click.option("--headers", is_flag=True, help="Show the status and the headers instead.")
@click.option("--screenshot", is_flag=True, help="Give the picture of a rendered page instead (PNG).")
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
    """Give back an archived page: its bytes, as the spider's handler saw them.

    \b
    Example: shoal page https://books.toscrape.com/ > page.html
    """
    from shoal.cli.loop import run
    from shoal.settings.table import Settings
    from shoal.urls.canonical import UrlRules, canonical

    screen = Screen()
    until = None if at is None else moment_given(at)
    link = UrlRules(Settings()).resolve(canonical(url))
    wanted = Wanted(url=canonical(url), key=link.key, crawl=crawl, until=until, every=as_list, picture=screenshot)
    looks_only = as_list or headers or as_json
    found, body = run(_find(wanted, places, screen=screen, with_body=not looks_only or output is not None))
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


async def _find(wanted: Wanted, places: Places, *, screen: Screen, with_body: bool) -> tuple[list[Capture], bytes]:
    """The captures that are wanted, oldest first, and the body of the latest."""
    from shoal.cli.display.next_commands import command, quote
    from shoal.cli.stores import with_archive
    from shoal.crawl.opening import archive_at

    if not places.archive:
        places = replace(places, archive=(await with_archive(places, wanted.crawl)).archive)
    async with archive_at(places.archive or "") as archive:
        found = [] if wanted.every or wanted.until is not None else await _by_log(wanted, places, archive=archive)
        found = found or await _by_scan(wanted, archive=archive, screen=screen)
        if not found:
            why = command(f"why {quote(wanted.url)}", places)
            raise UsageError(f"{wanted.url} is not in the archive; `{why}` tells what became of it")
        if not with_body:
            return found, b""
        if wanted.picture and not found[-1].screenshot:
            raise UsageError(
                f"{wanted.url} was archived without a screenshot: ask for one with Render(screenshot=True)"
            )
        return found, await archive.body(found[-1].screenshot if wanted.picture else found[-1].content_hash)


async def _by_log(wanted: Wanted, places: Places, *, archive: Archive) -> list[Capture]:
    """Captures by way of the fetch log, which names the object with a page's capture: faster than a scan."""
    from shoal.cli.stores import has_frontier, stores_of_crawls
    from shoal.crawl.record import with_refusals
    from shoal.insight.why import known_key

    if not has_frontier(places):
        return []
    found = []
    # Nothing is said of a store that is out of reach: the scan finds the captures as well.
    async with stores_of_crawls(places, say=_silent) as (frontier, store_of):
        for crawl in with_refusals(await frontier.crawls()):
            if crawl.refusal:
                continue
            if wanted.crawl in (None, crawl.id) and (store := await store_of(crawl)) is not None:
                rows = await store.fetches(crawl.id, [await known_key(wanted.url, crawl, frontier=frontier)])
                for row in rows:
                    # Not by its token: if the latest attempt got no answer, the log names an earlier capture.
                    found += [one for one in await _captures(archive, row.archived) if one.key == row.key]
    return _in_order(found)


def _silent(line: str) -> None:
    """Says nothing."""


async def _captures(archive: Archive, name: str) -> list[Capture]:
    """The captures in an object of this archive; none if the crawl wrote it to another archive."""
    try:
        return await archive.captures(name) if name else []
    except StorageError:
        return []


async def _by_scan(wanted: Wanted, *, archive: Archive, screen: Screen) -> list[Capture]:
    """The wanted captures among all captures of the archive."""
    found: list[Capture] = []
    looked = 0
    with Counting.on(screen) as counting:
        for crawl in await archive.crawls():
            if wanted.crawl in (None, crawl):
                async for captures in archive.scan(crawl):
                    found += [
                        one for one in captures if one.key == wanted.key or wanted.url in (one.url, one.final_url)
                    ]
                    looked += len(captures)
                    counting.show(partial(_looked, looked))
    return _in_order(one for one in found if wanted.until is None or one.at <= wanted.until)


def _looked(captures: int) -> str:
    return f"looked at {several(captures, 'capture')}"


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
    if b"\x00" in body[:BINARY_LOOK]:
        raise UsageError("the page is not text: write it to a file with -o FILE")
    from shoal.urls.charset import charset_of, text_of

    text = text_of(body, charset_of(body, capture.headers.get("content-type")))
    sys.stdout.write(shown(text) + "\n")


def _write(target: Path, body: bytes) -> None:
    try:
        target.write_bytes(body)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from None
