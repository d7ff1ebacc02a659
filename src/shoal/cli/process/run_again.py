"""A run of a spider whose newest crawl is finished or stopped: decides whether it is resumed, shown or begun anew."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli.display.inboxes import say_inboxes
from shoal.cli.display.next_commands import OWN_SPIDERS, command, quote, run_again
from shoal.cli.display.numbers import duration, moment, several
from shoal.crawl.beginning import crawl_of_run, crawls_of, own_crawls, resumable_crawl, unfinished_crawl
from shoal.crawl.code import differences
from shoal.crawl.feeder import REVIVER
from shoal.crawl.joining import places_to_join
from shoal.crawl.known_pages import earlier_crawls, missing_line
from shoal.crawl.opening import Places, frontier_at, inbox_at
from shoal.crawl.record import code_known, is_unfinished, record_of
from shoal.crawl.sources import start_mark
from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.model import Crawl, CrawlState
from shoal.policy.limits import limits_of, raised, reached_by
from shoal.settings.table import Settings
from shoal.spider.spider import Spider
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.cli.display.screen import Screen
    from shoal.cli.process.job import Job


async def stopped_crawl_of(job: Job, *, frontier: Frontier, screen: Screen) -> Crawl | None:
    """The crawl to resume, if a limit would stop it at once: it stays stopped and is only shown. None: the run resumes
    or begins a crawl."""
    crawls = await crawls_of(job.spider, frontier=frontier)
    former = resumable_crawl(crawls, reference=job.reference, places=job.places, anew=begins_anew(job))
    if former is None:
        return None
    if former.state is CrawlState.STOPPED and job.watched is not None and job.watched.has_begun:
        # This same run was stopped, and its process died afterwards: only the end is left to do.
        return former
    limits = limits_of(job.settings, now=time.time(), former=former)
    progress = await frontier.progress(former.id)
    limited = msgspec.structs.replace(former, limits=limits)
    limit = reached_by(limited, progress, now=time.time())
    if limit is None:
        return None
    await frontier.set_state(former.id, CrawlState.STOPPED, reason=limit.why)
    if begins_anew(job):
        return None
    new = command(f"{job.again} --again", job.places) if job.again else "the same command with --again"
    goes_on = run_again(former, job.places, **raised(limited, progress))
    line = f"{former.id} is stopped: {limit.why}, nothing is fetched"
    screen.say(f"{line}: {goes_on} lets it go on, {new} begins a new one")
    return msgspec.structs.replace(limited, state=CrawlState.STOPPED, finished=former.finished or time.time())


def begins_anew(job: Job) -> bool:
    """Whether a stopped crawl is not resumed: each run of a schedule has its own crawl."""
    return job.anew or bool(job.scheduled)


Say = Callable[[str], None]


async def ended_crawl(job: Job, *, frontier: Frontier, screen: Screen) -> Crawl | None:
    """The spider's newest crawl, if it is finished and only shown. None: the run resumes it or begins a new one."""
    if job.scheduled:
        made = crawl_of_run(await crawls_of(job.spider, frontier=frontier), job.scheduled)
        if made is not None and not is_unfinished(made.state):
            # An earlier process of this run has ended it.
            return made
    last = await last_crawl(job.spider, reference=job.reference, places=job.places, frontier=frontier)
    if last is None or (last.state is CrawlState.STOPPED and not begins_anew(job)):
        return None
    if last.state is not CrawlState.FINISHED:
        resume = command(f"resume {quote(last.id)}", job.places)
        screen.say(f"{last.id} is {last.state}: a new crawl begins; {resume} lets the old one go on")
        return None
    ends = await open_ends(last, frontier=frontier, places=job.places, anew=job.anew)
    ends += ["this run has --stay"] if job.stay and not job.anew and last.keys == "known" else []
    if ends:
        # First: refused if the crawl has forgotten its URLs.
        await frontier.set_feeding(last.id, REVIVER, seconds=FEEDER_SECONDS)
        screen.say(f"{last.id} was finished, but {' and '.join(ends)}: it goes on")
        return None
    if job.watched is not None and job.watched.has_begun:
        # This same run finished it, and its process died afterwards: only the end is left to do.
        return last
    if job.anew or job.stay or is_another_start(last, job.spider, reference=job.reference):
        return None
    try:
        places_to_join(last, job.places, adds_archive=True)
    except UsageError as error:
        raise UsageError(f"{last.id} is finished, and {error}; --again begins a new crawl") from None
    line = finished_line(last, again=job.again, places=job.places, changes=_changes_for(last, job))
    if confirm_new_crawl(line):
        return None
    screen.say(line)
    await say_inboxes([last], places=job.places, say=screen.say)
    return last


