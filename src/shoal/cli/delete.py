"""`shoal delete`: removes crawls from the frontier; if asked, also their items, log and archived pages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import several, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, place_options
from shoal.errors import ShoalError, UsageError
from shoal.text.near_names import nearest

if TYPE_CHECKING:
    from shoal.archive.base import Archive
    from shoal.crawl.opening import Places, SharedResults
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl
    from shoal.store.base import Store

STEP_SECONDS = 1.0
# How often pages in flight are checked before their items and log are deleted.
CHECK_SECONDS, CHECKS = 0.1, 100
DOCUMENT = ("crawl", "state", "pages", "left", "dead", "bytes", "inbox", "items", "log", "captures", "bodies")


class AlsoDelete(msgspec.Struct, frozen=True, kw_only=True):
    """What to delete besides the crawl's data in the frontier."""

    items: bool = False
    log: bool = False
    pages: bool = False


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl and what is deleted with it; None: not asked for, or unknown because the crawl is half deleted."""

    crawl: str
    state: str = ""
    pages: int = 0
    left: int = 0
    dead: int = 0
    bytes: int | None = None
    inbox: int = 0
    items: int | None = None
    log: bool = False
    captures: int | None = None
    bodies: int | None = None

    @property
    def line(self) -> str:
        """What will be deleted, for people."""
        if self.bytes is None:
            return f"{self.crawl}: the rest of it in the frontier"
        parts = [
            f"{several(self.pages, 'page')}, {self.left:,} left, {several(self.dead, 'dead letter')},"
            f" about {size(self.bytes)} in the frontier"
        ]
        if self.inbox:
            parts.append(f"{several(self.inbox, 'entry')} in its inbox that nobody has taken")
        if self.items is not None:
            parts.append(f"{several(self.items, 'item')} that it wrote last, with their versions")
        if self.log:
            parts.append("its fetch log")
        if self.captures is not None:
            parts.append(f"{several(self.captures, 'archived page')} with {several(self.bodies or 0, 'body')}")
        return f"{self.crawl} ({self.state}): {'; '.join(parts)}"


@click.command(short_help="Remove crawls; if asked, their items, log and pages too.")
@click.argument("names", metavar="CRAWL…", nargs=-1, required=True)
@click.option("--items", is_flag=True, help="Also the items that the crawl wrote last, with all their versions.")
@click.option("--log", is_flag=True, help="Also its fetch log.")
@click.option("--pages", is_flag=True, help="Also its archived pages; bodies that other crawls need are kept.")
@click.option("--yes", is_flag=True, help="Do not ask, even if workers run a crawl now.")
@place_options(archive=True)
@json_with(*DOCUMENT)
def delete(names: tuple[str, ...], *, places: Places, as_json: bool, yes: bool, **also: bool) -> None:
    """Remove crawls from the frontier: their tasks, known URLs, dead letters and history. Items, fetch log and archived
    pages are kept unless you ask for them. Shows first what will be deleted, and asks.

    CRAWL is the id of a crawl, or a pattern of ids such as 'books-*'. A spider's crawls share its items: the items of a
    crawl are those that it wrote last. If the command is interrupted, run it again to delete the rest.

    \b
    Example: shoal delete books-1 'news-*' --log
    """
    from shoal.cli.loop import run

    run(_delete(names, AlsoDelete(**also), places=places, as_json=as_json, yes=yes))


async def _delete(names: Sequence[str], also: AlsoDelete, *, places: Places, as_json: bool, yes: bool) -> None:
    from shoal.cli.crawl_choice import ask_if_others_work_on
    from shoal.crawl.opening import frontier_at, shared_results
    from shoal.crawl.record import with_refusals

    screen = Screen()
    async with frontier_at(places.frontier) as frontier, shared_results() as results:
        rest = await frontier.half_deleted()
        crawls = [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.id not in rest]
        chosen = choose_many(names, [*(crawl.id for crawl in crawls), *rest])
        _check_needed(chosen, crawls, also)
        known = {crawl.id: crawl for crawl in crawls}
        deleter = Deleter(frontier, results, places=places, also=also, screen=screen)
        plan = [await deleter.plan(known[name]) if name in known else deleter.rest_of(name) for name in chosen]
        for deletion in plan:
            screen.say(deletion.line)
        _ask(plan, yes=yes)
        for name in chosen:
            if name in known and not known[name].refusal:
                await ask_if_others_work_on(known[name], frontier=frontier, deed="delete", yes=yes)
        for done, deletion in enumerate(plan):
            try:
                await deleter.carry_out(deletion, known.get(deletion.crawl))
            except ShoalError:
                if done:
                    screen.say(f"deleted so far: {', '.join(one.crawl for one in plan[:done])}")
                raise
    if as_json:
        screen.json(plan)
    else:
        screen.line(f"{several(len(plan), 'crawl')} deleted")


def choose_many(names: Sequence[str], crawls: Sequence[str]) -> list[str]:
    """The named crawls, each once, in the order of `crawls`. A name or pattern without a match is refused."""
    wanted: set[str] = set()
    for name in names:
        found = [name] if name in crawls else [one for one in crawls if fnmatchcase(one, name)]
        if not found:
            near = nearest(name, crawls)
            hint = f"; did you mean {near}?" if near else "; `shoal crawls` lists them"
            raise UsageError(f"there is no crawl {name!r}{hint}")
        wanted.update(found)
    return [one for one in crawls if one in wanted]


def _check_needed(chosen: Sequence[str], crawls: Sequence[Crawl], also: AlsoDelete) -> None:
    """Refuse what an unfinished crawl needs: log and archive of earlier crawls for conditional requests, or their known
    URLs while --skip-known copies them."""
    from shoal.duties.clearing import learns_from, needed_by

    others = [one for one in crawls if one.id not in chosen]
    needed, learns = needed_by(others), learns_from(others)
    for name in chosen:
        if name in learns:
            raise UsageError(
                f"{learns[name]} has just begun and still has to copy the known URLs of {name} (--skip-known): run it"
                " until it begins to fetch, or delete it as well"
            )
        if name in needed and (also.log or also.pages):
            raise UsageError(
                f"{needed[name]} is unfinished and needs the log and the archived pages of {name}: leave out --log and"
                " --pages, or delete it after that crawl"
            )


def _ask(plan: Sequence[Deletion], *, yes: bool) -> None:
    if yes:
        return
    what = several(len(plan), "crawl")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"nothing was deleted: nobody can be asked here; --yes deletes {what} as said above")
    if not click.confirm(f"Delete {what}? This cannot be undone", err=True):
        raise UsageError("nothing was deleted")


class Deleter:
    """Plans and carries out deletions."""

    def __init__(
        self, frontier: Frontier, results: SharedResults, *, places: Places, also: AlsoDelete, screen: Screen
    ) -> None:
        self._frontier = frontier
        self._results = results
        self._places = places
        self._also = also
        self._screen = screen

    async def plan(self, crawl: Crawl) -> Deletion:
        """What will be deleted with a crawl. Changes nothing."""
        from shoal.crawl.opening import inbox_at

        if crawl.refusal:
            self._check_alone(crawl.refusal)
            return Deletion(crawl=crawl.id)
        progress = await self._frontier.progress(crawl.id)
        async with inbox_at(self._places) as inbox:
            entries = (await inbox.count([crawl.id])).get(crawl.id, 0)
        found = Deletion(
            crawl=crawl.id,
            state=progress.state,
            pages=progress.ended,
            left=progress.left,
            dead=progress.dead,
            bytes=(await self._frontier.size(crawl.id)).bytes,
            inbox=entries,
            log=self._also.log,
        )
        if self._also.items or self._also.log:
            items = await self._count_items(crawl)
            found = msgspec.structs.replace(found, items=items if self._also.items else None)
        if self._also.pages and (archive := await self._archive(crawl)) is not None:
            from shoal.crawl.joining import check_own_archive

            with Counting.on(self._screen) as counting:
                counted = archive.delete_crawl(crawl.id, counts_only=True)
                pages = await counting.during(counted, f"searching the archived pages that only {crawl.id} needs")
            check_own_archive(crawl, self._places, captures=pages.captures)
            found = msgspec.structs.replace(found, captures=pages.captures, bodies=pages.bodies)
        return found

    def rest_of(self, name: str) -> Deletion:
        """The rest of a half deleted crawl. Where its items, log and pages are is no longer known."""
        self._check_alone(f"{name} is half deleted: where its items, log and pages are is no longer known")
        return Deletion(crawl=name)

    def _check_alone(self, why: str) -> None:
        if self._also != AlsoDelete():
            raise UsageError(f"{why}; leave out --items, --log and --pages to delete it")

    async def _count_items(self, crawl: Crawl) -> int:
        """The number of items that the crawl wrote last. Refuses a foreign store without any of them: after the
        deletion nobody would know where they are."""
        from shoal.crawl.joining import check_own_store, existing_store, stores_beside
        from shoal.store.base import ItemFilter

        store = await self._store(crawl)
        items = await store.count_items(ItemFilter(spider=crawl.spider, crawl=crawl.id))
        here = msgspec.structs.replace(self._places, store=existing_store(crawl, self._places))
        check_own_store(crawl, here, items=items)
        if others := stores_beside(crawl, here):
            self._screen.say(f"items of {crawl.id} are also in {', '.join(others)}: they are kept there")
        return items

    async def carry_out(self, deletion: Deletion, crawl: Crawl | None) -> None:
        """Delete it: the archived pages first, since an archive may refuse; the frontier's data last, since the crawl's
        record says where the rest is if this is interrupted."""
        name = deletion.crawl
        with Counting.on(self._screen) as counting:
            if crawl is not None and not crawl.refusal:
                await self._end(crawl)
                if deletion.captures is not None and (archive := await self._archive(crawl)) is not None:
                    await counting.during(archive.delete_crawl(name), f"deleting the archived pages of {name}")
                if deletion.items is not None:
                    store = await self._store(crawl)
                    await counting.during(store.delete_items(crawl.spider, name), f"deleting the items of {name}")
                if deletion.log:
                    store = await self._store(crawl)
                    await counting.during(store.delete_crawl(name), f"deleting the fetch log of {name}")
            await counting.during(self._from_frontier(name), f"deleting {name} from the frontier")

    async def _end(self, crawl: Crawl) -> None:
        """Cancel an unfinished crawl and wait for its pages in flight, if items, log or pages are deleted too. Else the
        first step of the deletion stops it: cancelling a large crawl in a file would block all other workers."""
        from shoal.crawl.record import is_unfinished
        from shoal.model import CrawlState

        if self._also == AlsoDelete() or not is_unfinished(crawl.state):
            return
        await self._frontier.set_state(crawl.id, CrawlState.CANCELLED, reason="it is being deleted")
        leased = 0
        for _ in range(CHECKS):
            if not (leased := (await self._frontier.progress(crawl.id)).leased):
                return
            await asyncio.sleep(CHECK_SECONDS)
        self._screen.say(f"{several(leased, 'page')} of {crawl.id} still in flight: what they store is kept")

    async def _from_frontier(self, name: str) -> None:
        from shoal.crawl.opening import inbox_at

        step = partial(self._frontier.delete_crawl, name, seconds=STEP_SECONDS)
        while not await step():
            pass
        async with inbox_at(self._places) as inbox:
            await inbox.delete(name)

    async def _store(self, crawl: Crawl) -> Store:
        from shoal.crawl.joining import existing_store

        return await self._results.store(existing_store(crawl, self._places), wait=self._screen.say)

    async def _archive(self, crawl: Crawl) -> Archive | None:
        from shoal.crawl.joining import archive_to_read

        url = archive_to_read(crawl, self._places)
        if url is None:
            self._screen.say(f"{crawl.id} has no archive: it kept no pages, or give --archive")
        return await self._results.archive(url, wait=self._screen.say, create=False)
