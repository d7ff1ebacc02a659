"""What bounds a crawl, whether more workers, exits, pace or a faster store would help, and by how much. Pure.

Everything has a share: how much of what it can do is asked of it now. What has the highest share bounds the crawl.
With twice the workers a crawl is as many times as fast as the tightest thing allows, twice at most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal.processes.advice_words import IF_SO, WORDS, idle_words, no_worker_words, scarce_words, unknown_words
from shoal.processes.crawl_survey import Measured, Survey, measured
from shoal.processes.kind_advice import KindAdvice, advise_kinds, has_several_kinds, kind_lines, kinds_at_rest
from shoal.processes.utilisation import (
    SATURATED,
    TARGET_SHARE,
    Shares,
    Thing,
    gain,
    growing,
    is_scarce,
    shares_of,
    wanted,
)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a crawl, and what would help. `bound` is empty where nothing is saturated; `is_certain`: what bounds
    it cannot be mistaken for something else. `workers_wanted` is the sum over `kinds`."""

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
    if (nothing_to_do := idle_words(now)) is not None:
        return told(nothing, nothing_to_do)
    if not done.workers:
        return told(_with_kinds(nothing, before, now, wanted_of_all=1), no_worker_words(now))
    unknown = msgspec.structs.replace(nothing, is_certain=False)
    if now.at <= before.at:
        kept = _with_kinds(unknown, before, now, wanted_of_all=done.workers)
        return told(kept, f"{crawl.id} is not measured yet: ask again soon")
    shares = shares_of(now, done)
    tightest = shares.tightest
    bound = tightest if getattr(shares, tightest) >= SATURATED else ""
    # A worker that has no time for a page in all these seconds is bound by its cores; of the rest nothing is known.
    if not done.pages and bound != "cpu":
        return told(_with_kinds(unknown, before, now, wanted_of_all=done.workers), unknown_words(now, done))
    if not bound and is_scarce(now):
        return _scarce(msgspec.structs.replace(nothing, shares=shares), before, now)
    grows = growing(crawl)
    advice = msgspec.structs.replace(
        nothing,
        shares=shares,
        bound=bound,
        is_certain=bound not in ("line", "slots", ""),
        gain_of_doubling=gain(shares, done, times=2.0, grows=grows, own_machines=False),
    )
    advice = _with_kinds(advice, before, now, wanted_of_all=wanted(shares, done, grows=grows))
    return told(advice, *WORDS[bound](now, done), *_doubling(advice, done, grows=grows), *_wanted_line(advice))


def told(advice: Advice, *lines: str) -> Advice:
    """The advice with these lines, and one per kind where there are several."""
    by_kind = kind_lines(advice.kinds) if len(advice.kinds) > 1 and advice.workers_wanted else ()
    return msgspec.structs.replace(advice, lines=(*lines, *by_kind))


def _with_kinds(advice: Advice, before: Survey, now: Survey, *, wanted_of_all: int) -> Advice:
    """Each kind's workers, and their sum; those of the whole crawl where there is one kind."""
    kinds = kinds_at_rest(now)
    if has_several_kinds(now):
        kinds = advise_kinds(before, now, shares=advice.shares)
    else:
        kinds = tuple(msgspec.structs.replace(one, workers_wanted=wanted_of_all) for one in kinds)
    return msgspec.structs.replace(advice, kinds=kinds, workers_wanted=sum(one.workers_wanted for one in kinds))


def _scarce(advice: Advice, before: Survey, now: Survey) -> Advice:
    busy = max(advice.shares.cpu, advice.shares.slots, advice.shares.store)
    workers = max(1, math.ceil(advice.workers * busy / TARGET_SHARE))
    found = _with_kinds(msgspec.structs.replace(advice, bound="links"), before, now, wanted_of_all=workers)
    return told(found, scarce_words(now), *_wanted_line(found))


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
