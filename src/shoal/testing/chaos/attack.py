"""A crawl under attack, from its first page to the verdict: the crash promise, proved with real processes.

A numbered graph is served by a process of its own and crawled by real workers. While it runs, workers are killed with
SIGKILL, one is stopped past its leases, leases are settled late, and a queue server that was started for the run is
killed. Then every page of the graph is looked up in the frontier, in the store and in the site's own log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from shoal.crawl import begin, fleet_for, intake_of
from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.processes.coordinator import Coordinator
from shoal.processes.opening import opened
from shoal.processes.outages import until_reachable
from shoal.processes.stats import Snapshot
from shoal.spider import Spider
from shoal.spider_file import load_spider
from shoal.store.base import Store
from shoal.testing.chaos.deeds import POLL_SECONDS, Crew, Mischief, Say
from shoal.testing.chaos.plan import HOSTS, LEASE_SECONDS, LINKS, Deed, Plan, schedule, settings_for
from shoal.testing.chaos.report import Report, Survey, few, pace_of, survey
from shoal.testing.sites.catalogue import LinkGraph
from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.urls import lane_of

LATENCY_SECONDS = 0.05
# No page done for this long: the crawl will not end by itself.
STALL_SECONDS = 5 * LEASE_SECONDS + 10
LONGEST_TIMES_EXPECTED = 10

Show = Callable[[int, str], None]
Restart = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Audience:
    """Where a run reports to. `show` gets the number of pages done and the current attack, again and again; `say` gets
    a line now and then."""

    show: Show
    say: Say


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The crawl that is attacked, and its site."""

    plan: Plan
    site: SiteProcess
    graph: LinkGraph
    crawl: Crawl
    frontier: Frontier
    store: Store


async def run_chaos(plan: Plan, *, audience: Audience, restart: Restart | None = None) -> Report:
    """Run the plan to its end. `restart` kills the queue server and starts it again, if it is ours to kill."""
    began = time.monotonic()
    async with opened(plan.places) as (frontier, store):
        with _graph_site(plan) as (site, graph):
            crawl = await _begin(plan, graph, frontier=frontier, store=store, say=audience.say)
            scene = Scene(plan=plan, site=site, graph=graph, crawl=crawl, frontier=frontier, store=store)
            mischief, surprises = await _attack(scene, audience, restart)
            hits = site.hits()
        seconds = time.monotonic() - began
        found = await survey(frontier, store, crawl, urls=graph.expected_urls())
        report = _report(plan, found, hits, mischief=mischief, surprises=surprises)
        if report.is_kept:
            await frontier.delete_crawl(crawl.id)
        return msgspec.structs.replace(report, seconds=round(seconds, 1))


@contextlib.contextmanager
def _graph_site(plan: Plan) -> Iterator[tuple[SiteProcess, LinkGraph]]:
    """The graph in a process with its own clock and log, and what it consists of."""
    hosts = [host for host in HOSTS if _is_ours(host)]
    graph = ["--graph", str(plan.pages), "--links", str(LINKS), "--seed", str(plan.seed)]
    where = ["--hosts", ",".join(hosts), "--latency", str(LATENCY_SECONDS)]
    with site_process(*graph, *where, log=plan.folder / "hits.jsonl") as site:
        port = site.url.split(":")[2].split("/")[0]
        bases = tuple(f"http://{host}:{port}" for host in hosts)
        yield site, LinkGraph(pages=plan.pages, links=LINKS, seed=plan.seed, bases=bases)


