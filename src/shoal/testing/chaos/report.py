"""The verdict on a crawl of a numbered graph that was attacked, and the sum of several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.testing.chaos.bad_pages import DEADLY, HANGING
from shoal.testing.chaos.diary import Diary
from shoal.testing.chaos.plan import MAX_ATTEMPTS, Deed, Plan, bad_pages, schedule
from shoal.testing.chaos.survey import Survey, few
from shoal.testing.sites.loopback import Hit, busiest_window

# A request is sent at its slot by the worker's clock and seen when the site reads it by its own. They differ by how
# long a busy machine holds up the one or the other: what was due this long before a window may be seen inside it.
# Starts that are lent twice for as long as a clock may be stepped unnoticed, a quarter of a second, are more than that.
HOLD_UP_SECONDS = 0.1
WINDOWS_SECONDS = (1.0, 5.0)
# A page that kills its worker does so in company, until it is suspected, and then alone until it is dead.
MOST_ENDS_OF_A_PAGE = 2 + MAX_ATTEMPTS


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one host was asked by its own clock. `violations`: requests beyond what the busiest window allows."""

    violations: int
    busiest_second: int
    allowed_second: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a disturbed crawl ended, in the words of queue checkers.

    `attempted` are the pages of the site, `acknowledged` those the frontier has accepted, `ok` those that are done and
    have their rows, `dead` those that had to become dead letters and did. `recovered` are leases reclaimed, `charged`
    attempts used up beyond one per page, `late_settles` results sent late on purpose, `unexpected` how many `surprises`
    there were. The rest counts what was done; `left_out` says what could not be done."""

    frontier: str
    pipe: str = ""
    store: str
    attempted: int
    acknowledged: int
    ok: int
    dead: int
    lost: int
    duplicated: int
    recovered: int
    charged: int
    unexpected: int
    late_settles: int
    stale_settles_refused: int
    pace_violations: int
    busiest_second: int
    allowed_second: int
    kills: int
    freezes: int
    restarts: int
    stalls: int
    resets: int
    clock_steps: int
    dead_feeders: int
    deadly_pages: int
    hanging_pages: int
    backends: int
    store_restarts: int
    brokers: int
    coordinators: int
    workers: int
    crawls: int
    seed: int
    seconds: float
    surprises: list[str]
    lost_pages: list[str]
    left_out: list[str]

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.duplicated or self.unexpected or self.pace_violations)


def pace_of(hits: Iterable[Hit], *, rate: float, hold_up: float = HOLD_UP_SECONDS) -> Pace:
    """Compare the busiest windows of a host with the rate per second that holds for all workers together.

    Windows, not gaps: at fifty requests a second the gap is 20 ms, less than a busy machine blurs. A window of a second
    sees what several workers send at once, one of five seconds what is too fast all the time."""
    listed = list(hits)
    allowed = {seconds: math.floor((seconds + hold_up) * rate) + 1 for seconds in WINDOWS_SECONDS}
    busiest = {seconds: busiest_window(listed, seconds=seconds) for seconds in WINDOWS_SECONDS}
    return Pace(
        violations=max(0, *(busiest[seconds] - allowed[seconds] for seconds in WINDOWS_SECONDS)),
        busiest_second=busiest[1.0],
        allowed_second=allowed[1.0],
    )


def report_on(plan: Plan, found: Survey, hits: list[Hit], *, diary: Diary, late_settles: int, seconds: float) -> Report:
    """The verdict: what was found at the end of a run, beside what was done."""
    pace, bad, done = pace_of(hits, rate=plan.rate), bad_pages(plan), diary.done
    surprises = [*diary.surprises, *found.surprises, *_unexplained(plan, found, diary), *_undone(plan, diary)]
    return Report(
        frontier=plan.backend,
        pipe=plan.pipe.partition("://")[0],
        store=plan.store_backend,
        attempted=found.attempted,
        acknowledged=found.acknowledged,
        ok=found.ok,
        dead=found.dead,
        lost=len(found.lost),
        duplicated=found.duplicated,
        recovered=found.progress.lost,
        charged=found.charged,
        unexpected=len(surprises),
        late_settles=late_settles,
        stale_settles_refused=found.progress.stale,
        pace_violations=pace.violations,
        busiest_second=pace.busiest_second,
        allowed_second=pace.allowed_second,
        kills=done[Deed.KILL],
        freezes=done[Deed.FREEZE],
        restarts=done[Deed.RESTART],
        stalls=done[Deed.STALL],
        resets=done[Deed.RESET],
        clock_steps=done[Deed.CLOCK],
        dead_feeders=done[Deed.FEED],
        deadly_pages=bad.of_kind(DEADLY),
        hanging_pages=bad.of_kind(HANGING),
        backends=done[Deed.BACKEND],
        store_restarts=done[Deed.STORE_RESTART],
        brokers=done[Deed.BROKER],
        coordinators=done[Deed.COORDINATOR],
        workers=plan.workers,
        crawls=plan.crawls,
        seed=plan.seed,
        seconds=round(seconds, 1),
        surprises=surprises,
        lost_pages=few(found.lost),
        left_out=list(plan.left_out),
    )


def total(reports: Sequence[Report]) -> Report:
    """Several runs as one: counts added up, the pace of the busiest second, the faults of the last."""
    last = reports[-1]
    kept = {"busiest_second", "allowed_second", "workers", "crawls", "seed"}
    names = [field.name for field in msgspec.structs.fields(Report) if field.type in (int, float)]
    sums = {name: sum(getattr(report, name) for report in reports) for name in names if name not in kept}
    busiest = max(report.busiest_second for report in reports)
    return msgspec.structs.replace(last, **sums, busiest_second=busiest)


def _undone(plan: Plan, diary: Diary) -> list[str]:
    """Deeds of the plan that were not done: a run that left them out has proved less than it says."""
    planned = Counter(event.deed for event in schedule(plan) if event.deed is not Deed.RELIEVE)
    return [
        f"{diary.done[deed]} of {number} planned deeds '{deed}' were done"
        for deed, number in planned.items()
        if diary.done[deed] < number
    ]


def _unexplained(plan: Plan, found: Survey, diary: Diary) -> list[str]:
    """Ends of workers and used up attempts that nothing which was done explains."""
    bad = bad_pages(plan)
    # A server that forgets its last second may lend a page once more.
    most_ends = MOST_ENDS_OF_A_PAGE * len(bad.always) + len(bad.once) * (1 + plan.restarts)
    lines = []
    if diary.ended > most_ends:
        lines.append(f"{diary.ended} workers ended by themselves; the pages explain {most_ends} at most")
    # A worker that works on a suspect has one lease: its end uses up one attempt. So does a deadline that rings.
    most_charged = diary.done[Deed.KILL] + diary.ended + sum(harm in HANGING for harm in bad.once.values())
    if found.charged > most_charged:
        lines.append(f"{found.charged} attempts were used up; ends of workers explain {most_charged} at most")
    return lines
