"""Every page of a numbered graph looked up at the end of its crawl: what was lost, what is there twice, what else is
not as promised."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import outcome_of
from shoal.model import Crawl, Progress, TaskState, TaskStatus
from shoal.run.intakes import intake_of
from shoal.store.base import FetchRow, ItemFilter, Store, StoredItem
from shoal.text.errors import several

COUNTED = tuple(state for state in TaskState if state is not TaskState.UNKNOWN)
FEW = 5
LOOKED_UP_AT_ONCE = 20


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontier and the store hold, compared with the pages there are.

    `dead` are the dead letters that there must be, `charged` the attempts that pages which are done have used up beyond
    one each."""

    progress: Progress
    attempted: int
    acknowledged: int
    ok: int
    lost: list[str]
    duplicated: int
    dead: int
    charged: int
    surprises: list[str]

    @property
    def faults(self) -> list[str]:
        """Everything that is not as promised, a line each."""
        doubled = [f"rows that are there twice: {self.duplicated:,}"] if self.duplicated else []
        return [*(f"lost: {url}" for url in self.lost), *doubled, *self.surprises]


def together(surveys: Sequence[Survey]) -> Survey:
    """Several crawls as one: counts added up, what is wrong with any of them."""
    first = surveys[0]
    counts = ("attempted", "acknowledged", "ok", "duplicated", "dead", "charged")
    both = {name: sum(getattr(one, name) for one in surveys) for name in counts}
    lost, stale = (sum(getattr(one.progress, name) for one in surveys) for name in ("lost", "stale"))
    return msgspec.structs.replace(
        first,
        **both,
        progress=msgspec.structs.replace(first.progress, lost=lost, stale=stale),
        lost=[url for one in surveys for url in one.lost],
        surprises=[line for one in surveys for line in one.surprises],
    )


async def survey(
    frontier: Frontier,
    store: Store,
    crawl: Crawl,
    *,
    urls: Iterable[str] | None = None,
    doomed: Mapping[str, tuple[str, ...]] | None = None,
) -> Survey:
    """Look up every page in frontier and store: those in `urls`, or else those that are in the store.

    `doomed` are pages that must be dead letters, with how their reasons may begin: these and no others."""
    doomed = doomed or {}
    items = [item async for item in store.items(ItemFilter(spider=crawl.spider, crawl=crawl.id))]
    rules = intake_of(crawl).rules
    expected = {item.url for item in items} if urls is None else set(urls)
    keys = {url: rules.resolve(url).key for url in sorted(expected)}
    rows = await store.fetches(crawl.id, list(keys.values()))
    found = await _look_up_all(frontier, crawl, keys)
    states = {url: status.state for url, status in found.items()}
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
        dead=sum(_is_as_doomed(status, doomed.get(url)) for url, status in found.items()),
        charged=sum(row.attempt - 1 for row in rows if row.outcome == "ok"),
        surprises=[
            *_untrue_rows(items, [row for row in rows if row.url not in doomed], expected),
            *_counters_off(progress, found),
            *await _left_behind(frontier, crawl, progress),
            *_wrongly_dead(found, doomed),
        ],
    )


async def _look_up_all(frontier: Frontier, crawl: Crawl, keys: Mapping[str, int]) -> dict[str, TaskStatus]:
    found: dict[str, TaskStatus] = {}
    for first in range(0, len(keys), LOOKED_UP_AT_ONCE):
        some = list(keys)[first : first + LOOKED_UP_AT_ONCE]
        found |= zip(some, await asyncio.gather(*(frontier.look_up(crawl.id, keys[url]) for url in some)), strict=True)
    return found


def _is_as_doomed(status: TaskStatus, reasons: tuple[str, ...] | None) -> bool:
    return reasons is not None and status.state is TaskState.DEAD and status.reason.startswith(reasons)


def _wrongly_dead(found: Mapping[str, TaskStatus], doomed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Dead letters that must not be, and pages that must be dead letters."""
    letters = {url: status.reason for url, status in found.items() if status.state is TaskState.DEAD}
    false = [f"{url} is dead: {reason}" for url, reason in letters.items() if url not in doomed]
    wrong = [
        f"{url} is dead: {letters[url]}, not {' or '.join(reasons)}"
        for url, reasons in doomed.items()
        if url in letters and not letters[url].startswith(reasons)
    ]
    alive = [f"{url} is {found[url].state}, not dead: {doomed[url][0]}" for url in doomed if url not in letters]
    return [*few(false), *few(wrong), *few(alive)]


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


def _counters_off(progress: Progress, found: Mapping[str, TaskStatus]) -> list[str]:
    """Counters that a recount does not confirm."""
    recount = Counter(status.state for status in found.values())
    counted = {state: getattr(progress, state) for state in COUNTED}
    lines = [
        f"the counter {state!s} says {counted[state]:,}, a recount {recount[state]:,}"
        for state in COUNTED
        if counted[state] != recount[state]
    ]
    outcomes = Counter(outcome_of(status.reason) for status in found.values() if status.state is TaskState.DEAD)
    outcomes["ok"] = progress.done
    if Counter(progress.outcomes) != outcomes:
        lines.append(f"the outcomes are {progress.outcomes}, a recount gives {dict(outcomes)}")
    return lines


async def _left_behind(frontier: Frontier, crawl: Crawl, progress: Progress) -> list[str]:
    """Tasks and busy lanes that a crawl must not have at its end."""
    lines = []
    if not progress.is_finished:
        lines.append(f"the crawl is not finished: {several(progress.left, 'task')} left")
    else:
        lanes = await frontier.lanes(crawl.id)
        lines += [f"{lane.lane} has {lane.waiting} waiting and {lane.in_flight} in flight" for lane in lanes]
    return lines


def few(lines: Sequence[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    more = [f"and {len(lines) - FEW:,} more like the last"] if len(lines) > FEW else []
    return [*lines[:FEW], *more]
