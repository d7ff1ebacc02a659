"""Crawls over HTTP: listed, looked at, paused, resumed, cancelled, given a priority, deleted."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.crawl.record import with_refusals
from shoal.duties.clearing import learns_from
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice
from shoal.model import Crawl, CrawlState
from shoal.run.steering import check_change, set_priority
from shoal.serve.answers import Refusal
from shoal.serve.operations import Call
from shoal.serve.paging import cursor, position
from shoal.serve.shapes import CrawlDetail, Crawls, CrawlSummary, PriorityGiven
from shoal.worker.workers import at_work


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
    """Where the list goes on after a crawl, also if that one is gone."""
    for index, crawl in enumerate(crawls):
        if crawl.id == name:
            return index + 1
    return next((index for index, crawl in enumerate(crawls) if crawl.created < created), len(crawls))


async def show_advice(call: Call) -> Advice:
    """What bounds a crawl, and what would help; measured between this call and one at least five seconds before it."""
    surveyor = call.parts.surveyor
    async with call.looking() as (frontier, crawl), call.parts.inbox.asking() as inbox:
        await surveyor.look(frontier, inbox)
    advice = surveyor.advice.get(crawl.id)
    if advice is None:
        raise Refusal(409, f"{crawl.id} ended long ago: there is nothing to advise")
    return advice


async def show_crawl(call: Call) -> CrawlDetail:
    """One crawl with everything that is counted."""
    async with call.looking() as (frontier, crawl):
        return await call.parts.board.detail(crawl, frontier)


async def prioritise_crawl(call: Call) -> CrawlSummary:
    """Change the priority of a crawl over others, from the next lease on."""
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
    stay. What takes longer than a request is done afterwards; nobody sees the crawl from the beginning on."""
    async with call.changing() as (frontier, crawl):
        if await at_work(crawl.id, frontier=frontier):
            raise Refusal(409, f"{crawl.id} is worked on: cancel it, wait for its workers to leave, then delete it")
        if learner := learns_from(with_refusals(await frontier.crawls())).get(crawl.id):
            raise Refusal(409, f"{learner} has just begun and still has to learn which URLs {crawl.id} has done")
        await frontier.delete_crawl(crawl.id)
    call.parts.board.forget(crawl.id)
