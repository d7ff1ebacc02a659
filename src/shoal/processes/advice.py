"""What bounds a crawl, whether more workers, exits, pace or a faster store would help, and by how much. Pure.

Everything has a share: how much of what it can do is asked of it now. What has the highest share bounds the crawl.
With twice the workers a crawl is as many times as fast as the tightest thing allows, twice at most."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.processes.advice_words import (
    IF_SO,
    WORDS,
    empty_words,
    idle_words,
    no_worker_words,
    pushed_words,
    resting_words,
    scarce_words,
    unknown_words,
)
from shoal.processes.crawl_survey import Measured, Survey, measured
from shoal.processes.kind_advice import (
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
    with_need,
)
from shoal.processes.utilisation import (
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
)
from shoal.processes.work_ahead import (
    came_and_went,
    is_resting,
    only_later,
    seconds_until_work,
    waits_to_be_taken_in,
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
    # A worker that has no time for a page in all these seconds is bound by its cores; of the rest nothing is known.
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
    """Advice on a crawl with nothing to do now, or hardly anything; None if it has work."""
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
    """The advice with these lines, and one per kind where there are several."""
    by_kind = kind_lines(advice.kinds) if len(advice.kinds) > 1 and advice.workers_wanted else ()
    return msgspec.structs.replace(advice, lines=(*lines, *by_kind))


def _with_kinds(advice: Advice, before: Survey, now: Survey, *, need: Need) -> Advice:
    """Each kind's workers, and their sum; those of the whole crawl, which needs so many, where there is one kind."""
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
