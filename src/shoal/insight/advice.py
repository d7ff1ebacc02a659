"""Advice on a crawl: what bounds it, what would help and by how much, how many workers are worth running. Pure.

Worker processes may work on several crawls at once: `shared` counts their workers once, not once per crawl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from shoal.crawl.record import has_store_server
from shoal.insight.bounds import CrawlReading, bound_of
from shoal.insight.kinds import (
    ONE,
    KindAdvice,
    advise_kinds,
    has_several_kinds,
    kept,
    kind_lines,
    kinds_at_rest,
    kinds_that_worked,
    one_of_each_kind,
    one_of_usual_kind,
    shared_out,
    with_need,
)
from shoal.insight.stats import pool_of, seconds_left
from shoal.insight.survey import LANES_READ, Measured, Survey, measured
from shoal.insight.utilisation import (
    SATURATED,
    Need,
    Shares,
    Thing,
    gain,
    growing,
    in_hand,
    is_scarce,
    is_too_short,
    needed,
    shares_of,
    whole_workers,
)
from shoal.model import STAGE, CrawlState, Heartbeat, LaneStatus
from shoal.text.errors import several
from shoal.worker.workers import Presence

# A worker is wanted this long before work is due: a machine and a process must start.
LEAD_SECONDS: Final = 120.0
# Workers are kept during shorter rests. Longer than the lead, and than autoscalers wait before they scale to zero.
REST_SECONDS: Final = 900.0
# Conditions of a prediction that are not measured.
IF_SO: Final = {
    "store": ", if its server has room for them",
    "slots": ", if the sites answer them as fast",
}
SHARED_PARTS = 1_000


def seconds_until_work(survey: Survey) -> float:
    """Seconds until a task may start: the first delayed task is due, or a host with queued tasks may start. 0 also if
    tasks are leased: their workers may be lost."""
    progress = survey.progress
    if progress.leased or not progress.left:
        return 0.0
    times = [progress.due_in] if progress.delayed else []
    if progress.queued:
        waiting = [lane.starts_in for lane in survey.lanes if lane.waiting]
        # Hosts that were not read may start now.
        times.append(min(waiting) if waiting and len(survey.lanes) < LANES_READ else 0.0)
    return min(times)


def is_resting(survey: Survey) -> bool:
    """Whether work is so far away that workers are not worth keeping, or not worth starting yet. The two limits differ,
    so that workers are not stopped and started in turn."""
    return seconds_until_work(survey) > (REST_SECONDS if survey.at_work else LEAD_SECONDS)


def only_later(survey: Survey) -> bool:
    """Whether all tasks wait for a later time, and none is leased."""
    progress = survey.progress
    return bool(progress.delayed) and not progress.queued and not progress.leased


def waits_to_be_taken_in(survey: Survey) -> bool:
    """Whether there is nothing but URLs in the inbox: a worker takes them in, and a finished crawl runs again."""
    is_open = survey.progress.state in (CrawlState.RUNNING, CrawlState.FINISHED)
    return bool(survey.pushed) and is_open and not survey.progress.left


def came_and_went(before: Survey, now: Survey) -> bool:
    """Whether tasks ended between the surveys and none is left: if URLs come one by one, the next may come any
    moment."""
    is_open = now.progress.state in (CrawlState.RUNNING, CrawlState.FINISHED)
    return is_open and not now.progress.left and now.progress.ended > before.progress.ended


def hours(seconds: float) -> str:
    """A long time as text: 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _hosts(survey: Survey) -> list[LaneStatus]:
    """The lanes with pages that wait to be fetched."""
    return [lane for lane in survey.lanes if lane.waiting and STAGE not in lane.lane]


def _slowest(survey: Survey) -> LaneStatus | None:
    return max(_hosts(survey), key=seconds_left, default=None)


