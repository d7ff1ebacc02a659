"""A crawl over many nasty hosts and a good one, by a worker process of its own, and the fate of every URL asked for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal.crawl.opening import Places, opened
from shoal.insight.why import Fate, fate_of
from shoal.model import DeadFilter, Progress
from shoal.store.base import ItemFilter
from shoal.testing.fakes import store_for_all
from shoal.testing.sites.hostile import HostileSite
from shoal.testing.sites.site import CatalogueSite

MIB = 1024 * 1024
# Only these addresses: the guard is on for everything else, the rest of loopback included.
NASTY, GOOD = "127.0.1.", ("127.0.2.1", "127.0.2.2")
SPIDER = """
from pathlib import Path

from shoal import Item, Spider


class Everything(Spider):
    name = "everything"
    start = {start!r}
    settings = {settings!r}

    def parse(self, page):
        yield Item(key=page.url, title=page.text("title"), text=page.text()[:100])
        yield page.follow()

    async def finished(self):
        status = Path("/proc/self/status").read_text()
        Path("peak").write_text(status.partition("VmHWM:")[2].split()[0])
"""
NOTHING: Mapping[str, str] = {}
LIMITS: dict[str, Any] = {
    "rate": "unlimited",
    "per_host": 8,
    "concurrency": 64,
    "pace": "fixed",
    "obey_robots": False,
    "allow_addresses": ["127.0.1.0/24", "127.0.2.0/24"],
    "max_attempts": 3,
    "retry_seconds": 0.05,
    "max_rest_seconds": 0.2,
    "max_free_retries": 3,
    "connect_seconds": 10.0,
    "first_byte_seconds": 10.0,
    "idle_seconds": 10.0,
    "total_seconds": 30.0,
    "handler_seconds": 30.0,
    "max_body_bytes": 4 * MIB,
    "max_redirects": 3,
}


@dataclass
class Outcome:
    """What a crawl left behind."""

    peak_bytes: int = 0
    output: str = ""
    progress: Progress | None = None
    fates: dict[str, Fate] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)  # by lane and reason
    texts: dict[str, str] = field(default_factory=dict)  # by the keys of the items
    expected: set[str] = field(default_factory=set)
    requests: dict[str, list[bytes]] = field(default_factory=dict)
    inner_port: str = ""
    inner_requests: list[bytes] = field(default_factory=list)


def name_of(fate: Fate) -> str:
    """The one word for what became of a URL: the rule, the dead letter's reason, or the outcome."""
    if fate.kept_out is not None:
        return fate.kept_out
    return fate.task.reason.partition(":")[0] or (fate.fetch.outcome if fate.fetch else fate.state.value)


async def crawl_beside_a_good_host(
    folder: Path, paths: Mapping[str, str], *, seconds: float, ask: Mapping[str, str] = NOTHING, **settings: Any
) -> Outcome:
    """Each path on a host of its own. `INNER` is the port of a server that no request may reach. Asks for the fate of
    each path, or of the URL in `ask`."""
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(HostileSite(host="127.0.0.1"))
        shop = await stack.enter_async_context(CatalogueSite(hosts=GOOD, products=60, flaky=0))
        port = outcome.inner_port = str(inner.port)
        sites = {}
        for number, name in enumerate(paths, start=1):
            sites[name] = await stack.enter_async_context(HostileSite(pause=0.2, host=f"{NASTY}{number}"))
        start = {name: sites[name].url(path.replace("INNER", port)) for name, path in paths.items()}
        asked = start | {name: url.replace("INNER", port) for name, url in ask.items()}
        await _run(folder, [*start.values(), shop.url], {**LIMITS, **settings}, outcome, seconds)
        await _look(folder, asked, outcome)
        outcome.requests = {name: site.requests for name, site in sites.items()}
        outcome.inner_requests = inner.requests
        outcome.expected = set(shop.expected_urls())
    return outcome


async def _run(folder: Path, start: Sequence[str], settings: dict[str, Any], outcome: Outcome, seconds: float) -> None:
    (folder / "everything.py").write_text(SPIDER.format(start=list(start), settings=settings))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [sys.executable, "-m", "shoal", "run", "everything.py"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    outcome.output = output.decode(errors="replace")
    assert process.returncode == 0, outcome.output
    outcome.peak_bytes = int((folder / "peak").read_text()) * 1024


async def _look(folder: Path, asked: Mapping[str, str], outcome: Outcome) -> None:
    db = str(folder / "shoal.db")
    async with opened(Places(frontier=db, store=db)) as (frontier, store):
        (crawl,) = await frontier.crawls()
        outcome.progress = await frontier.progress(crawl.id)
        async for item in store.items(ItemFilter(spider="everything")):
            outcome.texts[item.key] = msgspec.json.decode(item.data)["text"]
        for reason in outcome.progress.rejected:
            outcome.samples[reason] = await frontier.samples(crawl.id, reason)
        for letter in await frontier.dead(crawl.id, DeadFilter(), limit=100_000):
            outcome.dead[letter.task.lane, letter.reason.partition(":")[0]] += 1
        for name, url in asked.items():
            outcome.fates[name] = await fate_of(url, [crawl], frontier=frontier, store_of=store_for_all(store))
