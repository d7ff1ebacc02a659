"""The feeders of a chaos run: one slow, one killed and started again, and a reserve until all deeds are done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from shoal.crawl.sources import feed
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.model import Crawl, Progress
from shoal.run.intakes import intake_of
from shoal.spider.spider import Request
from shoal.testing.chaos.log import RunLog, Say, say_nothing, until
from shoal.testing.chaos.plan import Deed
from shoal.worker.outages import until_reachable

RESERVE = "reserve"
# A starting feeder takes one that is silent for three seconds as dead.
RENEW_SECONDS = 0.5


class Reserve:
    """Feeds a few pages before each deed that comes when all other pages are done, and the rest at the end. The crawl
    is not finished until the last deed is done, however slow the machine. `is_empty`: all pages are fed."""

    def __init__(self, crawl: Crawl, urls: Sequence[str], *, frontier: Frontier, deeds: int) -> None:
        self._crawl = crawl
        self._urls = urls
        self._frontier = frontier
        self._step = max(1, len(urls) // (deeds + 1))
        self._given = 0
        self.is_empty = asyncio.Event()

    async def hold(self) -> None:
        """Keep the crawl unfinished. Call before its workers start."""
        await self._say_seconds(FEEDER_SECONDS)

    async def run(self, calm: asyncio.Event) -> None:
        """Hold until `calm` is set, then feed the rest."""
        while not calm.is_set():
            await self.hold()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await calm.wait()
        await self.give_all()
        await self._say_seconds(0)
        self.is_empty.set()

    async def give_some(self) -> None:
        """Feed a few pages, so that the crawl is at work for the next deed; never the last pages."""
        last = min(self._given + self._step, len(self._urls) - self._step)
        await self._put(self._urls[self._given : last])
        self._given = last

    async def give_all(self) -> None:
        """Feed every page, also fed ones: a restarted server may have lost them."""
        await self._put(self._urls)

    async def _put(self, urls: Sequence[str]) -> None:
        intake = intake_of(self._crawl)
        await feed(
            self._frontier,
            self._crawl.id,
            _requests(urls),
            intake=intake,
            max_pending=intake.settings.max_pending,
            say=say_nothing,
        )

    async def _say_seconds(self, seconds: float) -> None:
        await until_reachable(
            lambda: self._frontier.set_feeding(self._crawl.id, RESERVE, seconds=seconds), say=say_nothing
        )


async def _requests(urls: Sequence[str]) -> AsyncIterator[Request | None]:
    for url in urls:
        yield Request(url)


SLOW_STEPS = 10
SLOW_STEP_SECONDS = 0.4
AWAY_SECONDS = 1.0
# A feeder ends within this time of its last URL, even if the frontier is down meanwhile.
END_SECONDS = 60.0


class Feeder:
    """One feeder process: reads URLs until the end of its input."""

    def __init__(self, process: asyncio.subprocess.Process, say: Say) -> None:
        self._process = process
        self._listening = asyncio.create_task(self._pass_on(say))

    @classmethod
    async def start(cls, crawl: Crawl, environment: Mapping[str, str], *, say: Say) -> Feeder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.testing.chaos.feeder_process", crawl.id),
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, say)

    async def give(self, urls: Sequence[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{url}\n" for url in urls).encode())
        await self._process.stdin.drain()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening

    async def end(self) -> list[str]:
        """End its input and wait until it has fed all; returns a line if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            return [f"a feeder did not end within {END_SECONDS:g} s of its last URL"]
        await self._listening
        return [f"a feeder ended with code {code}"] if code else []

    async def _pass_on(self, say: Say) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            say(line.decode(errors="replace").rstrip("\n"))


class Feeders:
    """Feeds two parts at once; no link leads to them. The slow feeder keeps its last URLs until the crawl has nothing
    else to do, not even its reserve; the other one is killed by `kill_one` and started again."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        environment: Mapping[str, str],
        reserve: Reserve,
        log: RunLog,
        say: Say,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._reserve = reserve
        self._log = log
        self._start = partial(Feeder.start, crawl, environment, say=say)
        self._killed = asyncio.Event()
        self._again = asyncio.Event()

    async def run(self, slow: Sequence[str], other: Sequence[str]) -> None:
        """Feed both parts to their ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed_slowly(slow))
            group.create_task(self._feed_twice(other))

    async def kill_one(self) -> None:
        """Kill the feeder that is not slow, in the middle of its part; another one feeds that part again."""
        self._log.doing = "a feeder is killed and begun again; another one still feeds"
        self._killed.set()
        await asyncio.sleep(AWAY_SECONDS)
        self._again.set()
        self._log.done[Deed.FEED] += 1

    async def _feed_slowly(self, urls: Sequence[str]) -> None:
        feeder = await self._start()
        try:
            early, late = urls[: 3 * len(urls) // 4], urls[3 * len(urls) // 4 :]
            step = max(1, -(-len(early) // SLOW_STEPS))
            for first in range(0, len(early), step):
                await feeder.give(early[first : first + step])
                await asyncio.sleep(SLOW_STEP_SECONDS)
            await self._reserve.is_empty.wait()
            await until(partial(self._frontier.progress, self._crawl.id), self._has_run_dry)
            await feeder.give(late)
            self._log.surprises += await feeder.end()
        finally:
            await feeder.kill()

    async def _feed_twice(self, urls: Sequence[str]) -> None:
        feeder = await self._start()
        try:
            await feeder.give(urls[: len(urls) // 2])
            await self._killed.wait()
        finally:
            await feeder.kill()
        await self._again.wait()
        feeder = await self._start()
        try:
            await feeder.give(urls)
            self._log.surprises += await feeder.end()
        finally:
            await feeder.kill()

    def _has_run_dry(self, progress: Progress) -> bool:
        return progress.left == 0
