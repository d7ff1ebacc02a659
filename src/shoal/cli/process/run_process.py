"""Runs a crawl from the command line: begins or resumes it, shows its progress, prints its summary."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from shoal.archive.base import Archive
from shoal.cli.crawl_choice import ask_if_others_work_on, deletion_named
from shoal.cli.crawl_stores import has_frontier, owners_line, owners_of, say_what_is_elsewhere
from shoal.cli.display.counting import counting_export
from shoal.cli.display.inboxes import say_old_inboxes, waits_line
from shoal.cli.display.lines import SpiderOutput
from shoal.cli.display.next_commands import begin_again
from shoal.cli.display.progress import Display
from shoal.cli.display.screen import Screen
from shoal.cli.display.summary import Summary, next_step, show_summary
from shoal.cli.main import INTERRUPTED
from shoal.cli.options import check_json_output
from shoal.cli.process.job import Job
from shoal.cli.process.run_again import (
    begins_anew,
    changes_of,
    ended_crawl,
    say_late_work,
    say_of_known,
    stopped_crawl_of,
)
from shoal.cli.process.run_end import RunResult, judged, sum_up
from shoal.cli.process.run_sinks import RunSinks, sink_faults
from shoal.cli.process.signals import Stopping
from shoal.crawl.beginning import begin, crawls_of, own_crawls, resumable_crawl
from shoal.crawl.code import differences
from shoal.crawl.inbox_readers import ReaderNotes
from shoal.crawl.joining import places_of_new, places_to_join, shares_store
from shoal.crawl.known_pages import compiled, learn_earlier, skip_stored, skipped_line
from shoal.crawl.opening import Places, Say, archive_of, frontier_at, store_at, waiting_for
from shoal.crawl.record import is_unfinished, owner_of, record_of
from shoal.crawl.sources import check_start
from shoal.duties.alerts.config import load_alerts
from shoal.errors import CrawlLost
from shoal.frontier.base import Frontier
from shoal.insight.stats import Snapshot, check_stages
from shoal.model import Crawl, CrawlState, Progress
from shoal.policy.failures import is_stopped, why_not_whole
from shoal.policy.limits import reached_by
from shoal.results.export import STDOUT, ExportRequest, check_targets, export
from shoal.run.coordinator import Coordinator
from shoal.run.intakes import intake_of
from shoal.run.running import run_crawl
from shoal.settings.table import CONFIG_FILE
from shoal.settings.values import parse_duration
from shoal.store.base import ItemFilter, Store
from shoal.text.errors import several
from shoal.text.secrets import masked
from shoal.worker.outages import SaidOnce, until_reachable


async def run_job(job: Job) -> int:
    """Run to the end, show the summary, and give the return code."""
    check_json_output(*job.output, as_json=job.as_json)
    if job.watched is not None and job.watched.has_begun:
        job = replace(job, fresh=False, anew=False)
    screen = Screen(results_to_stderr=STDOUT in (*job.output, *job.sinks))
    try:
        summary = await work(job, screen)
    except CrawlLost as error:
        raise CrawlLost(f"{error}; {begin_again(job.again, job.places)}") from None
    if job.as_json:
        screen.json(summary)
    else:
        step = next_step(summary, job.places, again=job.again)
        show_summary(summary, screen, places=job.places, more=[("next", step)])
    if summary.state is CrawlState.FINISHED:
        await say_late_work(summary.crawl, places=job.places, again=job.again, say=screen.say)
    return return_code(summary)


def return_code(summary: Summary) -> int:
    """The return code for this summary."""
    if summary.interrupted:
        return INTERRUPTED
    has_ended = summary.stayed or summary.state in (CrawlState.FINISHED, CrawlState.STOPPED)
    return int(summary.is_failure or not has_ended)


async def work(job: Job, screen: Screen) -> Summary:
    """Run to the end or until stopped, then write the output files."""
    beside = _dashboard(screen.say) if job.dashboard else contextlib.nullcontext
    check_start(job.spider, stays=job.stay or has_frontier(job.places))
    check_targets(job.output)
    if job.settings.retention_archive:
        from shoal.results.log_files import check_log_archive

        await check_log_archive(job.settings, store=job.places.store)
    compiled(job.skip_stored)
    # A mistake in the alerts is refused before anything begins.
    job = replace(job, alerts=load_alerts(Path(CONFIG_FILE)))
    say = SaidOnce(screen.say)
    sinks = await RunSinks.checked(job.sinks, output=job.output, as_json=job.as_json, say=say)
    # An unusable archive is refused before a file is created for the first crawl.
    trial = contextlib.nullcontext() if has_frontier(job.places) else _archive(job.places, say)
    async with trial, frontier_at(job.places.frontier, wait=waiting_for(job.places.frontier, say)) as frontier:
        for crawl in await until_reachable(lambda: crawls_of(job.spider, frontier=frontier), say=say):
            if crawl.refusal:
                say(crawl.refusal)
        await until_reachable(lambda: _check_start(job, frontier=frontier), say=say)
        if not job.fresh:
            ended = await until_reachable(lambda: stopped_crawl_of(job, frontier=frontier, screen=screen), say=say)
            if ended is None:
                ended = await until_reachable(lambda: ended_crawl(job, frontier=frontier, screen=screen), say=say)
            if ended is not None:
                return await _show_ended(ended, job, sinks, frontier=frontier, screen=screen)
        places = await until_reachable(lambda: _places(job, frontier=frontier, screen=screen), say=say)
        job = replace(job, places=places)
        check_stages(type(job.spider), job.settings, job.kinds, has_archive=places.archive is not None)
        wait, connections = waiting_for(places.store, say), job.settings.store_connections
        async with (
            # Opened here too, so that it is refused before a crawl begins.
            _archive(places, say),
            store_at(places.store, wait=wait, connections=connections) as store,
            beside(places),
        ):
            return await _work(job, screen, sinks, frontier=frontier, store=store, wait=say)


async def _check_start(job: Job, *, frontier: Frontier) -> None:
    """Refuse a spider without a start, unless it has --stay or a crawl to resume."""
    crawls = [] if job.fresh or job.stay else await crawls_of(job.spider, frontier=frontier)
    former = resumable_crawl(crawls, reference=job.reference, places=job.places, anew=begins_anew(job))
    check_start(job.spider, stays=job.stay or former is not None)


def _dashboard(say: Say) -> Callable[[Places], AbstractAsyncContextManager[None]]:
    """The dashboard as a context manager; refused at once if it cannot be served."""
    # Imported here: other runs do not pay for it.
    from shoal.cli.process.dashboard import check_extra, dashboard_beside

    check_extra()
    return partial(dashboard_beside, say=say)


def _archive(places: Places, say: Say) -> AbstractAsyncContextManager[Archive | None]:
    return archive_of(places, wait=waiting_for(places.archive or "", say))


async def _show_ended(crawl: Crawl, job: Job, sinks: RunSinks, *, frontier: Frontier, screen: Screen) -> Summary:
    """The summary of a finished crawl; writes the output files and sends waiting changes to sinks. Fetches nothing."""
    job = replace(job, places=places_to_join(crawl, job.places, adds_archive=True))
    async with store_at(job.places.store, wait=screen.say) as store:
        after = await until_reachable(lambda: frontier.progress(crawl.id), say=screen.say)
        if crawl.state is CrawlState.STOPPED and (limit := reached_by(crawl, after, now=time.time())):
            # An earlier limit, which no longer applies, may have stopped it.
            after = msgspec.structs.replace(after, reason=limit.why)
        before, seconds = 0, max(0.0, (crawl.finished or crawl.created) - crawl.created)
        if job.watched is not None and job.watched.has_begun:
            before, seconds = job.watched.pages_before, time.monotonic() - job.watched.began
        result = RunResult(
            before=Progress(state=CrawlState.RUNNING, done=before), after=after, seconds=seconds, interrupted=False
        )
        await sinks.begin(crawl.spider, outbox=store.outbox, say=screen.say)
        async with sinks.feeding(stop=asyncio.Event(), grace_seconds=job.settings.grace_seconds):
            await _mark_gone(crawl, after, job=job, store=store, say=screen.say)
        summary = await _conclude(crawl, result, job=job, frontier=frontier, store=store, screen=screen)
        return await _with_sinks(summary, sinks, job=job, store=store, say=screen.say)


async def _with_sinks(summary: Summary, sinks: RunSinks, *, job: Job, store: Store, say: Say) -> Summary:
    """The summary with the sinks. A sink with unsent changes makes the run a failure."""
    ends = await sinks.ends(summary.spider, outbox=store.outbox, say=say)
    faults = [] if summary.interrupted else sink_faults(ends, job.places)
    return msgspec.structs.replace(summary, sinks=ends, faults=[*summary.faults, *faults])


async def _places(job: Job, *, frontier: Frontier, screen: Screen) -> Places:
    """The places of the resumed crawl, or of a new one. Refuses to mix crawls."""
    crawls = await crawls_of(job.spider, frontier=frontier)
    mine = own_crawls(crawls, reference=job.reference, places=job.places)
    if job.fresh:
        for crawl in mine:
            if is_unfinished(crawl.state):
                await ask_if_others_work_on(crawl, frontier=frontier, deed="discard", yes=job.yes)
    elif former := resumable_crawl(crawls, reference=job.reference, places=job.places, anew=begins_anew(job)):
        return places_to_join(former, job.places, adds_archive=True)
    places = places_of_new(job.places)
    for crawl in crawls:
        if crawl not in mine and not crawl.refusal and shares_store(crawl, places):
            screen.say(
                f"{owner_of(crawl)}: in {masked(places.store)} its items and those of this crawl share the name"
                f' {crawl.spider!r}, so equal keys replace each other; another name (name = "…" in the class)'
                " separates them"
            )
            break
    return places


async def _work(job: Job, screen: Screen, sinks: RunSinks, *, frontier: Frontier, store: Store, wait: Say) -> Summary:
    crawl, before = await until_reachable(lambda: _begin(job, frontier=frontier, store=store), say=wait)
    with Display.on(screen) as display:
        if job.skip_known:
            await say_of_known(job, before, frontier=frontier, say=display.say)
        crawl = await learn_earlier(crawl, frontier=frontier, say=display.say)
        if job.watched is None or not job.watched.has_begun:
            _announce(crawl, before, job, display=display)
            if job.skip_stored:
                pattern, intake = compiled(job.skip_stored), intake_of(crawl)
                number = await skip_stored(
                    crawl, pattern, frontier=frontier, store=store, intake=intake, say=display.say
                )
                display.say(skipped_line(number))
            await say_old_inboxes(crawl, job, frontier=frontier, say=display.say)
            if job.stay:
                display.say(waits_line(crawl, job.places))
            await until_reachable(lambda: ReaderNotes(frontier).renew(job.places.inboxes), say=display.say)
        if before is not None and (names := differences(record_of(before).code, job.code)):
            display.say(f"the code of its spider has changed since the last run, the new code is used: {names}")
        say = SaidOnce(display.say)
        watch = ProgressWatch(display)
        coordinator = Coordinator(crawl, frontier=frontier, show=watch.show, say=say, waiting=say.waiting)
        await sinks.begin(crawl.spider, outbox=store.outbox, say=say)
        async with deletion_named(crawl, frontier=frontier):
            result = await _run(crawl, job, coordinator, sinks, watch=watch, store=store)
    summary = await _conclude(crawl, result, job=job, frontier=frontier, store=store, screen=screen)
    summary = msgspec.structs.replace(summary, resumed=before is not None)
    return await _with_sinks(summary, sinks, job=job, store=store, say=screen.say)


async def _conclude(
    crawl: Crawl, result: RunResult, *, job: Job, frontier: Frontier, store: Store, screen: Screen
) -> Summary:
    """Write the output files and the summary. Unreachable servers are waited for: the pages are done, and running the
    command again would wait too."""
    output = () if result.interrupted else job.output
    await _export(crawl, output, job=job, store=store, screen=screen)
    crawls = await until_reachable(frontier.crawls, say=screen.say)
    owners = await until_reachable(lambda: owners_of(crawl, result.after, crawls=crawls, store=store), say=screen.say)
    if owners.yielded and (owners.others or output) and (line := owners_line(owners, job.places)):
        screen.say(line)
    summary = sum_up(crawl, result, owners=owners, places=job.places)
    found = await judged(summary, crawl, result, job=job, frontier=frontier, say=screen.say)
    return msgspec.structs.replace(found, output=output)


async def _mark_gone(crawl: Crawl, after: Progress, *, job: Job, store: Store, say: Callable[[str], None]) -> None:
    """With `mark_gone`, mark the items that this crawl did not see, if it saw the whole site. Sinks are fed meanwhile:
    each mark is a change."""
    if not record_of(crawl).settings.mark_gone:
        return
    left_out = "--skip-stored" if job.skip_stored else "--skip-known" if record_of(crawl).skips_known else ""
    why = f"{left_out} skipped pages" if left_out else why_not_whole(after)
    if why:
        say(f"items that {crawl.id} did not see are not marked as gone: {why}")
        return
    mark = partial(store.mark_gone, crawl.spider, at=time.time(), unseen_since=crawl.created)
    say(f"{several(await until_reachable(mark, say=say), 'item')} that {crawl.id} did not see marked as gone")


async def _export(crawl: Crawl, output: Sequence[str], *, job: Job, store: Store, screen: Screen) -> None:
    """Write the crawl's items to the output files."""
    wanted = ExportRequest(which=ItemFilter(spider=crawl.spider, crawl=crawl.id))
    for target in output:
        with counting_export(screen, target) as show:
            write = partial(export, store, target, wanted=wanted, show=show)
            if target == STDOUT:
                # Written output cannot be taken back: only the start may wait for the server.
                await until_reachable(partial(store.count_items, wanted.which), say=screen.say)
                if job.watched is not None:
                    job.watched.box.write_output()
                await write()
            else:
                await until_reachable(write, say=screen.say)
        say_what_is_elsewhere(crawl, job.places, say=screen.say)


