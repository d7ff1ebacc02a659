"""Plans workers and machines for a deadline, with their cost, and warns when a crawl will miss its deadline. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from shoal.exits.figures import clock_time, money
from shoal.insight.advice import Advice, hours, idle_words
from shoal.insight.stats import Snapshot, pool_of, seconds_left, with_exits
from shoal.insight.survey import Measured, Survey
from shoal.insight.utilisation import TARGET_SHARE, THINGS, growing
from shoal.model import Crawl, CrawlState, LaneStatus
from shoal.policy.limits import deadline_of
from shoal.settings.values import MachineSize
from shoal.text.errors import several

# The share of a machine's memory that workers may use.
USABLE_MEMORY: Final = 0.8
LEAST_CORES_EACH: Final = 0.01

AT_BEST: Final = {
    "pace": "not possible: the hosts' paces allow it in {soonest} at best; a higher --rate or `shoal pace` helps, if"
    " the sites bear it",
    "exits": "not possible: the exits allow it in {soonest} at best; more exits help",
    "line": "hardly possible: the network looks full and allows it in {soonest} at best; workers on another network may"
    " help",
    "store": "not possible: the store takes one writer at a time and allows it in {soonest} at best; a faster one"
    " helps",
}
# A rate measured for a shorter time is too uncertain.
MEASURED_SECONDS: Final = 10.0
# Repeat the warning when another remedy has applied for so long.
CHANGED_SECONDS: Final = 60.0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A number of machines of one size, the most workers on each, and the cost for the whole time."""

    machines: int
    cores: int
    gigabytes: float
    workers_each: int
    cost: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to end `pages` within `seconds`. `workers` None: no number of workers can; `why`: the reason.

    `cores` and `gigabytes` are for all workers together. `up` is one machine for all workers, `out` machines of the
    smallest size that takes a worker, `cheapest` the cheapest machines of one size; None: the setting `machines` has no
    such size."""

    seconds: float
    pages: int
    at_work: int
    workers: int | None = None
    cores: float = 0.0
    gigabytes: float = 0.0
    up: Offer | None = None
    out: Offer | None = None
    cheapest: Offer | None = None
    why: str = ""


def plan_for(
    survey: Survey, advice: Advice, done: Measured, *, seconds: float, machines: Sequence[MachineSize]
) -> Plan:
    """Plan for the end of the known pages within `seconds`."""
    none = Plan(seconds=seconds, pages=survey.progress.left, at_work=done.workers)
    if why := _why_not(survey, advice, done, seconds=seconds):
        return msgspec.structs.replace(none, why=why)
    needed = survey.progress.left / seconds
    shares = [float(getattr(advice.shares, name)) for name in growing(survey.crawl)]
    workers = max(1, math.ceil(done.workers * needed / done.rate * max(0.01, done.slots_used, *shares) / TARGET_SHARE))
    cores = needed / done.rate * done.core_got * done.workers / TARGET_SHARE
    memory = workers * done.memory_bytes / done.workers / 1e9
    offers = [offer for size in machines if (offer := _offer(size, workers, cores, memory, seconds)) is not None]
    return msgspec.structs.replace(
        none,
        workers=workers,
        cores=cores,
        gigabytes=memory,
        up=min((one for one in offers if one.machines == 1), key=lambda one: one.cost, default=None),
        out=min(offers, key=lambda one: (one.cores, one.cost), default=None),
        cheapest=min(offers, key=lambda one: (round(one.cost, 6), one.machines), default=None),
    )


def _why_not(survey: Survey, advice: Advice, done: Measured, *, seconds: float) -> str:
    """Why no number of workers is enough, or why that is unknown; empty: some number may be."""
    if idle_words(survey) is not None:
        state = survey.progress.state
        return f"nothing is reckoned: {'it has no pages' if state is CrawlState.RUNNING else f'the crawl is {state}'}"
    if not done.workers:
        return "not known: no worker is at work that could be measured"
    if not done.rate or not done.worker_seconds:
        return "not known: no page was finished while it was measured; --for measures for longer"
    if advice.bound == "links":
        return "not known: work is scarce, and how many links the next pages bring cannot be told"
    lanes = [with_exits(lane, survey.crawl) for lane in survey.lanes]
    slowest = max(lanes, key=seconds_left, default=None)
    if slowest is not None and seconds_left(slowest) > seconds:
        return (
            f"not possible: the {slowest.waiting:,} pages of {slowest.lane} take {hours(seconds_left(slowest))} at its"
            " pace, whatever is added; a higher --rate or `shoal pace` helps, if the site bears it"
        )
    fixed = {name: float(getattr(advice.shares, name)) for name in THINGS if name not in growing(survey.crawl)}
    tight = max(fixed, key=lambda name: fixed[name])
    soonest = survey.progress.left / done.rate * fixed[tight]
    return AT_BEST[tight].format(soonest=hours(soonest)) if soonest > seconds else ""


def _offer(size: MachineSize, workers: int, cores: float, memory: float, seconds: float) -> Offer | None:
    """The machines of this size that the workers need; None if it is too small for one worker."""
    by_cores = size.cores / max(LEAST_CORES_EACH, cores / workers)
    by_memory = USABLE_MEMORY * size.gigabytes / (memory / workers) if memory else math.inf
    # Rounded first: 2 cores for workers of 0.999999 are 2 workers.
    each = math.floor(round(min(by_cores, by_memory), 3))
    if each < 1:
        return None
    number = math.ceil(workers / each)
    return Offer(
        machines=number,
        cores=size.cores,
        gigabytes=size.gigabytes,
        workers_each=min(each, workers),
        cost=seconds / 3600 * number * size.price,
    )


def plan_lines(plan: Plan, deadline: str, *, is_shared: bool) -> list[str]:
    """The plan as lines for people. `is_shared`: workers on other machines can reach the frontier."""
    head = f"within {deadline}, for the {several(plan.pages, 'page')} known now"
    if plan.workers is None:
        return [f"{head}: {plan.why}"]
    size = f"{_amount(plan.cores)} cores as fast as these, {_amount(plan.gigabytes)} GB"
    enough = ", as many as are at work" if plan.workers == plan.at_work else ""
    enough = f", fewer than the {plan.at_work} at work" if plan.workers < plan.at_work else enough
    first = f"{head}: {several(plan.workers, 'worker')}{enough} ({size})"
    up, out, cheapest = plan.up, plan.out, plan.cheapest
    if out is None or cheapest is None:
        return [f"{first}; no size in `machines` of the settings is large enough for a worker"]
    if out.machines == 1 and cheapest == out:
        return [f"{first}; {_machines(out)} does it: about {money(out.cost)}"]
    needs = "" if is_shared else "; that needs a frontier and a store on servers, such as Redis and PostgreSQL"
    lines = [first]
    if up is None:
        lines.append("scaled up: no size in `machines` of the settings is large enough for all of them")
    else:
        lines.append(f"scaled up: {_machines(up)}, about {money(up.cost)}")
    if out.machines > 1:
        lines.append(f"scaled out: {_machines(out)}, about {money(out.cost)}{needs}")
    which = {up: "scaled up", out: "scaled out"}.get(cheapest) if up != out else None
    lines.append(f"cheapest: {which or _machines(cheapest)}, about {money(cheapest.cost)}")
    return lines


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{max(0.1, number):.1f}"


def _machines(offer: Offer) -> str:
    return f"{several(offer.machines, 'machine')} of {several(offer.cores, 'core')} and {offer.gigabytes:g} GB"


# Warn when the estimate exceeds the time left by this factor, all clear below the second: a rate is noisy.
LATE, IN_TIME = 1.1, 0.9

Cure = Literal["", "pace", "workers", "other"]


class DeadlineWatch:
    """Warns about the deadline of one crawl: once, and when the remedy changes."""

    def __init__(self) -> None:
        self._said: Cure = ""
        self._other_since: float | None = None

    def look(self, snapshot: Snapshot, *, now: float) -> str:
        """The line for people at this time of day; empty: nothing new."""
        limit = deadline_of(snapshot.crawl)
        left = 0.0 if limit is None else limit.most - now
        is_running = snapshot.progress.state is CrawlState.RUNNING and snapshot.progress.left
        if limit is None or left <= 0 or not is_running or snapshot.elapsed < MEASURED_SECONDS:
            return ""
        needs = snapshot.eta_seconds
        if needs is None:
            return ""
        if needs <= IN_TIME * left and self._said:
            self._said, self._other_since = "", None
            return (
                f"the crawl will be done by its deadline ({clock_time(limit.most)}) now: it needs {hours(needs)} more"
            )
        if needs <= LATE * left or not self._is_news(_cure_of(snapshot, left), now=now):
            return ""
        tasks = several(snapshot.progress.left, "task")
        return (
            f"the crawl will not be done by its deadline ({clock_time(limit.most, now=now)}): {tasks} known now need"
            f" {hours(needs)}, {hours(left)} are left; {_help(snapshot, needs=needs, left=left)}"
        )

    def _is_news(self, cure: Cure, *, now: float) -> bool:
        """Whether this remedy is new: at once the first time, later when it has applied for a while."""
        if cure == self._said:
            self._other_since = None
            return False
        if self._said:
            self._other_since = now if self._other_since is None else self._other_since
            if now - self._other_since < CHANGED_SECONDS:
                return False
        self._said, self._other_since = cure, None
        return True


def _cure_of(snapshot: Snapshot, left: float) -> Cure:
    if snapshot.last_lanes and seconds_left(snapshot.last_lanes[0]) > left:
        return "pace"
    if snapshot.bound.startswith(("politeness", "every ", "logins ", "the exits ")):
        return "other"
    return "workers"


def _rate_for(lane: LaneStatus, crawl: Crawl, left: float) -> str:
    """The pace at which the lane would finish in `left` seconds; unknown if exits or other crawls share it."""
    if lane.held is not None or pool_of(lane, crawl) is not None:
        return "a higher rate"
    per_second = lane.waiting / left
    unit, seconds = next(((unit, at) for unit, at in (("s", 1), ("m", 60)) if per_second * at >= 1), ("h", 3600))
    return f"{math.ceil(per_second * seconds)}/{unit}"


def _help(snapshot: Snapshot, *, needs: float, left: float) -> str:
    cure = _cure_of(snapshot, left)
    if cure == "pace":
        lane = snapshot.last_lanes[0]
        soonest = hours(seconds_left(lane))
        return (
            f"at its pace {lane.lane} takes {soonest}, whatever is added: {_rate_for(lane, snapshot.crawl, left)} helps"
            " (--rate, or `shoal pace`), if the site bears it"
        )
    if cure == "other":
        return f"what bounds it is {snapshot.bound}"
    if not snapshot.workers:
        return "no worker is at work"
    wanted = math.ceil(len(snapshot.workers) * needs / left)
    at_work = several(len(snapshot.workers), "worker")
    return f"{at_work} at work, about {wanted} would do it if the sites bear it (bound by {snapshot.bound})"
