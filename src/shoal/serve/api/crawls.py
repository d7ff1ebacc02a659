"""Crawls over HTTP: listed, looked at, paused, resumed, cancelled, given a priority, deleted.

Crawls begun over HTTP: each is a process of its own, this one runs no spider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from shoal.crawl.record import record_of, with_refusals
from shoal.duties.clearing import learns_from
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice
from shoal.model import Crawl, CrawlState
from shoal.run.steering import check_change, set_priority
from shoal.serve.answers import Refusal, cursor, position
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import CrawlDetail, Crawls, CrawlSummary, PriorityGiven, StartCrawl, StartedCrawl
from shoal.serve.spiders import Child, StartRequest
from shoal.worker.workers import at_work

BEGIN_SECONDS = 20.0
LOOK_SECONDS = 0.1


async def list_crawls(call: Call) -> Crawls:
    """All crawls, newest first."""
    async with call.frontier() as frontier:
        crawls = await call.parts.board.crawls(frontier)
        first = 0
        if call.query.after is not None:
            created, name = position(call.query.after, tuple[float, str])
            first = _place_after(crawls, created, name)
        page = crawls[first : first + call.query.limit]
        more = crawls[first + call.query.limit :]
        rows = await call.parts.board.summaries(page, frontier)
    return Crawls(crawls=rows, next=cursor((page[-1].created, page[-1].id)) if more else None)


def _place_after(crawls: Sequence[Crawl], created: float, name: str) -> int:
    """The index after a crawl in the list, even if the crawl is gone."""
    for index, crawl in enumerate(crawls):
        if crawl.id == name:
            return index + 1
    return next((index for index, crawl in enumerate(crawls) if crawl.created < created), len(crawls))


async def show_advice(call: Call) -> Advice:
    """What bounds a crawl, and what would help; measured between this call and one at least five seconds earlier."""
    surveyor = call.parts.surveyor
    async with call.reading() as (frontier, crawl), call.parts.inbox.using() as inbox:
        await surveyor.look(frontier, inbox)
    advice = surveyor.advice.get(crawl.id)
    if advice is None:
        raise Refusal(409, f"{crawl.id} ended long ago: there is nothing to advise")
    return advice


async def show_crawl(call: Call) -> CrawlDetail:
    """One crawl with all its counts."""
    async with call.reading() as (frontier, crawl):
        return await call.parts.board.detail(crawl, frontier)


async def prioritise_crawl(call: Call) -> CrawlSummary:
    """Change the priority of a crawl, from the next lease on."""
    given: PriorityGiven = call.body
    async with call.changing() as (frontier, crawl):
        try:
            await set_priority(crawl, given.priority, frontier=frontier)
        except UsageError as error:
            raise Refusal(409, str(error)) from None
        return await _changed(call, crawl, frontier=frontier)


async def pause_crawl(call: Call) -> CrawlSummary:
    """Nothing new is fetched until the crawl is resumed; pages in flight are finished."""
    return await _set_state(call, CrawlState.PAUSED)


async def resume_crawl(call: Call) -> CrawlSummary:
    """A paused, stopped or cancelled crawl goes on as soon as a worker works on it."""
    return await _set_state(call, CrawlState.RUNNING)


async def cancel_crawl(call: Call) -> CrawlSummary:
    """Tasks that still wait are set aside; pages in flight are finished."""
    return await _set_state(call, CrawlState.CANCELLED)


async def _set_state(call: Call, state: CrawlState) -> CrawlSummary:
    async with call.changing() as (frontier, crawl):
        try:
            check_change(crawl, await frontier.progress(crawl.id), state)
        except UsageError as error:
            raise Refusal(409, str(error)) from None
        await frontier.set_state(crawl.id, state)
        return await _changed(call, crawl, frontier=frontier)


async def _changed(call: Call, crawl: Crawl, *, frontier: Frontier) -> CrawlSummary:
    """The crawl as it is after a change."""
    call.parts.board.expire(crawl.id)
    changed = next(one for one in await call.parts.board.crawls(frontier) if one.id == crawl.id)
    return await call.parts.board.summary(changed, frontier)


async def delete_crawl(call: Call) -> None:
    """Remove the crawl from the frontier, with its tasks, dead letters and history. Items, fetch log and archived pages
    stay. The crawl disappears at once; its records may be removed after the answer."""
    async with call.changing() as (frontier, crawl):
        if await at_work(crawl.id, frontier=frontier):
            raise Refusal(409, f"{crawl.id} is worked on: cancel it, wait for its workers to leave, then delete it")
        if learner := learns_from(with_refusals(await frontier.crawls())).get(crawl.id):
            raise Refusal(409, f"{learner} has just begun and still has to learn which URLs {crawl.id} has done")
        await frontier.delete_crawl(crawl.id)
    call.parts.board.forget(crawl.id)


async def start_crawl(call: Call) -> StartedCrawl:
    """Run a spider of the folder: begins a crawl, or goes on with the spider's unfinished one."""
    wanted: StartCrawl = call.body
    run = StartRequest(wanted.spider, wanted.settings, wanted.workers, wanted.fresh, wanted.arguments)
    return await _start(call, run)


async def rerun_crawl(call: Call) -> StartedCrawl:
    """Begin a new crawl of the same spider with the same arguments, and with the settings of the start if it was
    started here."""
    async with call.reading() as (frontier, crawl):
        state = (await frontier.progress(crawl.id)).state
    if state not in (CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED):
        raise Refusal(409, f"{crawl.id} is {state}: a crawl that is finished, stopped or cancelled can be run again")
    former = call.parts.spiders.started.get(crawl.id)
    if former is not None:
        return await _start(call, former.run._replace(fresh=False))
    record = record_of(crawl)
    try:
        name = call.parts.spiders.name_of(record.source.path)
    except UsageError as error:
        raise Refusal(409, str(error)) from None
    kind = record.spider.rpartition(":")[2] if ":" in record.spider else ""
    return await _start(call, StartRequest(f"{name}:{kind}" if kind else name, {}, arguments=record.arguments))


async def _start(call: Call, run: StartRequest) -> StartedCrawl:
    # Fails before anything is started if the frontier does not answer.
    async with call.frontier() as frontier:
        await call.parts.board.crawls(frontier)
    child = await asyncio.to_thread(call.parts.spiders.start, run)
    name = await _begun(child)
    call.parts.spiders.started[name] = child
    async with call.frontier() as frontier:
        crawls = await call.parts.board.crawls(frontier)
        crawl = next((one for one in crawls if one.id == name), None)
        if crawl is None:
            raise Refusal(409, f"{name} is gone already; {child.log} has the output of its process")
        call.parts.board.expire(name)
        summary = await call.parts.board.summary(crawl, frontier)
    return StartedCrawl(**msgspec.structs.asdict(summary), pid=child.pid, log=str(child.log))


async def _begun(child: Child) -> str:
    """Wait for the crawl that the process names; refuses with its last line if it ends before."""
    try:
        async with asyncio.timeout(BEGIN_SECONDS):
            while (name := child.crawl) is None:
                if child.has_ended and child.crawl is None:
                    raise Refusal(422, f"{child.run.spider}: {child.last_line}; {child.log} has all that it said")
                await asyncio.sleep(LOOK_SECONDS)
            return name
    except TimeoutError:
        line = f"{child.run.spider} has not begun within {BEGIN_SECONDS:g} s; it goes on, and {child.log} tells how"
        raise Refusal(503, line) from None
