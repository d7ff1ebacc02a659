"""What limits a crawl right now, and why one of its lanes rests, is slow or waits for other crawls: a line each, never
more certain than the program is. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from shoal.crawl.record import record_of
from shoal.exits.figures import clock_time
from shoal.exits.pools import region_in
from shoal.exits.troubles import LOGIN_FAILED, LOGIN_REFUSED
from shoal.fetch.descriptors import FEWER_PAGES, is_shortage
from shoal.frontier.rules.constants import SAME_INTERVAL
from shoal.insight.stats import (
    describe_interval,
    exits_back,
    may_start_in,
    pool_of,
    seconds_left,
    spent_budget,
    unserved,
    unserved_line,
    with_exits,
    with_others,
)
from shoal.model import VIA, Crawl, CrawlState, Heartbeat, Held, LaneStatus, Pool, Progress
from shoal.policy.politeness import lent_interval
from shoal.text.errors import several
from shoal.worker.outages import is_outage

BUSY_SHARE: Final = 0.7
LOADED: Final = 0.85
LONGEST_CRAWL_DELAY: Final = 300.0
QUIET_SECONDS: Final = 4.0
NAMES_SHOWN: Final = 3
BLOCKED: Final = "blocked by an operator"
PACE_CHANGED: Final = "its pace was changed by an operator"
BOOSTED: Final = "boosted by an operator"
# A lane rests if its next start is later than both: seconds, and intervals of the lane.
REST_SECONDS: Final = 2.0
REST_INTERVALS: Final = 2.0


def named(held: Held) -> str:
    """The crawl that holds a lane back, and the number of others."""
    return f"{held.crawl} and {several(held.more, 'other crawl')}" if held.more else held.crawl


def held_line(held: Held) -> str:
    """Why a lane waits for other crawls, or goes slower for them."""
    who = named(held)
    match held.by:
        case "rest":
            return f"the host asked {who} to wait; rests until {clock_time(time.time() + held.seconds)}"
        case "rules":
            return f"{who} fetches its robots.txt"
        case "cap":
            return f"with those of {who} it has as many requests in flight as it may"
        case "pace":
            return f"slower than asked for: {who} has it at {describe_interval(held.interval)}"
        case "turn":
            return f"takes turns with {who}"


class CrawlReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a crawl at one moment.

    `rules_version` and `crawl_delay` come from the robots.txt of `paced_lane`. `quiet_seconds`: how long no worker has
    sent a heartbeat; `waiting`: what this process waits for. `beside`: the crawls that use slots of the same
    processes."""

    crawl: Crawl
    progress: Progress
    lanes: Sequence[LaneStatus] = ()
    workers: Sequence[Heartbeat] = ()
    rules_version: int = 0
    crawl_delay: float | None = None
    quiet_seconds: float = 0.0
    waiting: str = ""
    beside: Sequence[str] = ()


class AskedPace(NamedTuple):
    """The pace that was asked for, and the words that say what changes it."""

    interval: float
    change: str


def bound_of(reading: CrawlReading) -> str:
    """What limits the crawl."""
    progress, workers = reading.progress, reading.workers
    if progress.state is CrawlState.PAUSED:
        why = spent_budget(reading.crawl, progress) or progress.reason
        return f"paused: {why}" if why else "paused by an operator; `shoal resume` lets it go on"
    if progress.state is CrawlState.STOPPED and progress.reason:
        return f"{progress.state}: {progress.reason}"
    if progress.state is not CrawlState.RUNNING:
        return str(progress.state)
    if progress.left == 0:
        return _source_of(reading.crawl) if progress.feeding else "finished"
    if not workers:
        return "workers: none is at work"
    lacking = unserved(progress, workers)
    if lacking and sum(one.waiting for one in lacking) == progress.left:
        return f"workers: {unserved_line(lacking, reading.crawl, workers)}"
    if reading.quiet_seconds > QUIET_SECONDS:
        return _quiet(reading)
    if outage := _trouble(workers, is_outage) or _silent(workers) or _trouble(workers, _is_lacking):
        return outage
    return _rest(reading) or _cpu(workers) or _pace(reading) or _answers(reading)


def _source_of(crawl: Crawl) -> str:
    """What a crawl without tasks waits for."""
    stays = crawl.settings and record_of(crawl).stays
    return "waiting for URLs from outside" if stays else "waiting for a source"


def paced_lane(lanes: Iterable[LaneStatus], crawl: Crawl) -> LaneStatus | None:
    """The lane that needs the longest time at its pace."""
    waiting = [lane for lane in lanes if lane.waiting]
    return max(waiting, key=lambda lane: seconds_left(with_exits(lane, crawl)), default=None)


def is_repaced(lane: LaneStatus, crawl: Crawl) -> bool:
    """Whether the lane's own pace differs from the pace that was asked for."""
    return abs(lane.base_interval - _asked(lane, crawl).interval) > SAME_INTERVAL


