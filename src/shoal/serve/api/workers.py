"""Workers, exits and the history of a crawl over HTTP."""

from __future__ import annotations

from collections.abc import Collection

from shoal.crawl.code import SpiderCode, others
from shoal.crawl.record import code_known
from shoal.exits.figures import health_of
from shoal.exits.offered import is_offered, machine_of, name_on, offers_of
from shoal.model import ExitStatus
from shoal.serve.answers import cursor, position
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import Exits, ExitShown, History, OfferShown, Workers, WorkerShown
from shoal.worker.workers import Member, Presence, at_work, workers_of

MOST_EXITS = 100_000


async def show_history(call: Call) -> History:
    """The crawl over the last `seconds`, as evenly spaced points."""
    async with call.reading() as (frontier, crawl):
        points = await frontier.points(crawl.id, seconds=call.query.seconds, most=call.query.most)
    return History(points=points)


async def list_workers(call: Call) -> Workers:
    """The latest 200 workers of the crawl, including those that left or were lost."""
    async with call.reading() as (frontier, crawl):
        members, code = await workers_of(crawl.id, frontier=frontier), code_known(crawl)
    return Workers(workers=[_worker(member, code) for member in members])


def _worker(member: Member, code: SpiderCode) -> WorkerShown:
    beat = member.beat
    states = {Presence.WORKING: "at work", Presence.LEFT: "left", Presence.GONE: "lost"}
    return WorkerShown(
        worker=beat.worker,
        host=beat.host,
        pid=beat.pid,
        machine=beat.machine,
        state=states[member.presence],  # type: ignore[arg-type]  # the texts of the shape
        pages=beat.pages,
        rate=beat.pages_per_second,
        busy=beat.busy,
        slots=beat.slots,
        memory_bytes=beat.memory_bytes,
        load=beat.load,
        started=beat.started,
        seen=beat.seen,
        left=beat.left,
        version=beat.version,
        troubles=beat.troubles,
        kinds=beat.kinds,
        other_code=bool(others([beat], code)),
    )


async def list_exits(call: Call) -> Exits:
    """Every exit for every host that it was used for, by name."""
    limit = call.query.limit
    skip = 0 if call.query.after is None else max(0, min(position(call.query.after, int), MOST_EXITS))
    async with call.reading() as (frontier, crawl):
        found = (await frontier.exits(crawl.id, limit=skip + limit + 1))[skip:]
        offers = offers_of(await at_work(crawl.id, frontier=frontier))
    now = {name_on(one.machine, one.pool) for one in offers}
    return Exits(
        exits=[_exit(one, machine_of(one, crawl.pools), now) for one in found[:limit]],
        next=cursor(skip + limit) if len(found) > limit else None,
        offers=[OfferShown(**one._asdict()) for one in offers],
    )


def _exit(one: ExitStatus, machine: str, now: Collection[str]) -> ExitShown:
    return ExitShown(
        machine=machine,
        offered=is_offered(one, machine, now),
        exit=one.exit,
        host=one.lane,
        requests=one.requests,
        ok=one.ok,
        blocked=one.blocked,
        failed=one.failed,
        in_flight=one.in_flight,
        bytes=one.size,
        seconds=one.elapsed,
        cost=one.cost,
        state=health_of(one),
        rests_for=max(one.rests_for, one.parked_for),
    )
