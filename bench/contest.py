"""Systems that crawl the same pages, one after another, interleaved and repeated: what each cost, beside the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.case import Bar, Figure, Spread, spread_of
from bench.grounds import Ground
from bench.idle import ServerWatch, busy_note, idle_share
from bench.measure import Cost

MIB = 1024 * 1024
COLUMNS = ["", "pages", "pages/s", "CPU-s per 1,000 pages", "of Redis, PostgreSQL", "peak MiB", "nginx idle"]


class Crawl(NamedTuple):
    """What one crawl cost: the system's own processes, and beside them Redis and PostgreSQL where it uses them."""

    cost: Cost
    servers_cpu_seconds: float = 0.0


class System(NamedTuple):
    """One that takes part: its name, the site it crawls, and how. Its crawl fails unless it has one item per page."""

    name: str
    ground: Ground
    crawl: Callable[[Ground], Crawl]


class Run(NamedTuple):
    """One crawl, and the share of its core that the web server did not use."""

    pages: int
    crawl: Crawl
    idle: float

    @property
    def pages_per_second(self) -> float:
        return self.pages / self.crawl.cost.seconds

    @property
    def cpu_per_thousand(self) -> float:
        return self.crawl.cost.cpu_seconds / self.pages * 1000

    @property
    def servers_per_thousand(self) -> float:
        return self.crawl.servers_cpu_seconds / self.pages * 1000


class Standing(NamedTuple):
    """A system's runs together."""

    name: str
    runs: list[Run]

    def spread(self, value: Callable[[Run], float]) -> Spread:
        return spread_of([value(run) for run in self.runs])

    @property
    def pages_per_second(self) -> Spread:
        return self.spread(lambda run: run.pages_per_second)

    @property
    def cpu_per_thousand(self) -> Spread:
        return self.spread(lambda run: run.cpu_per_thousand)

    @property
    def all_cpu_per_thousand(self) -> Spread:
        """Of the system and of Redis and PostgreSQL."""
        return self.spread(lambda run: run.cpu_per_thousand + run.servers_per_thousand)

    @property
    def row(self) -> list[str]:
        servers = self.spread(lambda run: run.servers_per_thousand)
        return [
            self.name,
            f"{self.runs[0].pages:,}",
            self.pages_per_second.shown(),
            self.cpu_per_thousand.shown(".3f"),
            servers.shown(".3f") if servers.high else "-",
            f"{self.spread(lambda run: run.crawl.cost.peak_bytes).median / MIB:,.0f}",
            f"{self.spread(lambda run: run.idle).median:.0%}",
        ]


def hold(systems: Sequence[System], *, rounds: int) -> dict[str, Standing]:
    """Every system once per round, in turn; by name, in the order given."""
    standings = {system.name: Standing(system.name, []) for system in systems}
    for number in range(1, rounds + 1):
        for system in systems:
            run = measure(system)
            standings[system.name].runs.append(run)
            print(
                f"round {number}: {system.name}, {run.pages:,} pages in {run.crawl.cost.seconds:.1f} s: "
                f"{run.pages_per_second:,.0f} pages/s, {run.cpu_per_thousand:.3f} CPU-s per 1,000, "
                f"nginx idle {run.idle:.0%}",
                flush=True,
            )
    return standings


def measure(system: System) -> Run:
    """One crawl, with the web server watched meanwhile."""
    watch = ServerWatch(system.ground.server_pid)
    crawl = system.crawl(system.ground)
    return Run(system.ground.pages, crawl, idle_share(watch.cpu_seconds(), seconds=crawl.cost.seconds))


class Rivalry(NamedTuple):
    """Ours against theirs, and how many times as fast ours has to be. `is_share`: as a share, in percent.

    `with_servers`: also by the CPU-seconds of system, Redis and PostgreSQL together. `bound_by`: what keeps ours from
    being faster."""

    ours: str
    theirs: str
    wanted: float
    is_share: bool = False
    with_servers: bool = False
    bound_by: str = ""


def figures_of(standings: dict[str, Standing], rivalries: Sequence[Rivalry]) -> list[Figure]:
    """For each by CPU-seconds per page, and by pages per second; none for those that did not run."""
    figures = []
    for rivalry in rivalries:
        if rivalry.ours in standings and rivalry.theirs in standings:
            ours, theirs = standings[rivalry.ours], standings[rivalry.theirs]
            by_cpu = theirs.cpu_per_thousand.median / ours.cpu_per_thousand.median
            by_speed = ours.pages_per_second.median / theirs.pages_per_second.median
            figures.append(_figure(rivalry, by_cpu, "by CPU"))
            if rivalry.with_servers:
                by_all = theirs.all_cpu_per_thousand.median / ours.all_cpu_per_thousand.median
                figures.append(_figure(rivalry, by_all, "by CPU with Redis"))
            figures.append(_figure(rivalry, by_speed, "by pages/s"))
    return figures


def _figure(rivalry: Rivalry, ratio: float, measure: str) -> Figure:
    factor, unit = (100, " %") if rivalry.is_share else (1, " times")
    return Figure(
        what=f"{rivalry.ours} against {rivalry.theirs}, {measure}",
        value=ratio * factor,
        wanted=rivalry.wanted * factor,
        sense="at least",
        unit=unit,
        bound_by=rivalry.bound_by,
    )


def bars_of(standings: dict[str, Standing]) -> list[Bar]:
    return [Bar(label=name, value=standing.pages_per_second.median) for name, standing in standings.items()]


def busy_notes(standings: dict[str, Standing]) -> list[str]:
    """Which results had a web server that was (nearly) the limit."""
    idle = {name: standing.spread(lambda run: run.idle).median for name, standing in standings.items()}
    return [note for name, share in idle.items() for note in busy_note(name, share)]
