"""Case F: the frontier alone, at 10,000, a million and ten million known URLs, in SQLite and in Redis."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from redis import Redis

from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.case_main import main
from bench.crawlers import WORK
from bench.frontier_states import BLOOM, KINDS, State, opened, prepared
from bench.frontier_subject import CRAWL, LINKS, Rate, Stopwatch, Subject, lane_name, make_task
from bench.redis_server import RedisServer, find_redis, redis_server
from shoal.model import Done

SIZES = (10_000, 1_000_000, 10_000_000)
QUICK_SIZES = (10_000, 30_000)
BLOOM_MOST = 1_000_000
FRESH = 100_000
TASKS = 1_000
PAGES, QUICK_PAGES = 4_000, 1_000
SMALL_PAGES = 1_000  # a page makes one more URL known: a small frontier must not grow much
SET_BATCH = 100
MOST_GROWTH, MOST_REDIS_BYTES, MOST_SQLITE_BYTES = 1.3, 12.0, 20.0
COLUMNS = [
    "frontier", "known", "put/s", "lease/s", "settle/s", "CPU µs put", "lease", "settle",
    "pages/s", "CPU µs per page", "scripts per page", "commands inside", "bytes waiting", "bytes finished",
]  # fmt: skip


class Sample(NamedTuple):
    """What one round found at one frontier. Calls are of Redis, per page."""

    put: Rate
    lease: Rate
    settle: Rate
    page: Rate
    scripts: float
    inside: float


def run(plan: Plan) -> Case:
    """Grow the frontiers that are missing, then measure all of them in turn."""
    find_redis()
    sizes = QUICK_SIZES if plan.quick else SIZES
    wanted = [(kind, size) for kind in KINDS for size in sizes if kind != "Redis, Bloom" or size <= BLOOM_MOST]
    states = [prepared(kind, size) for kind, size in wanted]
    samples, fresh = asyncio.run(_measure(states, plan))
    sets = {size: measure_set(size) for size in sizes}
    rows = [_row(state, samples[index]) for index, state in enumerate(states)]
    rows += [_set_row(size, rate, size_bytes) for size, (rate, size_bytes) in sets.items()]
    costs = {
        (state.kind, state.known): spread_of([sample.page.cpu_us for sample in samples[index]]).median
        for index, state in enumerate(states)
    }
    return Case(
        letter="F",
        title="the frontier alone",
        how=_how(plan, sizes),
        columns=COLUMNS,
        rows=rows,
        figures=_figures(states, costs, smallest=sizes[0], largest=sizes[-1]),
        bars=[Bar(label=f"{kind}, {known:,} known", value=1e6 / cost) for (kind, known), cost in costs.items()],
        bar_unit="pages per CPU-second",
        notes=_notes(states, fresh),
    )


async def _measure(states: list[State], plan: Plan) -> tuple[list[list[Sample]], dict[int, float]]:
    """Samples by state; and by the size of each Bloom filter, which share of new URLs it takes for known ones."""
    samples: list[list[Sample]] = [[] for _ in states]
    fresh: dict[int, float] = {}
    many = QUICK_PAGES if plan.quick else PAGES
    async with AsyncExitStack() as stack:
        subjects = [await stack.enter_async_context(opened(state)) for state in states]
        for subject in subjects:
            # Redis checks a crawl after a restart, and caches are cold.
            await _pages(subject, TASKS)
        for number in range(plan.rounds):
            for state, subject, found in zip(states, subjects, samples, strict=True):
                found.append(await _sample(subject, pages=many if state.known > SMALL_PAGES * 10 else SMALL_PAGES))
                cost = found[-1].page.cpu_us
                print(f"round {number + 1}: {state.kind}, {state.known:,} known: {cost:.1f} µs per page", flush=True)
        for state, subject in zip(states, subjects, strict=True):
            if KINDS[state.kind] == BLOOM:
                asked = min(FRESH, state.known // 10)
                fresh[state.known] = 1 - await subject.grow(asked) / asked
    return samples, fresh


async def _sample(subject: Subject, *, pages: int) -> Sample:
    gc.collect()
    tasks = subject.new_tasks(TASKS)
    watch = Stopwatch(subject.server)
    await subject.frontier.put(CRAWL, tasks)
    put = watch.stop(TASKS)
    watch = Stopwatch(subject.server)
    leases = await subject.lease_many(TASKS)
    lease = watch.stop(TASKS)
    results = [Done(lease=lease) for lease in leases]
    watch = Stopwatch(subject.server)
    await subject.settle_many(results)
    settle = watch.stop(TASKS)
    before = _calls(subject.server)
    page = await _pages(subject, pages)
    scripts, inside = (after - former for after, former in zip(_calls(subject.server), before, strict=True))
    return Sample(put, lease, settle, page, scripts / pages, inside / pages)


async def _pages(subject: Subject, pages: int) -> Rate:
    """Lease and settle pages, whose links are made while no clock runs."""
    parts = []
    for _ in range(pages // TASKS):
        watch = Stopwatch(subject.server)
        leases = await subject.lease_many(TASKS)
        parts.append(watch.stop(TASKS))
        results = [subject.page(lease) for lease in leases]
        watch = Stopwatch(subject.server)
        await subject.settle_many(results)
        parts.append(watch.stop(TASKS))
    return Rate(pages, *(sum(amounts) for amounts in list(zip(*parts, strict=True))[1:]))


def _calls(server: RedisServer | None) -> tuple[int, int]:
    """How many scripts Redis has run, and how many commands inside them."""
    commands: Mapping[str, Mapping[str, Any]] = server.commands if server else {}
    found: dict[bool, int] = defaultdict(int)
    for name, stats in commands.items():
        if name not in ("info", "ping", "hello", "client|setinfo", "config|set", "select"):
            found[name in ("evalsha", "eval", "fcall")] += int(stats["calls"])
    return found[True], found[False]


def measure_set(size: int) -> tuple[Rate, float]:
    """A plain set of URLs, as tutorials have it: pages of 32 links looked up and added, and bytes per URL."""
    draw = random.Random(size)
    with redis_server(WORK / "redis-set") as server, Redis.from_url(server.url, protocol=2, driver_info=None) as client:
        empty = server.used_bytes
        for first in range(0, size, 10_000):
            client.sadd("seen", *(_url(number) for number in range(first, min(size, first + 10_000))))
        size_bytes = (server.used_bytes - empty) / size
        pages = [
            [_url(size + page), *(_url(draw.randrange(size)) for _ in range(LINKS - 1))] for page in range(SMALL_PAGES)
        ]
        watch = Stopwatch(server)
        for first in range(0, SMALL_PAGES, SET_BATCH):
            pipeline = client.pipeline(transaction=False)
            for page in pages[first : first + SET_BATCH]:
                for url in page:
                    pipeline.sadd("seen", url)
            pipeline.execute()
        return watch.stop(SMALL_PAGES), size_bytes


def _url(number: int) -> str:
    return make_task(number, lane=lane_name(number % 1000)).url


def _row(state: State, samples: list[Sample]) -> list[str]:
    verbs = [
        [(sample.put, sample.lease, sample.settle, sample.page)[index] for sample in samples] for index in range(4)
    ]
    rates = [spread_of([rate.per_second for rate in rates]) for rates in verbs]
    costs = [spread_of([rate.cpu_us for rate in rates]) for rates in verbs]
    is_redis = state.kind != "SQLite"
    calls = [spread_of(list(found)).median for found in zip(*(sample[4:] for sample in samples), strict=True)]
    return [
        state.kind,
        f"{state.known:,}",
        *(rate.shown() for rate in rates[:3]),
        *(cost.shown(".1f") for cost in costs[:3]),
        rates[3].shown(),
        costs[3].shown(".1f"),
        *(f"{value:.2f}" if is_redis else "" for value in calls),
        f"{state.waiting_bytes:.1f}",
        f"{state.finished_bytes:.1f}",
    ]


def _set_row(size: int, rate: Rate, size_bytes: float) -> list[str]:
    cells = ["", "", "", "", "", "", f"{rate.per_second:,.0f}", f"{rate.cpu_us:.1f}", "0.00", f"{LINKS:.2f}"]
    return ["Redis, a set of URLs", f"{size:,}", *cells, "", f"{size_bytes:.1f}"]


def _figures(states: list[State], costs: dict[tuple[str, int], float], *, smallest: int, largest: int) -> list[Figure]:
    finished = {(state.kind, state.known): state.finished_bytes for state in states}
    figures = [
        Figure(
            what=f"{kind}: CPU per page at {largest:,} known URLs, of that at {smallest:,}",
            value=costs[kind, largest] / costs[kind, smallest],
            wanted=MOST_GROWTH,
            sense="at most",
            unit="times",
            bound_by="memory: a link may be any of the known ones, and these outgrow the processor's caches",
        )
        for kind in ("SQLite", "Redis")
    ]
    for kind, most in (("SQLite", MOST_SQLITE_BYTES), ("Redis", MOST_REDIS_BYTES)):
        what, value = f"{kind}: a finished URL of {largest:,}", finished[kind, largest]
        figures.append(Figure(what=what, value=value, wanted=most, sense="at most", unit="bytes"))
    return figures


def _how(plan: Plan, sizes: tuple[int, ...]) -> list[str]:
    return [
        f"Frontiers with {', '.join(f'{size:,}' for size in sizes)} known URLs in 1,000 lanes without a pace, half of"
        " them finished, half waiting; grown by put, lease and settle in large batches, kept under bench/.work, and"
        " copied for each run. Redis with its append-only file on (everysec), Debian's package, on this machine.",
        "One client, batches of 100. A page is a lease and a settle with 32 links, one of them new, 31 drawn from all"
        " known URLs with equal chances. All 32 are asked for: a worker spares the ones it has met lately.",
        "CPU is that of client and server together. Scripts and the commands inside them: INFO commandstats.",
        "Bytes: what the data grew by per URL of 67 bytes: Redis used_memory, SQLite pages in use. Lanes are counted"
        " in, which weighs at 10,000 URLs.",
        f"Bloom: dedup = {BLOOM}. The set of URLs: SADD of 32 URLs per page, pipelined by 100 pages, no queue at all.",
        f"Medians of {plan.rounds} rounds over all frontiers in turn, and their spread.",
    ]


def _notes(states: list[State], fresh: dict[int, float]) -> list[str]:
    return [
        f"Bloom at {state.known:,}: of {min(FRESH, state.known // 10):,} new URLs {fresh[state.known]:.4%} were taken"
        f" for known ones ({BLOOM.partition(':')[2]} accepted); while it grew, {state.denied:,} of {state.known:,}."
        for state in states
        if state.known in fresh and KINDS[state.kind] == BLOOM
    ]


if __name__ == "__main__":
    main(run)
