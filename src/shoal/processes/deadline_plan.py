"""What it takes to end a crawl's known pages within a time, and what that costs scaled up or out. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.exits.figures import money
from shoal.model import CrawlState
from shoal.processes.advice import Advice
from shoal.processes.advice_words import hours, idle_words
from shoal.processes.crawl_survey import Measured, Survey
from shoal.processes.stats import seconds_left, with_exits
from shoal.processes.utilisation import TARGET_SHARE, THINGS, growing
from shoal.settings.values import MachineSize
from shoal.text.errors import several

# Of a machine's memory so much is there for workers.
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


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """So many machines of one size, with so many workers on each at most, and what they cost for the whole time."""

    machines: int
    cores: int
    gigabytes: float
    workers_each: int
    cost: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to end `pages` within `seconds`. `workers` None: no number of workers can do it, `why` says why.

    `cores` and `gigabytes` are those of all workers together. `up` is one machine for all of them, `out` machines of
    the smallest size that takes one, `cheapest` the cheapest number of machines of one size; None where `machines` of
    the settings has no such size."""

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
    """What it takes to end the known pages within so many seconds."""
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
    """Why no number of workers does it, or why that is not known; empty if some number may."""
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
    """As many machines of this size as the workers need; None if it is too small for one of them."""
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
    """The plan in plain words. `is_shared`: workers on other machines reach the frontier."""
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
