"""The table of docs/how-to/autoscaling.md: what the simulation gives for a few crawls, with KEDA."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

from crawl_model import Host, ModelCrawl
from fleet_model import Deployment, Fleet

MINUTES: Final = (1, 2, 5, 10, 20, 30, 60)
FROM: Final = "| A crawl "


class Row(NamedTuple):
    """A crawl of the table."""

    what: str
    made: Callable[[], ModelCrawl]
    noise: float = 0.0


def hosts(number: int, *, interval: float, waiting: int) -> list[Host]:
    """So many hosts at one pace, each with so many pages."""
    return [
        Host(name=f"h{place}.example", interval=interval, cap=64, waiting={"http": waiting}) for place in range(number)
    ]


def of_cores() -> ModelCrawl:
    """Five hosts at forty pages per second feed five cores: six workers."""
    return ModelCrawl(id="a", hosts=hosts(5, interval=0.025, waiting=400_000), cpu={"http": 0.025})


def of_paces() -> ModelCrawl:
    return ModelCrawl(id="a", hosts=hosts(3, interval=1.0, waiting=400_000))


def of_slots() -> ModelCrawl:
    return ModelCrawl(id="a", hosts=hosts(6, interval=0.2, waiting=500_000), latency=5.0, cpu={"http": 0.005})


def that_ends() -> ModelCrawl:
    return ModelCrawl(id="a", hosts=hosts(5, interval=0.025, waiting=32_000), cpu={"http": 0.025})


def visited_again() -> ModelCrawl:
    return ModelCrawl(id="a", hosts=hosts(5, interval=0.1, waiting=500), revisit=2_700.0)


ROWS: Final = (
    Row("whose five hosts allow 200 pages/s, of 25 ms of CPU each", of_cores),
    Row("the same, with noise of 20 % in latency and CPU", of_cores, noise=0.2),
    Row("with 1,200,000 pages of three hosts at 1/s", of_paces),
    Row("whose six hosts at 5/s answer after 5 s", of_slots),
    Row("of 160,000 pages, done after a quarter of an hour", that_ends),
    Row("of 2,500 pages that are visited again after 45 minutes", visited_again),
)


async def table() -> str:
    """The table, in Markdown."""
    times = " | ".join(f"{minute} min" for minute in MINUTES)
    lines = [f"{FROM}| {times} | changes |", "|---|" + "---|" * (len(MINUTES) + 1)]
    for row in ROWS:
        fleet = Fleet([row.made()], [Deployment(scaler="keda")], noise=row.noise)
        await fleet.run(3_600)
        replicas = {one.at: one.replicas for one in fleet.seen[0]}
        found = [str(replicas[60.0 * minute]) for minute in MINUTES]
        changes = sum(before != after for before, after in pairwise(replicas.values()))
        lines.append(f"| {row.what} | {' | '.join(found)} | {changes} |")
    return "\n".join(lines) + "\n"