def idle_words(survey: Survey) -> str | None:
    """The line that no worker is needed, with the reason; None if one is."""
    crawl, progress = survey.crawl.id, survey.progress
    if progress.state is CrawlState.PAUSED:
        why = f" ({progress.reason})" if progress.reason else ""
        return f"{crawl} is paused{why}: no worker is needed before `shoal resume {crawl}`"
    if progress.state is not CrawlState.RUNNING:
        why = f" ({progress.reason})" if progress.state is CrawlState.STOPPED and progress.reason else ""
        return f"{crawl} is {progress.state}{why}: no worker is needed"
    if progress.left:
        return None
    if progress.feeding:
        return f"{crawl} waits for its start URLs or its source: no worker is needed before there are pages to fetch"
    return f"{crawl} has nothing left to do: no worker is needed"


def pushed_words(survey: Survey) -> str:
    """The line about pushed URLs in the inbox."""
    pushed = several(survey.pushed, "pushed URL")
    return (
        f"{pushed} {'waits' if survey.pushed == 1 else 'wait'} in the inbox of {survey.crawl.id}: a worker takes them"
        " in, and fetches them"
    )


def empty_words(survey: Survey) -> str:
    """The line about a crawl that has nothing left now, but had a moment ago."""
    return (
        f"{survey.crawl.id} has nothing left at this moment, and had until now: a worker is worth keeping for a while"
    )


def resting_words(survey: Survey, seconds: float) -> str:
    """The line about a crawl whose pages all wait for a later time."""
    pages = several(survey.progress.left, "page")
    waits = "waits for its" if survey.progress.left == 1 else "wait for their"
    return (
        f"{pages} of {survey.crawl.id} {waits} time, the first for {hours(seconds)}: hardly a worker is needed before"
    )


def no_worker_words(survey: Survey) -> str:
    gone = sum(member.presence is Presence.GONE for member in survey.members)
    last = f" any more, {several(gone, 'worker')} ended without a word" if gone else ""
    return (
        f"no worker works on {survey.crawl.id}{last}: repeat the command that began it, or start `shoal worker`; what"
        " bounds it can be said when one has worked for a while"
    )


def unknown_words(survey: Survey, done: Measured) -> str:
    """The line about a crawl that finished no page while it was measured."""
    workers = [member.beat for member in survey.at_work]
    reading = CrawlReading(crawl=survey.crawl, progress=survey.progress, lanes=survey.lanes, workers=workers)
    return (
        f"no page of {survey.crawl.id} was finished in {done.seconds:.0f} s, too short a time to say what would help;"
        f" what it waits for now: {bound_of(reading)}; `shoal advise --for 60` measures for longer"
    )


def scarce_words(survey: Survey) -> str:
    waiting = several(survey.progress.queued, "page")
    return (
        f"work is scarce: {waiting} {'waits' if survey.progress.queued == 1 else 'wait'} for a worker; new ones come as"
        " the pages in hand bring links, or the crawl ends soon; more workers, cores or exits do not help"
    )


def _pace_words(survey: Survey, done: Measured) -> list[str]:
    lane, hosts = _slowest(survey), len(_hosts(survey))
    who = f"{lane.lane} above all" if lane is not None and hosts > 1 else lane.lane if lane is not None else "the hosts"
    some = f"{hosts} {'host with waiting pages allows' if hosts == 1 else 'hosts with waiting pages allow'} ({who})"
    if lane is not None and is_capped(lane, done.fetch_seconds):
        return [
            f"the requests at once that a host may get are what bounds it: {done.starts:.3g} requests/s is what {some},"
            f" {lane.cap} at once and {done.fetch_seconds:.2g} s each",
            "a higher --per-host helps, if the site bears it and answers as fast, and so do more hosts; more workers,"
            " cores or a faster store do not",
        ]
    return [
        f"the hosts' pace is what bounds it: {done.starts:.3g} requests/s is what {some}",
        "a higher --rate or `shoal pace` helps, if the site bears it, and so do more hosts; more workers, cores or a"
        " faster store do not",
    ]


def is_capped(lane: LaneStatus, fetch_seconds: float) -> bool:
    """Whether the host's cap on concurrent requests allows less than its pace."""
    return lane.cap > 0 and fetch_seconds / lane.cap > lane.interval


