"""Crawls begun over HTTP: each is a process of its own, this one runs no spider."""

from __future__ import annotations

import asyncio

import msgspec

from shoal.crawl.record import record_of
from shoal.errors import UsageError
from shoal.model import CrawlState
from shoal.serve.answers import Refusal
from shoal.serve.operations import Call
from shoal.serve.shapes import StartCrawl, StartedCrawl
from shoal.serve.starting import Child, Run

BEGIN_SECONDS = 20.0
LOOK_SECONDS = 0.1


async def start_crawl(call: Call) -> StartedCrawl:
    """Run a spider of the folder: begins a crawl, or goes on with the spider's unfinished one."""
    wanted: StartCrawl = call.body
    run = Run(wanted.spider, wanted.settings, wanted.workers, wanted.fresh, wanted.arguments)
    return await _start(call, run)


async def rerun_crawl(call: Call) -> StartedCrawl:
    """Begin a new crawl of the same spider with the same arguments, and with the settings that the crawl was started
    with here."""
    async with call.looking() as (frontier, crawl):
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
    return await _start(call, Run(f"{name}:{kind}" if kind else name, {}, arguments=record.arguments))


async def _start(call: Call, run: Run) -> StartedCrawl:
    # Nothing is started for a frontier that does not answer.
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
    """The crawl that the process works on, as soon as it says so; its own line if it fails before."""
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
