"""Advice in plain words: what bounds a crawl, what helps and what does not. Pure."""

from __future__ import annotations

from typing import Final

from shoal.crawl.record import has_store_server
from shoal.model import STAGE, CrawlState, LaneStatus
from shoal.processes.bounds import Look, bound_of
from shoal.processes.crawl_survey import Measured, Survey
from shoal.processes.stats import pool_of, seconds_left
from shoal.text.errors import several
from shoal.worker.workers import Presence

# What a prediction rests on that is not measured.
IF_SO: Final = {
    "store": ", if its server has room for them",
    "slots": ", if the sites answer them as fast",
}


def hours(seconds: float) -> str:
    """A long time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _hosts(survey: Survey) -> list[LaneStatus]:
    """The lanes with pages that are to be fetched."""
    return [lane for lane in survey.lanes if lane.waiting and STAGE not in lane.lane]


def _slowest(survey: Survey) -> LaneStatus | None:
    return max(_hosts(survey), key=seconds_left, default=None)


def idle_words(survey: Survey) -> str | None:
    """Why no worker is needed; None if one is."""
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
    """URLs that were pushed, and wait to be taken in."""
    pushed = several(survey.pushed, "pushed URL")
    return (
        f"{pushed} {'waits' if survey.pushed == 1 else 'wait'} in the inbox of {survey.crawl.id}: a worker takes them"
        " in, and fetches them"
    )


def empty_words(survey: Survey) -> str:
    """A crawl that has nothing left this moment, and had a moment ago."""
    return (
        f"{survey.crawl.id} has nothing left at this moment, and had until now: a worker is worth keeping for a while"
    )


def resting_words(survey: Survey, seconds: float) -> str:
    """A crawl whose pages all wait for a later time."""
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
    """What is known of a crawl that did nothing while it was measured."""
    workers = [member.beat for member in survey.at_work]
    look = Look(crawl=survey.crawl, progress=survey.progress, lanes=survey.lanes, workers=workers)
    return (
        f"no page of {survey.crawl.id} was finished in {done.seconds:.0f} s, too short a time to say what would help;"
        f" what it waits for now: {bound_of(look)}; `shoal advise --for 60` measures for longer"
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
    """Whether the cap of requests at once allows a host less than its pace does."""
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