async def _begin(job: Job, *, frontier: Frontier, store: Store) -> tuple[Crawl, Crawl | None]:
    """The crawl, and its former record if an unfinished one is resumed."""
    return await begin(
        frontier,
        job.spider,
        settings=job.settings,
        reference=job.reference,
        places=job.places,
        store=store,
        scheduled="" if job.fresh else job.scheduled,
        code=job.code,
        skips_known=job.skip_known,
        anew=begins_anew(job),
        stays=job.stay,
        fresh=job.fresh,
    )


class ProgressWatch:
    """Shows the crawl, and stops the run after a worker paused the crawl because its handler keeps failing."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.stop: asyncio.Event | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._display.show(snapshot)
        if self.stop is not None and is_stopped(snapshot.progress):
            self.stop.set()


async def _run(
    crawl: Crawl, job: Job, coordinator: Coordinator, sinks: RunSinks, *, watch: ProgressWatch, store: Store
) -> RunResult:
    box = None if job.watched is None else job.watched.box
    grace_seconds = record_of(crawl).settings.grace_seconds
    stopping = Stopping(say=coordinator.say, grace_seconds=grace_seconds, box=box)
    watch.stop = stopping.stop
    before = await coordinator.progress()
    began = time.monotonic()
    if job.watched is not None:
        job.watched.box.begin_crawl(pages=before.ended)
    if job.watched is not None and job.watched.has_begun:
        # An earlier process of this run died: its pages and its time count.
        began, before = job.watched.began, msgspec.structs.replace(before, done=job.watched.pages_before, dead=0)
    # A spider's prints go to stderr: stdout is for results.
    output = SpiderOutput(sys.stderr)
    with stopping.listening(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        with contextlib.suppress(asyncio.CancelledError):
            async with sinks.feeding(stop=stopping.stop, grace_seconds=grace_seconds):
                await run_crawl(
                    crawl,
                    job.spider,
                    places=job.places,
                    store=store,
                    watched=job.watched,
                    alerts=job.alerts,
                    kinds=job.kinds,
                    stays=job.stay,
                    workers=job.workers,
                    coordinator=coordinator,
                    stop=stopping.stop,
                )
                ended = await coordinator.progress(stop=stopping.stop)
                await _mark_gone(crawl, ended, job=job, store=store, say=coordinator.say)
        seconds = time.monotonic() - began
        after = await coordinator.progress(stop=stopping.stop)
    interrupted = stopping.stop.is_set() and is_unfinished(after.state) and not is_stopped(after)
    # A --stay run that was stopped with no task left.
    stayed = interrupted and job.stay and coordinator.feeder.has_ended and not after.left
    interrupted = interrupted and not stayed
    return RunResult(before=before, after=after, seconds=seconds, interrupted=interrupted, stayed=stayed)


def _announce(crawl: Crawl, before: Crawl | None, job: Job, *, display: Display) -> None:
    display.say(f"{'resuming' if before else 'beginning'} {crawl.id} in {masked(job.places.frontier)}")
    if before is None:
        return
    had, has = record_of(before).results, record_of(crawl).results
    if had.store is not None and had.archive is None and has.archive is not None:
        display.say(f"raw pages are kept from now on, in {has.archive.shown}; earlier pages are not")
    _, changed = changes_of(before, job.spider, job.settings)
    if changed:
        display.say(f"its settings changed: {'; '.join(changed)}")
    if bool(crawl.dedup_ttl) != bool(parse_duration(job.settings.dedup_ttl)):
        display.say("dedup_ttl cannot be switched on or off in a crawl: it takes effect in a new crawl (--fresh)")
    if crawl.pace_scope != job.settings.pace_scope:
        display.say("pace_scope is fixed when a crawl begins: it takes effect in a new crawl (--fresh)")
