"""`shoal exits`: health and cost of a crawl's proxies and accounts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.numbers import count, duration, several, share, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_option, place_options
from shoal.errors import UsageError
from shoal.exits.figures import EndedRequests, clock_time, earnings_of, health_of, host_of, money, pool_of

if TYPE_CHECKING:
    from shoal.exits.figures import Earnings
    from shoal.model import Crawl, ExitStatus, Progress
    from shoal.processes.opening import Places

ROWS_SHOWN = 1000
ROWS_READ = 100_000
EARNINGS_COLUMNS = (
    "host", "pool", "exits", "requests", "success", "blocks", "failures", "cost", "per 1,000 good",
)  # fmt: skip
EXIT_COLUMNS = (
    "exit", "pool", "host", "requests", "in flight", "success", "blocks", "failures", "latency", "bytes", "cost",
    "health",
)  # fmt: skip
# The columns that a narrow terminal leaves out, in this order. The pool is part of an exit's name.
SPARE_COLUMNS = ("pool", "in flight", "bytes", "latency", "cost", "failures", "blocks")
SPARE_EARNINGS = ("cost", "per 1,000 good", "exits", "failures", "blocks")
# The orders of the rows; the exits that people look for come first.
ORDERS: dict[str, Callable[[ExitStatus], Any]] = {
    "exit": lambda one: (one.exit, one.lane),
    "host": lambda one: (host_of(one.lane), pool_of(one.lane), one.exit),
    "requests": lambda one: -one.requests,
    "success": lambda one: _success(one),
    "blocks": lambda one: -one.blocked,
    "failures": lambda one: -one.failed,
    "latency": lambda one: -(EndedRequests.of([one]).mean_seconds or 0.0),
    "bytes": lambda one: -one.size,
    "cost": lambda one: -one.cost,
}


@click.command(short_help="Health and cost of proxies and accounts, per host.")
@crawl_argument
@click.option("--host", metavar="HOST", help="Only towards this host.")
@click.option("--pool", metavar="NAME", help="Only exits of this pool.")
@click.option("--sort", type=click.Choice(list(ORDERS)), default="exit", show_default=True, help="Order of the exits.")
@place_options(store=False)
@json_option
def exits(crawl: str | None, *, places: Places, as_json: bool, **which: Any) -> None:
    """Health and cost of proxies and accounts: first per host and pool, then for every exit.

    \b
    Example: shoal exits books-1 --host example.com --sort success
    """
    from shoal.cli.loop import run

    run(_exits(crawl, places=places, as_json=as_json, **which))


async def _exits(
    name: str | None, *, places: Places, host: str | None, pool: str | None, sort: str, as_json: bool
) -> None:
    from shoal.cli.which import chosen_crawl

    async with chosen_crawl(places, name) as (frontier, crawl):
        _check_pool(crawl, pool)
        found = await frontier.exits(crawl.id, limit=ROWS_READ)
        progress = await frontier.progress(crawl.id)
    rows = _chosen(found, host=host, pool=pool)
    earnings = earnings_of(rows)
    rows.sort(key=ORDERS[sort])
    screen = Screen()
    if found and not rows and not as_json:
        screen.say(
            f"{crawl.id}: no exit was used for this --host and --pool; without these options all exits are shown"
        )
    elif as_json:
        screen.json(document(crawl, progress, rows, earnings))
    else:
        _show(crawl, progress, rows, earnings, screen)


def document(
    crawl: Crawl, progress: Progress, rows: Sequence[ExitStatus], earnings: Sequence[Earnings]
) -> dict[str, Any]:
    """Health and cost for scripts."""
    return {
        "crawl": crawl.id,
        "cost": progress.cost,
        "budget": crawl.budgets.cost or None,
        "hosts": [_earnings_document(one, regions=_regions(crawl)) for one in earnings[:ROWS_SHOWN]],
        "more_hosts": max(0, len(earnings) - ROWS_SHOWN),
        "exits": [_exit_document(one) for one in rows[:ROWS_SHOWN]],
        "more_exits": max(0, len(rows) - ROWS_SHOWN),
    }


def _earnings_document(one: Earnings, *, regions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "host": one.host,
        "pool": one.pool,
        "region": regions.get(one.pool) or None,
        "exits": one.exits,
        "requests": one.requests,
        "ok": one.ended.ok,
        "blocked": one.ended.blocked,
        "failed": one.ended.failed,
        "success": one.ended.success,
        "cost": one.cost,
        "cost_per_1000_ok": one.cost_per_1000_ok,
    }


def _exit_document(one: ExitStatus) -> dict[str, Any]:
    ended = EndedRequests.of([one])
    return {
        "exit": one.exit,
        "pool": pool_of(one.lane),
        "host": host_of(one.lane),
        "requests": one.requests,
        "in_flight": one.in_flight,
        "ok": one.ok,
        "blocked": one.blocked,
        "failed": one.failed,
        "success": ended.success,
        "mean_seconds": ended.mean_seconds,
        "bytes": one.size,
        "cost": one.cost,
        "health": _state(one),
        "rests_for": one.rests_for,
        "parked_for": one.parked_for,
    }


def _show(
    crawl: Crawl, progress: Progress, rows: Sequence[ExitStatus], earnings: Sequence[Earnings], screen: Screen
) -> None:
    """Health and cost for people."""
    from shoal.processes.stats import cost_so_far

    if not rows:
        screen.say(
            f"{crawl.id}: {'no exit was used yet' if crawl.pools else 'it has no pools, every request is direct'}"
        )
        return
    shown = earnings[:ROWS_SHOWN]
    rows_of_pools = [_earnings_row(one, regions=_regions(crawl)) for one in shown]
    screen.table(
        EARNINGS_COLUMNS, rows_of_pools, right=EARNINGS_COLUMNS[2:], spare=SPARE_EARNINGS, folds=("host", "pool")
    )
    screen.line()
    now = time.time()
    rows_of_exits = [_exit_row(one, now=now) for one in rows[:ROWS_SHOWN]]
    screen.table(EXIT_COLUMNS, rows_of_exits, right=EXIT_COLUMNS[3:-1], spare=SPARE_COLUMNS)
    if spent := cost_so_far(crawl, progress):
        screen.line()
        screen.line(spent)
    for what, total in (("host", len(earnings)), ("exit", len(rows))):
        if total > ROWS_SHOWN:
            screen.say(f"and {several(total - ROWS_SHOWN, what)} more; --host and --pool show fewer")


def _regions(crawl: Crawl) -> dict[str, str]:
    """The regions of a crawl's pools by name, for pools that have one."""
    return {pool.name: pool.region for pool in crawl.pools if pool.region}


