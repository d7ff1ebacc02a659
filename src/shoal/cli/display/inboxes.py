"""Messages about inboxes: where to push URLs, which entries wait, which command takes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.cli.display.next_commands import command, quote
from shoal.cli.display.numbers import several
from shoal.crawl.beginning import crawls_of, own_crawls
from shoal.crawl.inbox_readers import UnreadInbox, read_now, read_readers, unread_inboxes
from shoal.crawl.opening import Places, inbox_at, inbox_beside
from shoal.crawl.places import file_of
from shoal.crawl.record import is_unfinished, record_of
from shoal.errors import UsageError
from shoal.frontier.rules.keys import keys_dropped
from shoal.settings.table import INBOX_VARIABLE
from shoal.spider.spider import Spider, spider_name

if TYPE_CHECKING:
    from shoal.cli.process.job import Job
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl

Say = Callable[[str], None]

MOST_NAMED: Final = 8
FILE = "FILE"  # the placeholder for a spider without a crawl


def with_inbox(places: Places, folder: str | None, *, spiders: Sequence[type[Spider]]) -> Places:
    """The places with the folder of --inbox, which is created, as the spider's inbox. Refused if the frontier is a
    server, where no folder is read."""
    if not folder:
        return places
    given = INBOX_VARIABLE if os.environ.get(INBOX_VARIABLE) == folder else "--inbox"
    if file_of(places.frontier) is None:
        raise UsageError(
            f"{given} {folder}: a folder is read only if the frontier is a file; here programs push to shoal:inbox:"
            f"{spider_name(spiders[0])}: leave {given} out"
        )
    if len(spiders) > 1:
        names = ", ".join(spider.__name__ for spider in spiders)
        raise UsageError(
            f"{given} {folder} is the inbox of one spider, and the file has {names}: name one as FILE:NAME"
        )
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"{given} {folder} is not a folder")
    _make(folder)  # an error here comes before the crawl begins
    return msgspec.structs.replace(places, inboxes={spider_name(spiders[0]): folder})


def waits_line(crawl: Crawl, places: Places) -> str:
    """The message that a --stay run waits, and how to add URLs. Creates the inbox's folder."""
    push = fed_line(crawl.spider, places)
    add = command(f"add {quote(crawl.id)} URL", places)
    return f"{crawl.id} stays until you stop it: {push}, or `{add}`"


def fed_line(name: str, places: Places) -> str:
    """How to push URLs to a spider's inbox. Creates the folder, if the inbox is one."""
    place = inbox_beside(places).place(name)
    if file_of(places.frontier) is None:
        return f"push URLs to {place}"
    _make(place)
    return f"move files of URLs into {place}{os.sep}"


def _make(place: str) -> None:
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the inbox {place} cannot be created: {error.strerror}: --inbox FOLDER names another"
        ) from None


async def say_inboxes(crawls: Sequence[Crawl], *, places: Places, say: Say) -> None:
    """Say which of these crawls and their spiders have waiting inbox entries, with the command that takes them."""
    newest: dict[str, Crawl] = {}
    for crawl in crawls:
        newest.setdefault(crawl.spider, crawl)
        newest[crawl.id] = crawl
    async with inbox_at(places) as inbox:
        counts = await inbox.count(list(newest))
        for name, number in counts.items():
            found = UnreadInbox(name=name, place=inbox.place(name), entries=number, crawl=newest[name])
            say(unread_line(found, places=places))


async def say_old_inboxes(crawl: Crawl, job: Job, *, frontier: Frontier, say: Say) -> None:
    """Say which ended crawls of the spider's file have inbox entries, which this run does not take."""
    crawls = await crawls_of(job.spider, frontier=frontier)
    mine = own_crawls(crawls, reference=job.reference, places=job.places)
    ended = [one for one in mine if one.id != crawl.id and not is_unfinished(one.state)]
    async with inbox_at(job.places) as inbox:
        for name, number in (await inbox.count([one.id for one in ended])).items():
            old = next(one for one in ended if one.id == name)
            found = UnreadInbox(name=name, place=inbox.place(name), entries=number, crawl=old)
            say(unread_line(found, places=job.places))


async def say_unread(
    crawls: Sequence[Crawl], *, places: Places, frontier: Frontier | None, named: Sequence[str] = (), say: Say
) -> None:
    """Say which inboxes have entries that no process takes now.

    named: only these inboxes. frontier: None if its file does not exist yet."""
    readers = {} if frontier is None else await read_readers(frontier)
    folders = {name: reader.folder for name, reader in readers.items() if reader.folder}
    waiting = read_now(readers, now=time.time())
    async with inbox_at(msgspec.structs.replace(places, inboxes={**folders, **places.inboxes})) as inbox:
        found = await unread_inboxes(crawls, inbox=inbox, frontier=frontier, named=named, waiting=waiting)
        for one in found:
            say(unread_line(one, places=places))


def _unknown_line(found: UnreadInbox, entries: str) -> str:
    """The message about entries under an unknown name, with the nearest known name."""
    meant = f"did you mean {found.near!r}? " if found.near else ""
    read = (
        f"Read here: {', '.join(found.read[:MOST_NAMED])}{' and more' if len(found.read) > MOST_NAMED else ''}"
        if found.read
        else "No inbox is read here now: `shoal worker FILE` reads its spider's inbox"
    )
    return f"{entries} in {found.place}: {found.name!r} is neither a crawl nor a spider of this frontier: {meant}{read}"


def unread_line(found: UnreadInbox, *, places: Places) -> str:
    """The message about waiting entries, with the command that takes them."""
    entries, crawl = several(found.entries, "entry"), found.crawl
    if crawl is None:
        return _unknown_line(found, entries)
    spider = quote(record_of(crawl).spider or FILE) if crawl.settings else FILE
    if not found.is_of_spider and crawl.keys != "known":
        return f"{entries} in the inbox of {crawl.id}: {keys_dropped(crawl.id)}"
    if not found.is_of_spider:
        worker = command(f"worker {spider} --crawl {quote(crawl.id)} --burst", places)
        return f"{entries} in the inbox of {crawl.id}, which nobody has taken: {worker} takes them"
    its_own = found.place != inbox_beside(msgspec.structs.replace(places, inboxes={})).place(found.name)
    run = command(f"run {spider} --stay{f' --inbox {quote(found.place)}' if its_own else ''}", places)
    return (
        f"{entries} in the inbox of the spider {found.name} ({found.place}), which nobody has taken: {run} takes them"
    )
