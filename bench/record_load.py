"""Records what a real crawl looks like to those who advise: a survey every five seconds, for the simulation of
autoscaling, which replays it.

    .venv/bin/python -m bench.record_load tests/unit/autoscaling/recorded_load.jsonl

A site on loopback, a paced host, a handler that needs 25 ms of CPU: one worker from the beginning, a second one that
joins after a minute, and the end of the crawl. Names of the machine and of its folders are left out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.crawlers import HERE, fresh_folder
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.insight.survey import Survey, surveyed
from shoal.model import Crawl, Heartbeat
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import eventually
from shoal.worker.workers import Member

PAGES: Final = 1_600
RATE: Final = "25/s"
BURN: Final = "0.025"
EVERY: Final = 5.0
SECOND_AT: Final = 60.0
LONGEST: Final = 300.0
# After the end of the crawl so many surveys more.
AFTER: Final = 3
DIGITS: Final = 3


def plain(value: Any) -> Any:
    """What JSON can hold, without what is at its default, and in few digits: it is decoded to the same struct."""
    if isinstance(value, msgspec.Struct):
        defaults = zip(value.__struct_fields__, _defaults(type(value)), strict=True)
        found = {name: getattr(value, name) for name, default in defaults if getattr(value, name) != default}
        return {name: plain(one) for name, one in found.items()}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _defaults(struct: type[msgspec.Struct]) -> list[Any]:
    fields = msgspec.structs.fields(struct)
    return [one.default_factory() if one.default_factory is not msgspec.NODEFAULT else one.default for one in fields]


def nameless(survey: Survey, *, began: float) -> Survey:
    """The survey without what tells of this machine, by seconds since the beginning."""
    names = sorted(member.beat.worker for member in survey.members)
    members = [Member(_nameless(one.beat, names.index(one.beat.worker)), one.presence) for one in survey.members]
    crawl = Crawl(id="recorded-1", spider="recorded", state=survey.crawl.state, interval=survey.crawl.interval)
    return msgspec.structs.replace(survey, crawl=crawl, members=members, at=survey.at - began)


def _nameless(beat: Heartbeat, number: int) -> Heartbeat:
    figures = msgspec.structs.replace(beat.figures, fetch_times=(), statuses={})
    return msgspec.structs.replace(
        beat, worker=f"w{number}", crawl="recorded-1", host="h", machine="m", pid=1 + number, figures=figures
    )


@contextlib.contextmanager
def running(folder: Path, environment: dict[str, str], *command: str) -> Iterator[None]:
    """A command of shoal, ended with the block."""
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command], cwd=folder, stdout=log, stderr=log,
            env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


async def recorded(folder: Path, start: str) -> list[Survey]:
    """The surveys of one crawl."""
    spider, environment = str(HERE / "advice_spider.py"), {"BENCH_URL": start, "BENCH_RATE": RATE, "BENCH_BURN": BURN}
    found: list[Survey] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(folder, environment, "run", spider, "--workers", "1"))
        await eventually((folder / "shoal.db").exists, seconds=60.0, pause=0.1)
        frontier = await open_frontier(str(folder / "shoal.db"))
        await eventually(frontier.crawls, seconds=60.0, pause=0.1)
        began, ended, has_joined = time.monotonic(), 0, False
        while ended < AFTER and time.monotonic() - began < LONGEST:
            found.append(await _look(frontier, began=began))
            ended += not found[-1].progress.left and found[-1].progress.done > 0
            if not has_joined and time.monotonic() - began >= SECOND_AT:
                stack.enter_context(running(folder, environment, "worker", spider))
                has_joined = True
            await asyncio.sleep(EVERY)
        await frontier.close()
    return found


async def _look(frontier: Frontier, *, began: float) -> Survey:
    (crawl,) = await frontier.crawls()
    return nameless(await surveyed(crawl, frontier=frontier), began=began)


def main() -> None:
    """Record, and write the file that was named."""
    target = Path(sys.argv[1])
    folder = fresh_folder("record-load")
    site = ("--graph", str(PAGES), "--hosts", "127.0.0.1")
    with site_process(*site, log=folder / "hits.jsonl") as (start, *_):
        surveys = asyncio.run(recorded(folder, start))
    about = f"{PAGES} pages of one host at {RATE}, {BURN} s of CPU in the handler of each"
    how = f"a survey every {EVERY:g} s, a second worker after {SECOND_AT:g} s"
    header = {"recorded": f"by `python -m bench.record_load`: {about}, {how}"}
    lines = [msgspec.json.encode(one).decode() for one in (header, *(plain(survey) for survey in surveys))]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(surveys)} surveys, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