def _quiet(reading: CrawlReading) -> str:
    quiet = f"no heartbeat from any worker for {reading.quiet_seconds:.0f} s"
    if reading.waiting:
        return f"{quiet}: {reading.waiting}"
    return f"{quiet}: they cannot reach the frontier, or a handler blocks them"


def _silent(workers: Sequence[Heartbeat]) -> str:
    """The line about a busy worker that is silent while others are not."""
    latest = max(worker.seen for worker in workers)
    slow = min(workers, key=lambda worker: worker.seen if worker.busy else latest)
    if latest - slow.seen <= QUIET_SECONDS or not slow.busy:
        return ""
    quiet = f"no heartbeat from worker {slow.worker} for {latest - slow.seen:.0f} s"
    return f"{quiet}: it cannot reach the frontier, or a handler blocks it"


def _trouble(workers: Sequence[Heartbeat], is_meant: Callable[[str], bool]) -> str:
    """The first trouble of this kind, and how many workers report one."""
    found = [line for worker in workers for line in worker.troubles if is_meant(line)]
    if not found:
        return ""
    waits = sum(any(is_meant(line) for line in worker.troubles) for worker in workers)
    return found[0] if waits == len(workers) else f"{found[0]} ({waits} of {len(workers)} workers)"


def _is_lacking(line: str) -> bool:
    return is_shortage(line) and not line.endswith(FEWER_PAGES)


def _rest(reading: CrawlReading) -> str:
    """The line if every lane with work rests, or every exit of the slowest lane."""
    crawl, waiting = reading.crawl, [lane for lane in reading.lanes if lane.waiting]
    resting = [lane for lane in waiting if may_start_in(lane) > max(2.0, 2 * _longest_interval(lane, crawl))]
    if waiting and len(resting) == len(waiting):
        first = min(resting, key=lambda lane: lane.starts_in)
        why = first.why if first.rests_for > 0 else ""
        if first.held is not None and first.held.by == "rest":
            why = f"the host asked {named(first.held)} to wait"
        why = f": {why}" if why else ""
        return _no_exit(first, reading) or f"every host rests; {first.lane} for {first.starts_in:.0f} s more{why}"
    slow = paced_lane(waiting, crawl)
    return _no_exit(slow, reading) if slow is not None else ""


def _longest_interval(lane: LaneStatus, crawl: Crawl) -> float:
    pool = pool_of(lane, crawl)
    return max(with_others(lane).interval, pool.interval if pool else 0.0)


def _no_exit(lane: LaneStatus, reading: CrawlReading) -> str:
    """The line if every exit of the lane rests, with time and reason; else empty."""
    back = exits_back(lane)
    if not back:
        return ""
    pool = lane.lane.partition(VIA)[2]
    found = sorted({line for worker in reading.workers for line in worker.troubles if f" {pool}/" in line})
    logins = [line for line in found if line.startswith((LOGIN_REFUSED, LOGIN_FAILED))]
    if logins:
        names, causes = zip(*(line.split(": ", 2)[1:] for line in logins), strict=True)
        shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
        verb = "refused" if any(line.startswith(LOGIN_REFUSED) for line in logins) else "failed"
        return f"logins {verb}: {shown} ({causes[0]}); every account of {pool} rests until {back}"
    why = f": {found[0]}" if found else ""
    return f"every exit of {pool} rests until {back}{why}"


def _cpu(workers: Sequence[Heartbeat]) -> str:
    load = sum(worker.load for worker in workers) / len(workers)
    if load < LOADED:
        return ""
    return f"handlers and parsing: workers need {100 * load:.0f} % of a core each; --workers helps while cores are free"


def _pace(reading: CrawlReading) -> str:
    """The pace of the slowest lane, and what changes it. Empty if the lane may start now: its cap may bound it."""
    crawl, lane = reading.crawl, paced_lane(reading.lanes, reading.crawl)
    if lane is None or lane.starts_in <= 0:
        return ""
    if lane.held is not None and lane.held.by != "turn":
        return _held(lane, lane.held)
    pool = pool_of(lane, crawl)
    if lane.waits_for_exit and pool is not None:
        return _exit_pace(lane, pool)
    if lane.waits_for_exit and (region := region_in(lane.lane)):
        return (
            f"the exits that workers offer for the region {region}: all of them are in use or wait for their turn; more"
            " of them help, or a higher `rate` in the files of --exits"
        )
    if not lane.interval:
        return ""
    turns = f", in turns with {named(lane.held)}" if lane.held is not None else ""
    pace, asked = f"politeness: {lane.lane} at {describe_interval(lane.interval)}{turns}", _asked(lane, crawl)
    if lane.interval > lane.base_interval + SAME_INTERVAL:
        return f"{pace}, slower than asked for: its answers call for that (overload, time-outs or slow answers)"
    if lane.interval < lane.base_interval - SAME_INTERVAL:
        return f"{pace}, found by its search{f': {lane.why}' if lane.why else ''}"
    if is_repaced(lane, crawl):
        return f"{pace}, {_origin(reading, lane, asked)}"
    return f"{pace}{asked.change}"


