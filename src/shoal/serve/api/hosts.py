"""Hosts over HTTP: listed, paced, blocked, boosted."""

from __future__ import annotations

from shoal.frontier.base import Frontier
from shoal.insight.bounds import BOOSTED, is_resting, why_so
from shoal.insight.stats import describe_interval, pool_of
from shoal.model import Crawl, LaneStatus, LaneUpdate
from shoal.policy.politeness import allowed_interval, lent_interval
from shoal.run.steering import check_pool, lane_given, set_pace
from shoal.serve.answers import Refusal, cursor, position
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import HostChange, Hosts, HostShown

BOOST = 4.0


async def list_hosts(call: Call) -> Hosts:
    """Hosts with waiting tasks or requests in flight, most waiting tasks first; `search` filters by name."""
    limit = call.query.limit
    skip = 0 if call.query.after is None else max(0, min(position(call.query.after, int), 2**40))
    async with call.reading() as (frontier, crawl):
        lanes = await frontier.lanes(crawl.id, limit=limit + 1, skip=skip, search=call.query.search.lower())
    shown = [host_shown(lane, crawl) for lane in lanes[:limit]]
    return Hosts(hosts=shown, next=cursor(skip + limit) if len(lanes) > limit else None)


async def change_host(call: Call) -> HostShown:
    """Change the pace of a host, block it or boost it, from the next request on."""
    change: HostChange = call.body
    given = [name for name in change.__struct_fields__ if getattr(change, name) is not None]
    if len(given) != 1:
        raise Refusal(422, 'say one thing: {"rate": "2/s"}, {"blocked": true} or {"boost": true}')
    lane = lane_given(call.request.path_params["host"])
    async with call.changing() as (frontier, crawl):
        check_pool(lane, crawl)
        await _change(change, crawl, lane, frontier=frontier)
        return host_shown(await _lane(crawl, lane, frontier=frontier), crawl)


async def _change(change: HostChange, crawl: Crawl, lane: str, *, frontier: Frontier) -> None:
    if change.rate is not None:
        await set_pace(crawl, lane, change.rate, frontier=frontier)
        return
    own = _own_pace(lane, crawl)
    if change.blocked is not None:
        await frontier.update_lane(crawl.id, lane, LaneUpdate(cap=0 if change.blocked else own.cap))
        return
    interval = lent_interval(allowed_interval(own.interval) / BOOST) if change.boost else own.interval
    why = BOOSTED if change.boost else ""
    await frontier.update_lane(crawl.id, lane, LaneUpdate(interval=interval, base_interval=interval, why=why))


async def _lane(crawl: Crawl, lane: str, *, frontier: Frontier) -> LaneStatus:
    """The lane as it is now. A lane without tasks is not listed: it has the pace that was just set."""
    found = await frontier.lanes(crawl.id, limit=500, search=lane)
    return next((one for one in found if one.lane == lane), _own_pace(lane, crawl))


def _own_pace(lane: str, crawl: Crawl) -> LaneStatus:
    """A new lane, with the pace of its crawl or pool."""
    fresh = LaneStatus(lane=lane, waiting=0, in_flight=0, interval=crawl.interval, cap=crawl.cap)
    pool = pool_of(fresh, crawl)
    interval, cap = (crawl.interval, crawl.cap) if pool is None else (pool.host_interval, pool.host_cap)
    return LaneStatus(lane=lane, waiting=0, in_flight=0, interval=interval, cap=cap, base_interval=interval)


def host_shown(lane: LaneStatus, crawl: Crawl) -> HostShown:
    """The API's view of a lane."""
    own = _own_pace(lane.lane, crawl)
    return HostShown(
        host=lane.lane,
        waiting=lane.waiting,
        in_flight=lane.in_flight,
        rate=describe_interval(lane.interval),
        interval=lane.interval,
        cap=lane.cap,
        starts_in=lane.starts_in,
        resting=is_resting(lane),
        why=why_so(lane, crawl),
        known=lane.known,
        has_rules=lane.has_rules,
        blocked=lane.cap == 0,
        boosted=lane.base_interval < own.interval,
    )
