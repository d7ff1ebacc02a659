"""What the Redis frontier costs its client, page by page: leases and settles with 32 links each, one of them new."""

from __future__ import annotations

import asyncio

from shoal.frontier.redis.frontier import RedisFrontier
from shoal.model import Crawl, Done, Task
from shoal.urls.canonical import key_of, lane_of

LINKS = 32
BATCH = 20


class RedisSide:
    """Leases and settles pages of new crawls over a real server, in an event loop of its own."""

    def __init__(self, url: str, *, most: int) -> None:
        self._url = url
        # Made beforehand: what a link costs before it is put is counted with the spiders.
        self._tasks = [_task(number) for number in range(most + 2 * BATCH)]

    def run(self, crawl: str, *, pages: int) -> int:
        """Lease and settle so many pages, a batch at a time; gives their number."""
        return asyncio.run(self._run(crawl, pages))

    async def _run(self, crawl: str, pages: int) -> int:
        frontier = await RedisFrontier.open(self._url)
        try:
            await frontier.open_crawl(Crawl(id=crawl, spider="guard", interval=0.0, cap=1_000_000))
            await frontier.put(crawl, self._tasks[:BATCH])
            done = 0
            # One call after the other: no step depends on how fast the server is.
            while done < pages:
                batch = await frontier.lease([crawl], BATCH, worker="guard:1:1", seconds=600.0, horizon=1.0)
                if not batch.leases:
                    raise SystemExit("the Redis frontier lends nothing although tasks are waiting")
                await frontier.settle(
                    [
                        Done(lease=lease, outcome="ok", found=self._links(done + n))
                        for n, lease in enumerate(batch.leases)
                    ]
                )
                done += len(batch.leases)
            return done
        finally:
            await frontier.close()

    def _links(self, page: int) -> list[Task]:
        """The links of a page: a new one, and others that are known."""
        new = page + BATCH
        return [self._tasks[new], *(self._tasks[(new * 7919 + step) % new] for step in range(LINKS - 1))]


def _task(number: int) -> Task:
    url = f"http://redis.test/section-000/page-{number:06d}.html"
    return Task(url=url, key=key_of(url), lane=lane_of(url), depth=1)
