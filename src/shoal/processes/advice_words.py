"""Advice in plain words: what bounds a crawl, what helps and what does not. Pure."""

from __future__ import annotations

from typing import Final

from shoal.model import LaneStatus
from shoal.processes.crawl_survey import Measured, Survey


def hours(seconds: float) -> str:
    """A long time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _slowest(survey: Survey) -> LaneStatus | None:
    waiting = [lane for lane in survey.lanes if lane.waiting]
    return max(waiting, key=lambda lane: lane.waiting * lane.interval + lane.starts_in, default=None)


def _pace_words(survey: Survey, done: Measured) -> list[str]:
    lane, hosts = _slowest(survey), sum(1 for lane in survey.lanes if lane.waiting)
    who = f"{lane.lane} above all" if lane is not None and hosts > 1 else lane.lane if lane is not None else "the hosts"
    return [
        f"the hosts' pace is what bounds it: {done.starts:.3g} requests/s is what"
        f" {hosts} {'host with waiting pages allows' if hosts == 1 else 'hosts with waiting pages allow'} ({who})",
        "a higher --rate or `shoal pace` helps, if the site bears it, and so do more hosts; more workers, cores or a"
        " faster store do not",
    ]


def _exit_words(survey: Survey, done: Measured) -> list[str]:
    return [
        "the exits are what bounds it: each is used as often as its pool's rate allows",
        "more exits help, in proportion, until the host's own pace bounds; more workers do not",
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
        "more workers help while cores are free, and so do faster cores; a higher pace, more exits or a faster store do"
        " not",
    ]


def _slot_words(survey: Survey, done: Measured) -> list[str]:
    return [
        "the workers' slots are what bounds it: all requests that they may have on their way wait for answers, which"
        f" take {done.fetch_seconds:.2g} s each",
        "a higher --concurrency helps and costs nothing, more workers help as well; whether the sites would answer more"
        " requests as fast is not known before it is tried",
    ]


def _store_words(survey: Survey, done: Measured) -> list[str]:
    figures = done.figures
    write, settle = (seconds / max(1, figures.writes) for seconds in (figures.write_seconds, figures.settle_seconds))
    return [
        f"writing is what bounds it: a batch takes {write:.2g} s in the store and {settle:.2g} s in the frontier, and"
        " pages wait for that",
        "a faster store helps; more workers do, if the store takes several writers at once (PostgreSQL does, SQLite and"
        " files do not); cores, pace and exits do not",
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
    return ["nothing is used up: hosts, workers and store have room; what bounds it cannot be told from these figures"]


WORDS: Final = {
    "pace": _pace_words,
    "exits": _exit_words,
    "cpu": _cpu_words,
    "slots": _slot_words,
    "store": _store_words,
    "line": _line_words,
    "": _open_words,
}
