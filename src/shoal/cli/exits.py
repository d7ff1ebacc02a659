"""`shoal exits`: health and cost of a crawl's exits (proxies and accounts)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shoal.cli.display.numbers import count, duration, several, share, size
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_option, place_options
from shoal.errors import UsageError
from shoal.exits.figures import EndedRequests, clock_time, earnings_of, health_of, host_of, money, pool_of_lane
from shoal.exits.offered import is_offered, machine_of, name_on, offers_of
from shoal.exits.pools import region_of
from shoal.model import REGION

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.exits.figures import Earnings
    from shoal.exits.offered import MachineOffer
    from shoal.model import Crawl, ExitStatus, Progress

ROWS_SHOWN = 1000
ROWS_READ = 100_000
EARNINGS_COLUMNS = (
    "host", "pool", "exits", "requests", "success", "blocks", "failures", "cost", "per 1,000 good",
)  # fmt: skip
EXIT_COLUMNS = (
    "exit", "pool", "machine", "host", "requests", "in flight", "success", "blocks", "failures", "latency", "bytes",
    "cost", "health",
)  # fmt: skip
NO_POOLS = "it has no pools, every request is direct"
NOT_OFFERED = ", not offered now"
OFFER_COLUMNS = ("machine", "offers to", "exits", "workers")
# Columns that a narrow terminal leaves out, in this order. An exit's name contains its pool and machine.
SPARE_COLUMNS = ("pool", "machine", "in flight", "bytes", "latency", "cost", "failures", "blocks")
SPARE_EARNINGS = ("cost", "per 1,000 good", "exits", "failures", "blocks")
# Sort orders; the largest numbers and the lowest success come first.
ORDERS: dict[str, Callable[[ExitStatus], Any]] = {
    "exit": lambda one: (one.exit, one.lane),
    "host": lambda one: (host_of(one.lane), pool_of_lane(one.lane), one.exit),
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
@click.option("--host", metavar="HOST", help="Only requests to this host.")
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
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.worker.workers import at_work

    async with chosen_crawl(places, name) as (frontier, crawl):
        found = await frontier.exits(crawl.id, limit=ROWS_READ)
        progress = await frontier.progress(crawl.id)
        offers = offers_of(await at_work(crawl.id, frontier=frontier))
    _check_pool(crawl, pool, regions=[*(one.pool for one in offers), *(pool_of_lane(one.lane) for one in found)])
    rows = _chosen(found, host=host, pool=pool)
    earnings = earnings_of(rows)
    rows.sort(key=ORDERS[sort])
    screen, shown = (
        Screen(),
        ExitReport(crawl, progress, rows, earnings, [one for one in offers if pool in (None, one.pool)]),
    )
    if found and not rows and not as_json:
        screen.say(f"{crawl.id}: no exit was used for this --host and --pool; leave them out to see all exits")
    elif as_json:
        screen.json(document(shown))
    else:
        _show(shown, screen)


class ExitReport(NamedTuple):
    """A crawl's exits per host, the figures of its pools, and the exits that machines offer now."""

    crawl: Crawl
    progress: Progress
    rows: Sequence[ExitStatus]
    earnings: Sequence[Earnings]
    offers: Sequence[MachineOffer]

    def machine_of(self, one: ExitStatus) -> str:
        """The machine of an exit; empty: every worker can use it."""
        return machine_of(one, self.crawl.pools)

    def is_offered(self, one: ExitStatus) -> bool:
        """Whether a worker can use the exit now."""
        now = [name_on(offer.machine, offer.pool) for offer in self.offers]
        return is_offered(one, self.machine_of(one), now)

    def is_missed(self, one: ExitStatus) -> bool:
        """Whether the crawl has tasks left, and no worker can use the exit."""
        return self.progress.left > 0 and not self.is_offered(one)

    def region_of(self, pool: str) -> str:
        """The region of a pool; empty: none."""
        if pool.startswith(REGION):
            return pool.removeprefix(REGION)
        return next((one.region for one in self.crawl.pools if one.name == pool), "")


def document(shown: ExitReport) -> dict[str, Any]:
    """Health and cost for scripts."""
    crawl, progress, rows, earnings, offers = shown
    return {
        "crawl": crawl.id,
        "cost": progress.cost,
        "budget": crawl.budgets.cost or None,
        "hosts": [_earnings_document(one, shown) for one in earnings[:ROWS_SHOWN]],
        "more_hosts": max(0, len(earnings) - ROWS_SHOWN),
        "exits": [_exit_document(one, shown) for one in rows[:ROWS_SHOWN]],
        "more_exits": max(0, len(rows) - ROWS_SHOWN),
        "offers": [one._asdict() for one in offers],
    }


def _earnings_document(one: Earnings, shown: ExitReport) -> dict[str, Any]:
    return {
        "host": one.host,
        "pool": one.pool,
        "region": shown.region_of(one.pool) or None,
        "exits": one.exits,
        "requests": one.requests,
        "ok": one.ended.ok,
        "blocked": one.ended.blocked,
        "failed": one.ended.failed,
        "success": one.ended.success,
        "cost": one.cost,
        "cost_per_1000_ok": one.cost_per_1000_ok,
    }


