"""The verdict on a crawl of a numbered graph: what was lost, what is there twice, what else is not as promised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.crawl import intake_of
from shoal.error_text import several
from shoal.frontier.base import Frontier
from shoal.model import Crawl, DeadFilter, Progress, TaskState
from shoal.store.base import FetchRow, ItemFilter, Store, StoredItem
from shoal.testing.sites.loopback import Hit, busiest_window

# A request is sent at its slot and seen when the site gets to read it. While interpreters start and processes are
# killed, a small machine holds both up: what was due this long before a window may be seen inside it.
HOLD_UP_SECONDS = 0.25
WINDOWS_SECONDS = (1.0, 5.0)
COUNTED = tuple(state for state in TaskState if state is not TaskState.UNKNOWN)
FEW = 5


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontier and the store hold, compared with the pages there are."""

    progress: Progress
    attempted: int
    acknowledged: int
    ok: int
    lost: list[str]
    duplicated: int
    surprises: list[str]

    @property
    def faults(self) -> list[str]:
        """Everything that is not as promised, a line each."""
        doubled = [f"rows that are there twice: {self.duplicated:,}"] if self.duplicated else []
        return [*(f"lost: {url}" for url in self.lost), *doubled, *self.surprises]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one host was asked by its own clock. `violations`: requests beyond what the busiest window allows."""

    violations: int
    busiest_second: int
    allowed_second: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a disturbed crawl ended, in the words of queue checkers.

    `attempted` are the pages of the site, `acknowledged` those the frontier has accepted, `ok` those that are done and
    have their rows. `recovered` are leases reclaimed, `late_settles` results sent late on purpose, `unexpected` how
    many `surprises` there were."""

    frontier: str
    attempted: int
    acknowledged: int
    ok: int
    lost: int
    duplicated: int
    recovered: int
    unexpected: int
    late_settles: int
    stale_settles_refused: int
    pace_violations: int
    busiest_second: int
    allowed_second: int
    kills: int
    freezes: int
    restarts: int
    workers: int
    seed: int
    seconds: float
    surprises: list[str]
    lost_pages: list[str]

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


async def survey(frontier: Frontier, store: Store, crawl: Crawl, *, urls: Iterable[str] | None = None) -> Survey:
    """Look up every page in frontier and store: those in `urls`, or else those that are in the store."""
    items = [item async for item in store.items(ItemFilter(spider=crawl.spider, crawl=crawl.id))]
    rules = intake_of(crawl).rules
    expected = {item.url for item in items} if urls is None else set(urls)
    keys = {url: rules.resolve(url).key for url in sorted(expected)}
    rows = await store.fetches(crawl.id, list(keys.values()))
    states = {url: (await frontier.look_up(crawl.id, key)).state for url, key in keys.items()}
    progress = await frontier.progress(crawl.id)
    stored = {item.url for item in items if _is_true(item)}
    logged = {row.key for row in rows if row.outcome == "ok"}
    lost = [
        f"{url} is {_fate(states[url], has_item=url in stored, has_row=key in logged)}"
        for url, key in keys.items()
        if states[url] is not TaskState.DEAD and not (states[url] is TaskState.DONE and url in stored and key in logged)
    ]
    dead = sum(state is TaskState.DEAD for state in states.values())
    return Survey(
        progress=progress,
        attempted=len(keys),
        acknowledged=sum(state is not TaskState.UNKNOWN for state in states.values()),
        ok=len(keys) - len(lost) - dead,
        lost=lost,
        duplicated=_repeats(item.url for item in items) + _repeats(row.key for row in rows),
        surprises=[
            *_untrue_rows(items, rows, expected),
            *_counters_off(progress, states),
            *await _left_behind(frontier, crawl, progress),
        ],
    )


def _is_true(item: StoredItem) -> bool:
    """Whether an item says what its page says: page /g/17 has the number 17."""
    return bool(msgspec.json.decode(item.data).get("number") == item.url.rpartition("/")[2])


def _fate(state: TaskState, *, has_item: bool, has_row: bool) -> str:
    if state is not TaskState.DONE:
        return f"{state} at the end"
    missing = " and ".join(name for name, there in (("item", has_item), ("log row", has_row)) if not there)
    return f"done, but has no {missing}"


def _repeats(names: Iterable[object]) -> int:
    return sum(count - 1 for count in Counter(names).values())


def _untrue_rows(items: Sequence[StoredItem], rows: Sequence[FetchRow], expected: set[str]) -> list[str]:
    strangers = [f"an item of {item.url}, which is no page of the site" for item in items if item.url not in expected]
    untrue = [f"the item of {item.url} is not that page's" for item in items if not _is_true(item)]
    failed = [f"the log row of {row.url} says {row.outcome}" for row in rows if row.outcome != "ok"]
    return [*few(strangers), *few(untrue), *few(failed)]


def _counters_off(progress: Progress, states: Mapping[str, TaskState]) -> list[str]:
    """Counters that a recount does not confirm."""
    recount = Counter(states.values())
    counted = {state: getattr(progress, state) for state in COUNTED}
    lines = [
        f"the counter {state!s} says {counted[state]:,}, a recount {recount[state]:,}"
        for state in COUNTED
        if counted[state] != recount[state]
    ]
    outcomes = {name: number for name, number in progress.outcomes.items() if name != "ok"}
    if progress.outcomes.get("ok", 0) != progress.done or outcomes:
        lines.append(f"{progress.done:,} pages are done, but the outcomes are {progress.outcomes}")
    return lines


async def _left_behind(frontier: Frontier, crawl: Crawl, progress: Progress) -> list[str]:
    """Tasks, busy lanes and dead letters that a crawl must not have at its end."""
    lines = []
    if not progress.is_finished:
        lines.append(f"the crawl is not finished: {several(progress.left, 'task')} left")
    else:
        lanes = await frontier.lanes(crawl.id)
        lines += [f"{lane.lane} has {lane.waiting} waiting and {lane.in_flight} in flight" for lane in lanes]
    letters = await frontier.dead(crawl.id, DeadFilter(), limit=FEW + 1)
    return [*lines, *few([f"{letter.task.url} is dead: {letter.reason}" for letter in letters])]


def few(lines: Sequence[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    more = [f"and {len(lines) - FEW:,} more like the last"] if len(lines) > FEW else []
    return [*lines[:FEW], *more]