def _held(lane: LaneStatus, held: Held) -> str:
    """The line about the other crawl that holds the lane back."""
    if held.by == "pace":
        return f"politeness: {lane.lane} at {describe_interval(held.interval)}, the pace of {named(held)}"
    line = f"{lane.lane}: {held_line(held)}"
    return f"pages in hand: {line}; --per-host of each changes it" if held.by == "cap" else line


def _exit_pace(lane: LaneStatus, pool: Pool) -> str:
    table = _table(pool)
    if pool.interval:
        pace = f"politeness: {lane.lane} at {describe_interval(pool.interval)} per exit, the pool's rate"
        return f"{pace}; `rate` of {table} changes it, and so do more exits"
    return f"the exits of {pool.name}: all of them are in use or wait for their turn; more exits in {table} help"


def _origin(reading: CrawlReading, lane: LaneStatus, asked: AskedPace) -> str:
    """Why a lane has another pace than was asked for: robots.txt, or an operator."""
    delay = reading.crawl_delay
    if delay is not None and abs(lent_interval(min(delay, LONGEST_CRAWL_DELAY)) - lane.base_interval) <= SAME_INTERVAL:
        return f"slower than asked for: robots.txt has Crawl-delay {delay:g} s"
    if reading.rules_version == 1 or not reading.crawl.needs_rules:
        return "set by `shoal pace`"
    slower = "slower than asked for: " if lane.interval > asked.interval else ""
    return f"{slower}by `shoal pace`, or by an earlier robots.txt"


def _asked(lane: LaneStatus, crawl: Crawl) -> AskedPace:
    pool = pool_of(lane, crawl)
    if pool is None:
        change = ", where its search begins" if crawl.fastest else "; --rate changes it"
        return AskedPace(crawl.interval, change)
    if not pool.has_own_rate:
        return AskedPace(pool.host_interval, ", the spider's rate; --rate changes it")
    return AskedPace(pool.host_interval, f", the pool's rate; `host_rate` of {_table(pool)} changes it")


def _table(pool: Pool) -> str:
    return f"[{pool.written_in}.{pool.name}]"


def _answers(reading: CrawlReading) -> str:
    progress, workers = reading.progress, reading.workers
    busy, slots = sum(worker.busy for worker in workers), sum(worker.slots for worker in workers)
    if slots and busy >= BUSY_SHARE * slots:
        if fewer := _trouble(workers, is_shortage):
            return fewer
        if reading.beside:
            more = len(reading.beside) - 1
            others = f"{reading.beside[0]} and {several(more, 'other crawl')}" if more else reading.beside[0]
            return (
                f"slots: its workers share them with {others}; `shoal priority`, --concurrency and --workers change it"
            )
        return "the answers of the sites, or this machine: --concurrency and --workers change it"
    if progress.delayed and progress.delayed == progress.left:
        return "visits that are due later" if progress.visits else "retries that wait for their time"
    full = next((lane for lane in reading.lanes if lane.waiting and _is_full(lane)), None)
    if full is None:
        return "the sites' answers"
    if full.held is not None and full.in_flight < full.cap:
        return _held(full, full.held)
    return f"pages in hand: {full.lane} has {full.in_flight} of {full.cap}; --per-host changes it"


def _is_full(lane: LaneStatus) -> bool:
    return 0 < lane.cap <= lane.in_flight or (lane.held is not None and lane.held.by == "cap")


def is_resting(lane: LaneStatus) -> bool:
    """Whether tasks wait and none may start soon."""
    soon = max(REST_SECONDS, REST_INTERVALS * lane.interval)
    rest = lane.held.seconds if lane.held is not None and lane.held.by == "rest" else 0.0
    return bool(lane.waiting) and (max(lane.rests_for, rest) > REST_SECONDS or lane.starts_in > soon)


def why_so(lane: LaneStatus, crawl: Crawl) -> str:
    """Why the lane rests or has another pace than its crawl or pool; empty: it has that pace."""
    if lane.cap == 0:
        return BLOCKED
    if back := exits_back(lane):
        return f"every exit of {lane.lane.partition(VIA)[2]} rests until {back}"
    if lane.held is not None and lane.held.by == "rest":
        return held_line(lane.held)
    if lane.rests_for > 0:
        return f"{lane.why or 'its answers asked for a rest'}; rests until {clock_time(time.time() + lane.rests_for)}"
    if lane.held is not None and lane.held.by != "turn":
        return held_line(lane.held)
    if lane.waits_for_exit and is_resting(lane):
        return "its exits are in use, or wait for their turn"
    if lane.interval > lane.base_interval + SAME_INTERVAL:
        return f"slower than asked for: {lane.why or 'its answers call for that'}"
    if lane.interval < lane.base_interval - SAME_INTERVAL:
        held = f"; {held_line(lane.held)}" if lane.held is not None else ""
        return f"searching, {describe_interval(lane.interval)}{f', {lane.why}' if lane.why else ''}{held}"
    if is_repaced(lane, crawl):
        return lane.pace_why or "its pace was changed by an operator, or by its robots.txt"
    return held_line(lane.held) if lane.held is not None else ""