def _exit_document(one: ExitStatus, shown: ExitReport) -> dict[str, Any]:
    ended = EndedRequests.of([one])
    return {
        "exit": one.exit,
        "pool": pool_of_lane(one.lane),
        "machine": shown.machine_of(one) or None,
        "offered": shown.is_offered(one) if shown.machine_of(one) else None,
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


def _show(shown: ExitReport, screen: Screen) -> None:
    """Health and cost for people."""
    from shoal.insight.stats import cost_so_far

    crawl, progress, rows, earnings, offers = shown
    if not rows:
        screen.say(f"{crawl.id}: {'no exit was used yet' if _may_use_exits(shown) else NO_POOLS}")
        if offers:
            screen.table(OFFER_COLUMNS, [_offer_row(one) for one in offers], right=OFFER_COLUMNS[2:])
        return
    rows_of_pools = [_earnings_row(one, shown) for one in earnings[:ROWS_SHOWN]]
    screen.table(
        EARNINGS_COLUMNS, rows_of_pools, right=EARNINGS_COLUMNS[2:], spare=SPARE_EARNINGS, folds=("host", "pool")
    )
    screen.line()
    now = time.time()
    has_machines = any(shown.machine_of(one) for one in rows)
    columns = [name for name in EXIT_COLUMNS if has_machines or name != "machine"]
    rows_of_exits = [_exit_row(one, shown, now=now) for one in rows[:ROWS_SHOWN]]
    screen.table(
        columns,
        [[row[name] for name in columns] for row in rows_of_exits],
        right=EXIT_COLUMNS[4:-1],
        spare=SPARE_COLUMNS,
    )
    if offers:
        screen.line()
        screen.table(OFFER_COLUMNS, [_offer_row(one) for one in offers], right=OFFER_COLUMNS[2:])
    if spent := cost_so_far(crawl, progress):
        screen.line()
        screen.line(spent)
    for what, total in (("host", len(earnings)), ("exit", len(rows))):
        if total > ROWS_SHOWN:
            screen.say(f"and {several(total - ROWS_SHOWN, what)} more; --host and --pool show fewer")


def _may_use_exits(shown: ExitReport) -> bool:
    """Whether there is a pool, or tasks that ask for a region."""
    return bool(shown.crawl.pools or shown.offers or any(region_of(kind) for kind in shown.progress.kinds))


def _offer_row(one: MachineOffer) -> tuple[str, ...]:
    return (one.machine, one.pool, count(one.exits), count(one.workers))


def _earnings_row(one: Earnings, shown: ExitReport) -> tuple[str, ...]:
    region = "" if one.pool.startswith(REGION) else shown.region_of(one.pool)
    return (
        one.host,
        f"{one.pool} ({region})" if region else one.pool,
        count(one.exits),
        count(one.requests),
        _or_nothing(one.ended.success, share),
        count(one.ended.blocked),
        count(one.ended.failed),
        money(one.cost),
        _or_nothing(one.cost_per_1000_ok, money),
    )


def _exit_row(one: ExitStatus, shown: ExitReport, *, now: float) -> dict[str, str]:
    ended = EndedRequests.of([one])
    return {
        "exit": one.exit,
        "pool": pool_of_lane(one.lane),
        "machine": shown.machine_of(one),
        "host": host_of(one.lane),
        "requests": count(one.requests),
        "in flight": count(one.in_flight),
        "success": _or_nothing(ended.success, share),
        "blocks": count(one.blocked),
        "failures": count(one.failed),
        "latency": _or_nothing(ended.mean_seconds, duration),
        "bytes": size(one.size),
        "cost": money(one.cost),
        "health": f"{_health(one, now=now)}{NOT_OFFERED if shown.is_missed(one) else ''}",
    }


def _state(one: ExitStatus) -> str:
    """The exit's health in one word for scripts: "resting" is a quarantine."""
    health = health_of(one)
    return "resting" if health == "quarantined" else health


def _health(one: ExitStatus, *, now: float) -> str:
    """The exit's health for people, with the time when it changes."""
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
    """Sort key: the lowest success first, exits without an ended request last."""
    success = EndedRequests.of([one]).success
    return 2.0 if success is None else success


def _or_nothing(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)


def _check_pool(crawl: Crawl, pool: str | None, *, regions: Sequence[str]) -> None:
    """Refuse an unknown pool. regions: the pools of exits that are offered now or were used."""
    names = list(dict.fromkeys([*(one.name for one in crawl.pools), *regions]))
    if pool is not None and pool not in names:
        known = f"only {', '.join(names)}" if names else "nor any other"
        raise UsageError(f"{crawl.id} has no pool {pool!r}, {known}")


def _chosen(found: Sequence[ExitStatus], *, host: str | None, pool: str | None) -> list[ExitStatus]:
    from shoal.run.steering import lane_given

    wanted = None if host is None else lane_given(host)
    return [
        one
        for one in found
        if (wanted is None or host_of(one.lane) == wanted) and (pool is None or pool_of_lane(one.lane) == pool)
    ]
