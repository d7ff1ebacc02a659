"""`shoal warc`: writes archived pages to a WARC file, which standard tools read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, output_option, place_options
from shoal.errors import StorageError, UsageError

if TYPE_CHECKING:
    from shoal.archive.base import Archive
    from shoal.crawl.opening import Places

SUFFIXES = (".warc", ".warc.gz")


@click.command(short_help="Write a crawl's archived pages to a WARC file.")
@click.argument("crawl")
@output_option("A .warc.gz or .warc file.", required=True)
@place_options(store=False, exists=False, archive=True)
@json_with("crawl", "pages", "output")
def warc(crawl: str, *, output: str, places: Places, as_json: bool) -> None:
    """Write a crawl's archived pages to a WARC file.

    \b
    Example: shoal warc books-1 -o books.warc.gz
    """
    from shoal.cli.loop import run

    screen = Screen()
    number = run(_warc(crawl, Path(output), places=places, screen=screen))
    if as_json:
        screen.json({"crawl": crawl, "pages": number, "output": output})
        return
    screen.say(f"{several(number, 'page')} of {crawl} in {output}")


async def _warc(crawl: str, target: Path, *, places: Places, screen: Screen) -> int:
    from shoal.cli.crawl_choice import no_archived_crawl
    from shoal.cli.crawl_stores import with_archive
    from shoal.crawl.opening import archive_at

    if not target.name.endswith(SUFFIXES):
        raise UsageError(f"{target} does not have a WARC file's name: end it in {' or '.join(SUFFIXES)}")
    places = places if places.archive else await with_archive(places, crawl)
    async with archive_at(places.archive or "") as archive:
        known = await archive.crawls()
        if crawl not in known:
            raise UsageError(no_archived_crawl(known, crawl))
        # Written under another name first: the file is complete or absent.
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with part.open("xb") as file:
                number = await _copy(archive, crawl, file, name=target.name, screen=screen)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror or error}") from None
        finally:
            part.unlink(missing_ok=True)
        return number


async def _copy(archive: Archive, crawl: str, file: IO[bytes], *, name: str, screen: Screen) -> int:
    from shoal.results.warc import WarcFile

    records = WarcFile(file, name=name, crawl=crawl, compressed=name.endswith(".gz"))
    with Counting.on(screen) as counting:
        async for captures in archive.scan(crawl):
            for capture in captures:
                records.add(capture, await archive.body(capture.content_hash))
            counting.show(lambda: f"{crawl}: {several(records.pages, 'page')} written")
    return records.pages