def _is_ours(host: str) -> bool:
    """Whether this machine has the address: not every system has all of 127.0.0.0/8."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


async def _begin(plan: Plan, graph: LinkGraph, *, frontier: Frontier, store: Store, say: Say) -> Crawl:
    """Begin a crawl under a new name: other crawls in a shared frontier stay untouched."""
    kind = load_spider(plan.spider)
    name = f"chaos-{os.getpid():x}-{time.time_ns() // 1000 % 2**32:x}"
    spider: Spider = type(kind.__name__, (kind,), {"start": [graph.url(0)], "name": name})()
    settings = settings_for(plan, lanes=tuple(lane_of(base + "/") for base in graph.bases))
    crawl, _ = await begin(frontier, spider, settings=settings, reference=plan.spider)
    coordinator = Coordinator(crawl, frontier=frontier, show=_unseen, say=say)
    await coordinator.feed(spider, intake=intake_of(crawl))
    return crawl


async def _attack(scene: Scene, audience: Audience, restart: Restart | None) -> tuple[Mischief, list[str]]:
    """Run workers and attacks until the crawl is finished or stands still; gives the attacks and every surprise."""
    plan, crawl, frontier = scene.plan, scene.crawl, scene.frontier
    say = _without_expected_ends(audience.say)
    crew = Crew(lambda: fleet_for(crawl, plan.places, workers=plan.workers, frontier=frontier, say=say))
    rng = random.Random(plan.seed)
    mischief = Mischief(crawl, frontier=frontier, crew=crew, rng=rng, restart=restart)
    surprises: list[str] = []
    working = asyncio.create_task(crew.run())
    attacking = asyncio.create_task(mischief.run(schedule(plan)))
    watching = asyncio.create_task(_watch(scene, crew, mischief, audience=audience, surprises=surprises))
    tasks = [working, attacking, watching]
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        mischief.stop()
        await attacking
        crew.send_home()
        await working
    except ShoalError as error:
        surprises.append(f"the workers gave up: {error}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return mischief, [*surprises, *mischief.surprises, *await mischief.straggler.settle_again()]


async def _watch(scene: Scene, crew: Crew, mischief: Mischief, *, audience: Audience, surprises: list[str]) -> None:
    """Show the progress until the crawl is finished or has stood still for too long."""
    loop = asyncio.get_running_loop()
    plan = scene.plan
    longest = LONGEST_TIMES_EXPECTED * plan.pages / plan.rate + 2 * STALL_SECONDS
    began = moved = loop.time()
    done = 0
    while True:
        progress = await until_reachable(lambda: scene.frontier.progress(scene.crawl.id), say=audience.say)
        audience.show(progress.done, mischief.doing)
        surprises += [f"worker {name} ended by itself" for name in crew.ended_unasked()]
        if progress.is_finished:
            return
        if progress.done != done:
            done, moved = progress.done, loop.time()
        if loop.time() - moved > STALL_SECONDS or loop.time() - began > longest:
            surprises.append(f"the crawl came to a stand at {done:,} pages of {plan.pages:,}")
            return
        await asyncio.sleep(POLL_SECONDS)


def _report(plan: Plan, found: Survey, hits: list[Hit], *, mischief: Mischief, surprises: list[str]) -> Report:
    pace = pace_of(hits, rate=plan.rate)
    all_surprises = [*surprises, *found.surprises]
    return Report(
        frontier=plan.backend,
        attempted=found.attempted,
        acknowledged=found.acknowledged,
        ok=found.ok,
        lost=len(found.lost),
        duplicated=found.duplicated,
        recovered=found.progress.lost,
        unexpected=len(all_surprises),
        late_settles=mischief.straggler.late_settles,
        stale_settles_refused=found.progress.stale,
        pace_violations=pace.violations,
        busiest_second=pace.busiest_second,
        allowed_second=pace.allowed_second,
        kills=mischief.done[Deed.KILL],
        freezes=mischief.done[Deed.FREEZE],
        restarts=mischief.done[Deed.RESTART],
        workers=plan.workers,
        seed=plan.seed,
        seconds=0.0,
        surprises=all_surprises,
        lost_pages=few(found.lost),
    )


def _without_expected_ends(say: Say) -> Say:
    """Leave out the lines about killed workers: each kill is announced already."""

    def pass_on(line: str) -> None:
        if "ended with SIGKILL" not in line:
            say(line)

    return pass_on


def _unseen(snapshot: Snapshot) -> None:
    """Show nothing: the start is one page."""
