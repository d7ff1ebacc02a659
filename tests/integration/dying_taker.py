"""A worker's part for the inbox of its spider, which ends itself with SIGKILL at a chosen step.

python dying_taker.py FRONTIER FOLDER PART VERB BEFORE CALL: the inbox is FOLDER, or the list in the Redis of FRONTIER.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from shoal.cli.process.worker_inboxes import WorkerInboxes
from shoal.cli.process.worker_process import WorkerJob
from shoal.crawl.code import NO_CODE
from shoal.crawl.folder_inbox import FolderInbox
from shoal.crawl.inbox import Listener
from shoal.crawl.opening import Places, shared_results
from shoal.frontier import open_frontier
from shoal.frontier.redis.inbox import RedisInbox
from shoal.run.intakes import intake_of
from shoal.spider.spider import Spider
from shoal.testing.killing import Trap

TAKER_SECONDS = 0.3
PAUSE_SECONDS = 0.02


class Books(Spider):
    def parse(self, page: object) -> None:
        """Nothing."""


async def take(url: str, folder: str, part: str, verb: str, *, before: bool, call: int) -> None:
    """Take in all that waits for the spider, or die on the way."""
    inbox: Any = (
        RedisInbox(url, taker_seconds=TAKER_SECONDS)
        if "://" in url
        else FolderInbox(Path(folder), clock=lambda: time.time() + 60)
    )
    parts: dict[str, Any] = {"frontier": await open_frontier(url), "inbox": inbox}
    if part:
        parts[part] = Trap(parts[part], verb=verb, before=before, call=call)
    frontier = parts["frontier"]
    listener = Listener(parts["inbox"], frontier=frontier, intake_of=intake_of, say=print)
    job = WorkerJob(reference="books.py", places=Places(frontier=url, store=f"{folder}/items.db"))
    async with shared_results() as results:
        worker = WorkerInboxes(
            job, spiders={"books": Books}, code=NO_CODE, frontier=frontier, results=results, say=print
        )
        while await inbox.count(["books"]):
            crawls = await frontier.crawls()
            if not await listener.take_in(crawls) and not await worker.begin(crawls, listener):
                await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    _, at, place, trapped, called, first, number = sys.argv
    asyncio.run(take(at, place, trapped, called, before=first == "before", call=int(number)))