def _exit_words(survey: Survey, done: Measured) -> list[str]:
    parts = [
        ({*pool.exits}, survey.resting(lane.lane)) for lane in survey.lanes if (pool := pool_of(lane, survey.crawl))
    ]
    exits, rest = set[str]().union(*(all_of for all_of, _ in parts)), set[str]().union(*(gone for _, gone in parts))
    resting = len(exits & rest)
    which = f"{len(exits) - resting} of {len(exits)} may be used now, and each" if resting else "each"
    back = "; `shoal exits` shows why the others rest" if resting else ""
    return [
        f"the exits are what bounds it: {which} is used as often as its pool's rate allows",
        f"more exits help, in proportion, until the host's own pace bounds; more workers do not{back}",
    ]


def _cpu_words(survey: Survey, done: Measured) -> list[str]:
    figures = done.figures
    total = figures.cpu_seconds or 1.0
    parts = {"parsing": figures.parse_cpu, "handlers": figures.handler_cpu, "the store": figures.store_cpu}
    parts["fetching and shoal itself"] = max(0.0, total - sum(parts.values()))
    split = ", ".join(f"{name} {_percent(seconds / total)}" for name, seconds in parts.items())
    gets = f" and gets {_percent(done.core_got)}, as other programs or workers use them too" if done.is_crowded else ""
    return [
        f"CPU is what bounds it: each worker needs {_percent(done.load)} of a core{gets} ({split})",
        "more workers help while cores are free, then machines with more or faster cores; a higher pace, more exits or"
        " a faster store do not",
    ]


def _slot_words(survey: Survey, done: Measured) -> list[str]:
    return [
        "the workers' slots are what bounds it: all requests that they may have on their way wait for answers, which"
        f" take {done.fetch_seconds:.2g} s each",
        "a higher --concurrency may help and costs nothing, and so may more workers; whether the sites would answer"
        " more requests as fast is not known before it is tried",
    ]


def _store_words(survey: Survey, done: Measured) -> list[str]:
    figures = done.figures
    write, settle = (seconds / max(1, figures.writes) for seconds in (figures.write_seconds, figures.settle_seconds))
    if has_store_server(survey.crawl):
        workers = "more workers do, as long as its server has room"
    else:
        workers = "more workers do not, as a file has one writer at a time, and PostgreSQL has several"
    return [
        f"writing is what bounds it: a batch takes {write:.2g} s in the store and {settle:.2g} s in the frontier, and"
        " pages wait for that",
        f"a faster {'store' if write >= settle else 'frontier'} helps; {workers}; cores, pace and exits do not",
    ]


def _line_words(survey: Survey, done: Measured) -> list[str]:
    rate = done.starts * done.figures.received_bytes / max(1, done.figures.fetches)
    share = done.figures.body_seconds / (done.figures.fetch_seconds or 1.0)
    return [
        f"the network looks like what bounds it: {rate / 1e6:.3g} MB/s come in, and {_percent(share)} of the time of a"
        " request goes by while its body arrives",
        "it may be this machine's line or the sites' own: workers on another network tell the two apart; more workers"
        " on the same line do not help",
    ]


def _open_words(survey: Survey, done: Measured) -> list[str]:
    return [
        f"nothing was used up in {done.seconds:.0f} s: hosts, workers and store have room; what bounds it cannot be"
        " told from these figures, `shoal advise --for 60` measures for longer"
    ]


