"""What people read of inboxes: where to push, what waits there, and what takes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.display.numbers import several
from shoal.cli.next_commands import command, quote
from shoal.errors import UsageError
from shoal.near_names import did_you_mean
from shoal.processes.crawl_record import is_unfinished, record_of
from shoal.processes.opening import Places, inbox_at, inbox_beside
from shoal.processes.result_places import file_of
from shoal.spider import Spider, spider_name

if TYPE_CHECKING:
    from shoal.model import Crawl

FILE = "FILE"  # of a spider that no crawl was begun from


def with_inbox(places: Places, folder: str | None, *, spiders: Sequence[type[Spider]]) -> Places:
    """The places with the folder of --inbox as that of the spider. Refuses a folder that nobody would watch."""
    import msgspec

    if not folder:
        return places
    if file_of(places.frontier) is None:
        raise UsageError(
            f"--inbox {folder}: a folder is watched where the frontier is a file; here programs push to shoal:inbox:"
            f"{spider_name(spiders[0])}: leave --inbox out"
        )
    if len(spiders) > 1:
        names = ", ".join(spider.__name__ for spider in spiders)
        raise UsageError(f"--inbox {folder} is the folder of one spider, and the file has {names}: name one, as FILE:NAME")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"--inbox {folder} is no folder")
    return msgspec.structs.replace(places, inboxes={spider_name(spiders[0]): folder})


def waits_line(crawl: Crawl, places: Places) -> str:
    """That a run stays, and how to feed it. The folder is made, so that there is one to put files into."""
    push = fed_line(crawl.spider, places)
    add = command(f"add {quote(crawl.id)} URL", places)
    return f"{crawl.id} stays until it is told to stop: {push}, or `{add}`"


def fed_line(name: str, places: Places) -> str:
    """How to feed the inbox of a spider. A folder is made, so that there is one to put files into."""
    place = inbox_beside(places).place(name)
    if file_of(places.frontier) is None:
        return f"push URLs to {place}"
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the inbox {place} cannot be made: {error.strerror}: --inbox FOLDER names another") from None
    return f"move files of URLs into {place}{os.sep}"
