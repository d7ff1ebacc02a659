"""A worker process that kills itself with SIGKILL at one chosen step: for proving that no step is special.

    python -m shoal.testing.killing DB CRAWL SPIDER_FILE --at settled --call 3 [--frontier redis://…]

The steps lie between fetch, archive, store and settle; `--at never` works to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from shoal.crawl.opening import Places, archive_of, opened
from shoal.run.building import worker_for
from shoal.spider.loading import load_spider

# Before and after each call that leaves the process: (part, verb, killed before the call?).
STEPS: Final = {
    "lease": ("frontier", "lease", True),
    "leased": ("frontier", "lease", False),
    "archive": ("archive", "write", True),
    "archived": ("archive", "write", False),
    "store": ("store", "write", True),
    "stored": ("store", "write", False),
    "settle": ("frontier", "settle", True),
    "settled": ("frontier", "settle", False),
}


class Trap:
    """Passes every call on, and dies before or after the n-th call of one verb."""

    def __init__(self, inner: Any, *, verb: str, before: bool, call: int) -> None:
        self._inner = inner
        self._verb = verb
        self._before = before
        self._left = call

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name != self._verb:
            return method

        async def deadly(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._before and self._left <= 0:
                die()
            result = await method(*args, **options)
            if self._left <= 0:
                die()
            return result

        return deadly


def die() -> None:
    """End this process as the kernel would: nothing is flushed, closed or said."""
    os.kill(os.getpid(), signal.SIGKILL)


async def work(places: Places, crawl_id: str, spider_file: str, *, at: str, call: int) -> None:
    """Be a worker of the crawl until the trap springs or nothing is left."""
    async with opened(places) as (frontier, store), archive_of(places) as archive:
        crawl = next(crawl for crawl in await frontier.crawls() if crawl.id == crawl_id)
        parts: dict[str, Any] = {"frontier": frontier, "store": store, "archive": archive}
        if at != "never":
            part, verb, before = STEPS[at]
            parts[part] = Trap(parts[part], verb=verb, before=before, call=call)
        async with worker_for(crawl, load_spider(spider_file)(), say=print, **parts) as worker:
            await worker.run(asyncio.Event())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db")
    parser.add_argument("crawl")
    parser.add_argument("spider")
    parser.add_argument("--frontier", help="where the tasks are, if not in the database")
    parser.add_argument("--store", help="where items go, if not into the database")
    parser.add_argument("--archive", help="where raw pages go, if they are kept")
    parser.add_argument("--at", choices=[*STEPS, "never"], default="never")
    parser.add_argument("--call", type=int, default=1)
    given = parser.parse_args(arguments)
    places = Places(frontier=given.frontier or given.db, store=given.store or given.db, archive=given.archive)
    asyncio.run(work(places, given.crawl, given.spider, at=given.at, call=given.call))


if __name__ == "__main__":
    main(sys.argv[1:])