async def last_crawl(spider: Spider, *, reference: str, places: Places, frontier: Frontier) -> Crawl | None:
    """The newest crawl of the spider's file, if all have ended; an unfinished one is resumed."""
    crawls = await crawls_of(spider, frontier=frontier)
    if unfinished_crawl(crawls, reference=reference, places=places) is not None:
        return None
    return next(iter(own_crawls(crawls, reference=reference, places=places)), None)


async def open_ends(crawl: Crawl, *, frontier: Frontier, places: Places, anew: bool) -> list[str]:
    """Why a finished crawl must continue, a clause each; empty: it stays finished. Inbox entries do not count with
    --again."""
    found = []
    if (await frontier.progress(crawl.id)).feeders_lost:
        found.append("its start was not fed to its end")
    if anew:
        return found
    async with inbox_at(places) as inbox:
        if waiting := (await inbox.count([crawl.id])).get(crawl.id):
            found.append(f"its inbox has {several(waiting, 'entry')}")
    return found


def is_another_start(crawl: Crawl, spider: Spider, *, reference: str) -> bool:
    """Whether `shoal crawl` was given other URLs than this crawl: then it is another crawl of the site."""
    return reference.startswith(OWN_SPIDERS) and bool(changes_of(crawl, spider, Settings())[0])


def changes_of(crawl: Crawl, spider: Spider, settings: Settings) -> tuple[str, list[str]]:
    """What changed since the last run: the start, if known, and each setting."""
    record = record_of(crawl)
    mark = start_mark(spider)
    then, now = msgspec.structs.asdict(record.settings), msgspec.structs.asdict(settings)
    changed = [
        f"{name} {masked(repr(then[name]))} is now {masked(repr(value))}"
        for name, value in now.items()
        if then[name] != value
    ]
    return "its start has changed" if mark and record.start and mark != record.start else "", changed


def _changes_for(last: Crawl, job: Job) -> tuple[str, list[str]]:
    """The same, with changes of the spider's code."""
    start, changed = changes_of(last, job.spider, job.settings)
    names = differences(code_known(last), job.code)
    return start, [*([f"the code of its spider has changed: {names}"] if names else []), *changed]


def finished_line(crawl: Crawl, *, again: str, places: Places, changes: tuple[str, Sequence[str]]) -> str:
    """The message that a crawl is finished: since when, what changed since, the command for a new one."""
    start, settings = changes
    since = "" if crawl.finished is None else f" since {moment(crawl.finished)}"
    ago = "" if crawl.finished is None else f", {duration(max(0.0, time.time() - crawl.finished))} ago"
    changed = "; ".join([*([start] if start else []), *settings])
    new = command(f"{again} --again", places) if again else "the same command with --again"
    return (
        f"{crawl.id} is finished{since}{ago}, nothing is fetched{f' ({changed})' if changed else ''}:"
        f" {new} begins a new crawl, for instance after a change of the spider"
    )


def confirm_new_crawl(line: str) -> bool:
    """Ask whether to begin a new crawl; without a terminal: no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"{line}. Begin one now?", default=False, err=True)


async def say_late_work(name: str, *, places: Places, again: str, say: Say) -> None:
    """After the end of a crawl, say which tasks and inbox entries arrived since. An unreachable server is ignored."""
    with contextlib.suppress(ShoalError):
        async with frontier_at(places.frontier) as frontier:
            crawl = next((one for one in await frontier.crawls() if one.id == name), None)
            if crawl is None:
                return
            progress = await frontier.progress(name)
        if is_unfinished(progress.state) and progress.left:
            run = command(again, places) if again else "the same command"
            say(f"{several(progress.left, 'task')} were added to {name} after its end: {run} does them")
        await say_inboxes([crawl], places=places, say=say)


async def say_of_known(job: Job, before: Crawl | None, *, frontier: Frontier, say: Say) -> None:
    """Say what --skip-known cannot do here."""
    if before is not None:
        if not record_of(before).skips_known:
            say(f"{before.id} is resumed unchanged: --skip-known is for a new crawl (--again, --fresh)")
        return
    crawls = await crawls_of(job.spider, frontier=frontier)
    earlier = earlier_crawls(own_crawls(crawls, reference=job.reference, places=job.places), job.settings)
    if earlier.missing:
        say(missing_line(earlier.missing))
    elif not earlier.known_from:
        say("--skip-known: there is no earlier crawl of this spider here: everything is fetched")
