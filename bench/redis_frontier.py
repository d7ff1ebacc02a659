"""The Redis frontier alone, one client, beside BullMQ, and with many lanes: `python -m bench.redis_frontier`.

Links and tasks per second, BullMQ on the same server beside them; the cost of a lease from 10 to 100,000 lanes. Tasks
are made before the clock starts. What grows with the number of known URLs is case F.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path

from bench.bullmq import BullRates, measure_bullmq
from bench.crawlers import WORK
from bench.frontier_subject import LANES, LEASES, LINKS, Rate, Stopwatch, Subject
from bench.redis_server import RedisServer, redis_server

LINKED_TASKS = 3_000
PLAIN_TASKS = 30_000
LANE_COUNTS = (10, 100, 1_000, 10_000, 100_000)
LANE_LEASES = 10
LANE_SAMPLES = 400


async def opened(server: RedisServer, *, lanes: int = LANES) -> Subject:
    """An empty frontier."""
    server.empty()
    return await Subject.open(server.url, server, lanes=lanes)


async def measure_links(server: RedisServer, *, new: int, at_home: bool = False) -> Rate:
    """Settle tasks that found 32 links each, so many of them new: on other hosts, or on their own."""
    subject = await opened(server)
    await subject.grow(50_000)
    leases = await subject.lease_many(LINKED_TASKS)
    results = [subject.page(lease, new=new, lane=lease.task.lane if at_home else None) for lease in leases]
    watch = Stopwatch(server)
    await subject.settle_many(results)
    rate = watch.stop(len(results) * LINKS)
    await subject.close()
    return rate


async def measure_tasks(server: RedisServer) -> Rate:
    """Lease and settle tasks that found nothing."""
    subject = await opened(server)
    await subject.grow(PLAIN_TASKS)
    watch = Stopwatch(server)
    await subject.finish(PLAIN_TASKS)
    rate = watch.stop(PLAIN_TASKS)
    await subject.close()
    return rate


async def measure_lanes(server: RedisServer, lanes: int) -> float:
    """Microseconds of both sides' processor time per lease, with so many lanes waiting."""
    subject = await opened(server, lanes=lanes)
    await subject.grow(max(lanes, 2 * LANE_SAMPLES * LANE_LEASES))
    watch = Stopwatch(server)
    for _ in range(LANE_SAMPLES):
        await subject.lease(LANE_LEASES)
    rate = watch.stop(LANE_SAMPLES * LANE_LEASES)
    await subject.close()
    return rate.cpu_us


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.redis_frontier", description=__doc__)
    parts = ("rates", "bullmq", "lanes")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="leave the others out")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of rates and lanes, interleaved; the median counts"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    options = _options()
    figures: dict[str, object] = {}
    with redis_server(WORK / "redis-frontier") as server:
        print(f"Redis {server.version}, append-only file on, one client")
        if "rates" in options.only:
            figures["rates"] = _rates(server, rounds=options.rounds)
        if "bullmq" in options.only:
            figures["bullmq"] = _bullmq(server)
        if "lanes" in options.only:
            figures["lanes"] = _lanes(server, rounds=options.rounds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def _rates(server: RedisServer, *, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[Rate]] = defaultdict(list)
    for _ in range(rounds):
        found["links, 1 of 32 new"].append(asyncio.run(measure_links(server, new=1)))
        found["links, all new, one host"].append(asyncio.run(measure_links(server, new=LINKS, at_home=True)))
        found["links, all new, 32 hosts"].append(asyncio.run(measure_links(server, new=LINKS)))
        found["tasks leased and settled"].append(asyncio.run(measure_tasks(server)))
    print(f"{'':28}{'per second':>12}{'if alone':>12}{'client µs':>11}{'server µs':>11}")
    rows = {}
    for name, rates in found.items():
        row = {
            "per_second": statistics.median(rate.per_second for rate in rates),
            "alone_per_second": statistics.median(rate.alone_per_second for rate in rates),
            "client_us": statistics.median(rate.client_seconds / rate.steps for rate in rates) * 1e6,
            "server_us": statistics.median(rate.server_seconds / rate.steps for rate in rates) * 1e6,
        }
        rows[name] = row
        print(
            f"{name:28}{row['per_second']:12,.0f}{row['alone_per_second']:12,.0f}"
            f"{row['client_us']:11.2f}{row['server_us']:11.2f}",
            flush=True,
        )
    return rows


def _bullmq(server: RedisServer) -> dict[str, float]:
    server.empty()
    try:
        rates: BullRates = measure_bullmq(server.url, jobs=PLAIN_TASKS, concurrency=LEASES)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"BullMQ was left out: {error}")
        return {}
    print(f"{'BullMQ, jobs added in bulk':28}{rates.added_per_second:12,.0f}")
    print(f"{'BullMQ, jobs processed':28}{rates.processed_per_second:12,.0f}", flush=True)
    return rates._asdict()


def _lanes(server: RedisServer, *, rounds: int) -> dict[int, float]:
    found: dict[int, list[float]] = {lanes: [] for lanes in LANE_COUNTS}
    for _ in range(rounds):
        for lanes, costs in found.items():
            costs.append(asyncio.run(measure_lanes(server, lanes)))
    print(f"{'lanes':>12}{'CPU-µs per lease':>20}")
    medians = {lanes: statistics.median(costs) for lanes, costs in found.items()}
    for lanes, cost in medians.items():
        print(f"{lanes:12,}{cost:20.1f}", flush=True)
    return medians


if __name__ == "__main__":
    main()