WORDS: Final = {
    "pace": _pace_words,
    "exits": _exit_words,
    "cpu": _cpu_words,
    "slots": _slot_words,
    "store": _store_words,
    "line": _line_words,
    "": _open_words,
}


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a crawl, and what would help. `bound` is empty if nothing is saturated; `is_certain`: no other cause
    looks the same. `workers_wanted` is the sum over `kinds`."""

    crawl: str
    rate: float
    workers: int
    workers_wanted: int
    bound: str = ""
    is_certain: bool = True
    shares: Shares = msgspec.field(default_factory=Shares)
    gain_of_doubling: float = 1.0
    lines: tuple[str, ...] = ()
    kinds: tuple[KindAdvice, ...] = ()


def advise(before: Survey, now: Survey) -> Advice:
    """What bounds the crawl between two surveys, and what would help."""
    crawl, done = now.crawl, measured(before, now)
    nothing = Advice(crawl=crawl.id, rate=done.rate, workers=done.workers, workers_wanted=0, kinds=kinds_at_rest(now))
    if (little := _little_to_do(nothing, before, now)) is not None:
        return little
    if not done.workers:
        return told(_with_kinds(nothing, before, now, need=ONE), no_worker_words(now))
    unknown = msgspec.structs.replace(nothing, is_certain=False)
    as_many = kept(now, now.at_work)
    if now.at <= before.at:
        return told(_with_kinds(unknown, before, now, need=as_many), f"{crawl.id} is not measured yet: ask again soon")
    shares = shares_of(now, done)
    tightest = shares.tightest
    bound = tightest if getattr(shares, tightest) >= SATURATED else ""
    # Without a finished page only a busy CPU is certain.
    if not done.pages and bound != "cpu":
        is_little = not bound and (is_scarce(now) or is_too_short(now, done))
        need = in_hand(shares, done, now.at_work) if is_little else as_many
        return told(_with_kinds(unknown, before, now, need=need), unknown_words(now, done))
    if not bound and is_scarce(now):
        need = in_hand(shares, done, now.at_work)
        found = _with_kinds(msgspec.structs.replace(nothing, shares=shares, bound="links"), before, now, need=need)
        return told(found, scarce_words(now), *_wanted_line(found))
    grows = growing(crawl)
    advice = msgspec.structs.replace(
        nothing,
        shares=shares,
        bound=bound,
        is_certain=bound not in ("line", "slots", ""),
        gain_of_doubling=gain(shares, done, times=2.0, grows=grows, own_machines=False),
    )
    advice = _with_kinds(advice, before, now, need=needed(shares, done, grows=grows))
    return told(advice, *WORDS[bound](now, done), *_doubling(advice, done, grows=grows), *_wanted_line(advice))


def _little_to_do(nothing: Advice, before: Survey, now: Survey) -> Advice | None:
    """Advice on a crawl with hardly anything to do now; None if it has work."""
    if waits_to_be_taken_in(now):
        return told(_with(nothing, one_of_usual_kind(now)), pushed_words(now))
    worked = kinds_that_worked(before, now) if came_and_went(before, now) else set()
    if worked:
        return told(_with(nothing, one_of_each_kind(now, which=lambda one: one.kind in worked)), empty_words(now))
    if (nothing_to_do := idle_words(now)) is not None:
        return told(nothing, nothing_to_do)
    if is_resting(now):
        return told(nothing, resting_words(now, seconds_until_work(now)))
    if now.at_work and only_later(now):
        some = one_of_each_kind(now, which=lambda one: one.waiting > 0)
        return told(_with(nothing, some), resting_words(now, seconds_until_work(now)))
    return None


def told(advice: Advice, *lines: str) -> Advice:
    """The advice with these lines, and a line per kind if there are several."""
    by_kind = kind_lines(advice.kinds) if len(advice.kinds) > 1 and advice.workers_wanted else ()
    return msgspec.structs.replace(advice, lines=(*lines, *by_kind))


def _with_kinds(advice: Advice, before: Survey, now: Survey, *, need: Need) -> Advice:
    """The advice with the workers of each kind; with one kind, the need of the whole crawl."""
    if has_several_kinds(now):
        return _with(advice, advise_kinds(before, now, shares=advice.shares))
    return _with(advice, tuple(with_need(one, need, at_work=advice.workers) for one in kinds_at_rest(now)))


def _with(advice: Advice, kinds: tuple[KindAdvice, ...]) -> Advice:
    return msgspec.structs.replace(advice, kinds=kinds, workers_wanted=sum(one.workers_wanted for one in kinds))


def _doubling(advice: Advice, done: Measured, *, grows: Sequence[Thing]) -> list[str]:
    here, apart = advice.gain_of_doubling, gain(advice.shares, done, times=2.0, grows=grows, own_machines=True)
    times = f"{here:.1f} times the pages" + (f" ({done.rate * here:.3g}/s)" if done.rate else "")
    if here >= 1.1 and advice.bound == "":
        return [f"twice the workers may do up to {times}: try it"]
    if here >= 1.1 and advice.bound in grows:
        return [f"twice the workers would do about {times}{IF_SO.get(advice.bound, '')}"]
    if apart >= 1.1 and advice.bound in grows:
        return [
            f"twice the workers: {here:.1f} times the pages on these machines, their cores are used up; {apart:.1f}"
            " times with machines of their own"
        ]
    return ["twice the workers would do hardly more pages than now"]


def _wanted_line(advice: Advice) -> list[str]:
    some = "worker is" if advice.workers_wanted == 1 else "workers are"
    return [f"{advice.workers_wanted} {some} worth running now; {advice.workers} at work"]


Process = tuple[str, int]


def with_parts(surveys: Sequence[Survey], before: Mapping[str, Survey]) -> list[Survey]:
    """The surveys with `parts`: the share of its process that each worker had for the crawl since the last surveys."""
    weights: dict[Process, dict[str, float]] = {}
    for survey in surveys:
        former = before.get(survey.crawl.id)
        earlier = {one.beat.worker: one.beat for one in former.members} if former is not None else {}
        for member in survey.at_work:
            crawls = weights.setdefault(_process(member.beat), {})
            crawls[survey.crawl.id] = _done(earlier.get(member.beat.worker), member.beat)
    return [msgspec.structs.replace(survey, parts=_parts(survey, weights)) for survey in surveys]


def shared(advice: Mapping[str, Advice], surveys: Sequence[Survey]) -> dict[str, Advice]:
    """The advice, with the workers that several crawls want of the same processes counted once and divided among these
    crawls in whole workers: a crawl may get none."""
    found = dict(advice)
    for kind, crawls in _sharing(surveys):
        asking = {
            name: one for name in crawls if (one := _of_kind(found[name], kind)) is not None and one.workers_wanted
        }
        if len(asking) < 2:
            continue
        need = max(sum(one.needed_cores for one in asking.values()), *(one.needed for one in asking.values()))
        number = whole_workers(need, at_work=max(one.workers for one in asking.values()))
        weights = {name: max(1, round(one.needed * SHARED_PARTS)) for name, one in asking.items()}
        for name, part in shared_out(number, weights).items():
            found[name] = _replaced(found[name], kind, part)
    return found


def _sharing(surveys: Sequence[Survey]) -> list[tuple[str, set[str]]]:
    """Groups of crawls, by kind, whose workers share processes, directly or through other crawls."""
    groups: list[tuple[str, set[str]]] = []
    found: dict[tuple[str, Process], set[str]] = {}
    for survey in surveys:
        for member in survey.at_work:
            for kind in member.beat.kinds:
                found.setdefault((kind, _process(member.beat)), set()).add(survey.crawl.id)
    for (kind, _), crawls in found.items():
        near = [one for one in groups if one[0] == kind and one[1] & crawls]
        groups = [one for one in groups if one not in near]
        groups.append((kind, crawls.union(*(one[1] for one in near))))
    return groups


def _parts(survey: Survey, weights: Mapping[Process, Mapping[str, float]]) -> dict[str, float]:
    parts = {}
    for member in survey.at_work:
        crawls = weights[_process(member.beat)]
        if len(crawls) > 1:
            total = sum(crawls.values())
            parts[member.beat.worker] = crawls[survey.crawl.id] / total if total else 1 / len(crawls)
    return parts


def _done(before: Heartbeat | None, now: Heartbeat) -> float:
    """The pages that a worker did between the surveys: CPU time is not known by crawl."""
    return max(0.0, now.pages - (before.pages if before is not None else 0))


def _process(beat: Heartbeat) -> Process:
    return beat.machine or beat.host, beat.pid


def _of_kind(advice: Advice, kind: str) -> KindAdvice | None:
    return next((one for one in advice.kinds if one.kind == kind), None)


def _replaced(advice: Advice, kind: str, number: int) -> Advice:
    """The advice with this number of workers of the kind; the lines keep what the crawl alone would want."""
    kinds = tuple(
        msgspec.structs.replace(one, workers_wanted=number) if one.kind == kind else one for one in advice.kinds
    )
    total = sum(one.workers_wanted for one in kinds)
    if total == advice.workers_wanted:
        return msgspec.structs.replace(advice, kinds=kinds)
    line = f"its workers work on other crawls as well: {total} of those that are worth running count for this one"
    return msgspec.structs.replace(advice, kinds=kinds, workers_wanted=total, lines=(*advice.lines, line))
