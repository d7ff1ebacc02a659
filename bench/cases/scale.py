"""Case K: the way to a billion. Redis shards from 1 to 16 under 200 workers that fetch nothing; see bench/scale.py."""

from __future__ import annotations

from bench.case import Bar, Case, Plan
from bench.case_main import main
from bench.redis_server import find_redis
from bench.scale import HOSTS, LEASES, LINKS, Crowd, Measured, measure

SHARDS = (1, 2, 4, 8, 16)
MANY_URLS, MANY_LEASES, ALL_LINKS = 10_000_000, 64, 32
CROWD = Crowd(workers=200, urls=1_000_000, seconds=20.0, wait=8.0)
QUICK_SHARDS = (1, 2)
QUICK_CROWD = Crowd(workers=20, urls=20_000, seconds=1.0, wait=0.4, processes=2)
COLUMNS = [
    "Redis shards", "workers", "URLs", "leases", "links", "pages take", "pages/s here", "pages per CPU-second of Redis",
    "client CPU µs", "links to other shards", "lease ms", "99 %", "bytes on the wire per page", "bytes per waiting URL",
]  # fmt: skip


def run(plan: Plan) -> Case:
    """Each number of shards once; the largest with ten million URLs as well."""
    find_redis()
    crowd = QUICK_CROWD if plan.quick else CROWD
    found = [one for shards in (QUICK_SHARDS if plan.quick else SHARDS) for one in measure(shards, crowd)]
    if not plan.quick:
        found += measure(SHARDS[-1], crowd._replace(leases=MANY_LEASES))
        found += measure(SHARDS[-1], crowd._replace(links=ALL_LINKS))
        found += measure(SHARDS[-1], crowd._replace(urls=MANY_URLS))
    return Case(
        letter="K",
        title="the way to a billion",
        how=[
            "redis-server processes of Debian's package, append-only file on (everysec); several are a Redis Cluster,"
            " with one shard of the crawl on each. All share this machine's cores with the workers, so pages per"
            " CPU-second of Redis is the figure that carries over: it is what one core for each shard allows.",
            f"Workers in four processes, each with connections of its own: lease {LEASES} pages, wait, settle them. A"
            f" page has {LINKS} links that its worker has not met lately: half of them known and on its own host, the"
            f" others anywhere, one of them new; up to {HOSTS:,} hosts, no pace. The largest number of shards"
            f" also with {MANY_LEASES} leases at a time, with all {ALL_LINKS} links of a page asked for, and with"
            f" {MANY_URLS:,} URLs.",
            'First at full speed ("pages take 0 s"), then with pages that take a while, so that the cores are not full'
            " and the time of a lease means something. It is the time of the whole call, in the worker.",
        ],
        columns=COLUMNS,
        rows=[_row(one) for one in found],
        bars=[
            Bar(
                label=f"{one.shards} shards, {one.urls:,} URLs, {one.leases} leases, {one.links} links",
                value=one.per_redis_second,
            )
            for one in found
            if not one.wait
        ],
        bar_unit="pages per CPU-second of Redis",
    )


def _row(one: Measured) -> list[str]:
    return [
        str(one.shards),
        str(one.workers),
        f"{one.urls:,}",
        str(one.leases),
        str(one.links),
        f"{one.wait:g} s",
        f"{one.per_second:,.0f}",
        f"{one.per_redis_second:,.0f}",
        f"{one.work.client_seconds / one.work.settled * 1e6:,.0f}",
        f"{one.far_share:.0%}",
        f"{one.lease_ms(0.5):.1f}",
        f"{one.lease_ms(0.99):.1f}",
        f"{one.net_bytes:,.0f}",
        f"{one.url_bytes:.0f}",
    ]


if __name__ == "__main__":
    main(run)