def _earnings_row(one: Earnings, *, regions: Mapping[str, str]) -> tuple[str, ...]:
    return (
        one.host,
        f"{one.pool} ({regions[one.pool]})" if one.pool in regions else one.pool,
        count(one.exits),
        count(one.requests),
        _or_nothing(one.ended.success, share),
        count(one.ended.blocked),
        count(one.ended.failed),
        money(one.cost),
        _or_nothing(one.cost_per_1000_ok, money),
    )


def _exit_row(one: ExitStatus, *, now: float) -> tuple[str, ...]:
    ended = EndedRequests.of([one])
    return (
        one.exit,
        pool_of(one.lane),
        host_of(one.lane),
        count(one.requests),
        count(one.in_flight),
        _or_nothing(ended.success, share),
        count(one.blocked),
        count(one.failed),
        _or_nothing(ended.mean_seconds, duration),
        size(one.size),
        money(one.cost),
        _health(one, now=now),
    )


def _state(one: ExitStatus) -> str:
    """The exit's health in one word, as scripts know it: "resting" is a quarantine."""
    health = health_of(one)
    return "resting" if health == "quarantined" else health


def _health(one: ExitStatus, *, now: float) -> str:
    """The exit's health for people, in the glossary's words and with the time."""
    match _state(one):
        case "parked":
            return f"parked until {clock_time(now + one.parked_for)}"
        case "resting":
            return f"quarantined until {clock_time(now + one.rests_for)}"
        case "probation":
            return "on probation"
        case _:
            return "healthy"


def _success(one: ExitStatus) -> float:
    """The lowest success first; exits without an ended request come last."""
    success = EndedRequests.of([one]).success
    return 2.0 if success is None else success


def _or_nothing(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)


def _check_pool(crawl: Crawl, pool: str | None) -> None:
    names = [one.name for one in crawl.pools]
    if pool is not None and pool not in names:
        known = f"only {', '.join(names)}" if names else "nor any other"
        raise UsageError(f"{crawl.id} has no pool {pool!r}, {known}")


def _chosen(found: Sequence[ExitStatus], *, host: str | None, pool: str | None) -> list[ExitStatus]:
    from shoal.processes.steering import lane_given

    wanted = None if host is None else lane_given(host)
    return [
        one
        for one in found
        if (wanted is None or host_of(one.lane) == wanted) and (pool is None or pool_of(one.lane) == pool)
    ]
