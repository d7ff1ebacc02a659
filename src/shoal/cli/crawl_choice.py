"""Chooses the crawl of a command by an id, a spider's name, or none if there is only one; asks before a crawl that
workers run is discarded."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import click

from shoal.cli.display.lines import say_on
from shoal.cli.display.numbers import several
from shoal.crawl.opening import Places, frontier_at
from shoal.crawl.record import is_unfinished, with_refusals
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Heartbeat
from shoal.text.near_names import nearest
from shoal.worker.workers import at_work

LISTED = 8
Say = Callable[[str], None]


@asynccontextmanager
async def chosen_crawl(places: Places, name: str | None) -> AsyncIterator[tuple[Frontier, Crawl]]:
    """The frontier and the named crawl in it; closes the frontier afterwards."""
    async with frontier_at(places.frontier) as frontier:
        yield frontier, choose(await frontier.crawls(), name)


def usable(crawls: Sequence[Crawl], name: str | None = None, *, say: Say | None = None) -> list[Crawl]:
    """The crawls that this version can read; a line is said about each other one. It is an error if the crawl with the
    id `name`, or every crawl, is refused."""
    checked = with_refusals(crawls)
    refused = {crawl.id: crawl.refusal for crawl in checked if crawl.refusal}
    if name in refused or (refused and len(refused) == len(checked)):
        raise UsageError(refused[name] if name in refused else "; ".join(refused.values()))
    for line in refused.values():
        (say or say_on(sys.stderr))(line)
    return [crawl for crawl in checked if not crawl.refusal]


def choose(crawls: Sequence[Crawl], name: str | None, *, say: Say | None = None) -> Crawl:
    """The crawl with this id, or the newest of this spider; without a name the only unfinished one, else the newest.

    crawls: newest first. An unknown name is an error that lists the crawls."""
    crawls = usable(crawls, name, say=say)
    if not crawls:
        raise UsageError("there is no crawl yet: `shoal crawl URL` or `shoal run FILE` begins one")
    if name is None:
        return _only(crawls)
    for crawl in crawls:
        if crawl.id == name:
            return crawl
    for crawl in crawls:
        if crawl.spider == name:
            return crawl
    names = dict.fromkeys(word for crawl in crawls for word in (crawl.id, crawl.spider))
    near = nearest(name, names)
    meant = f"; did you mean {near}? There are" if near else "; there are"
    raise UsageError(f"there is no crawl {name!r}{meant} {_ids(crawls)}")


def choose_all(crawls: Sequence[Crawl], name: str | None, *, say: Say | None = None) -> list[Crawl]:
    """The named crawl in a list; without a name, all usable crawls."""
    return [choose(crawls, name, say=say)] if name is not None or not crawls else usable(crawls, say=say)


def no_archived_crawl(crawls: Sequence[str], wanted: str) -> str:
    """The message that an archive with these crawls has no crawl `wanted`."""
    return f"the archive has no crawl {wanted}; it has {', '.join(crawls[-LISTED:]) or 'nothing yet'}"


def _only(crawls: Sequence[Crawl]) -> Crawl:
    unfinished = [crawl for crawl in crawls if is_unfinished(crawl.state)]
    if len(unfinished) > 1:
        raise UsageError(f"several crawls are unfinished: name one of {_ids(unfinished)}")
    return (unfinished or crawls)[0]


def _ids(crawls: Sequence[Crawl]) -> str:
    more = f" and {len(crawls) - LISTED} more" if len(crawls) > LISTED else ""
    return ", ".join(crawl.id for crawl in crawls[:LISTED]) + more


@asynccontextmanager
async def deletion_named(crawl: Crawl, *, frontier: Frontier) -> AsyncIterator[None]:
    """Inside the block, the error for a crawl that was deleted meanwhile says so."""
    try:
        yield
    except UsageError:
        if crawl.id in [one.id for one in await frontier.crawls()]:
            raise
        raise UsageError(f"{crawl.id} was deleted during this run: what the run stored is kept") from None


NAMED = 4


async def ask_if_others_work_on(crawl: Crawl, *, frontier: Frontier, deed: str, yes: bool) -> None:
    """Ask before doing `deed` to a crawl that workers run now. Without a terminal it is refused; yes: do not ask."""
    workers = [] if yes else await at_work(crawl.id, frontier=frontier)
    if not workers:
        return
    said = f"{crawl.id} is run right now by {named(workers)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{said}: stop them, or {deed} it anyway with --yes")
    if not click.confirm(f"{said}. {deed.capitalize()} it?", err=True):
        raise UsageError(f"{crawl.id} is unchanged")


def named(workers: list[Heartbeat]) -> str:
    """The number and the names of workers, for people."""
    names = ", ".join(f"{beat.worker} on {beat.host}" for beat in workers[:NAMED])
    more = f" and {len(workers) - NAMED} more" if len(workers) > NAMED else ""
    return f"{several(len(workers), 'worker')} ({names}{more})"
