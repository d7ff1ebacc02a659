"""A crawl under attack, from its first page to the verdict: proves with real processes that crashes lose nothing.

A process serves a numbered graph, and real workers crawl it. Meanwhile workers, a feeder and the servers started for
the run are killed, stopped and disconnected, and some pages harm the workers that handle them. Then every page of the
graph is checked in the frontier, in the store and in the site's own log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.crawl.beginning import begin
from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import WORKER_LOST
from shoal.insight.stats import Snapshot
from shoal.model import Crawl
from shoal.run.building import fleet_for
from shoal.run.coordinator import Coordinator
from shoal.run.intakes import intake_of
from shoal.settings.table import FRONTIER_VARIABLE
from shoal.spider.loading import load_spider
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.testing.chaos.bad_pages import Harm, reasons_for
from shoal.testing.chaos.check import CrawlCheck, check_crawl, combined
from shoal.testing.chaos.deeds import DeedRunner, Straggler, acts_of
from shoal.testing.chaos.feeders import Feeders, Reserve
from shoal.testing.chaos.log import POLL_SECONDS, RunLog, Say
from shoal.testing.chaos.plan import HOSTS, LEASE_SECONDS, LINKS, Deed, Plan, bad_pages, schedule, settings_for
from shoal.testing.chaos.report import Report, report_on
from shoal.testing.chaos.servers import Act, ChaosServers
from shoal.testing.chaos.workers import CrawlWorkers, FleetRunner, WorkerDeeds
from shoal.testing.sites.catalogue import LinkGraph
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.urls.canonical import lane_of
from shoal.worker.fleet import Fleet
from shoal.worker.outages import until_reachable

LATENCY_SECONDS = 0.05
# No page done or dead for this long: the crawl will not end by itself. A killed broker takes some seconds to start, a
# minute on a busy machine.
STAND_SECONDS = 5 * LEASE_SECONDS + 20
PIPED_STAND_SECONDS = STAND_SECONDS + 60
LONGEST_TIMES_EXPECTED = 10

Show = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class ChaosRun:
    """The crawls of a run, their site, and the log. Deeds to a single crawl are done to the first one."""

    plan: Plan
    servers: ChaosServers
    site: SiteProcess
    graph: LinkGraph
    crawls: list[Crawl]
    frontier: Frontier
    log: RunLog
    say: Say

    @property
    def crawl(self) -> Crawl:
        return self.crawls[0]


async def run_chaos(plan: Plan, *, show: Show, say: Say, servers: ChaosServers | None = None) -> Report:
    """Run the plan to its end. Without `servers`, nothing is done to the servers.

    show: called with the number of finished pages and the current deed, again and again.
    say: called with a line now and then."""
    servers = servers or ChaosServers(frontier=plan.places.frontier, store=plan.places.store)
    began = time.monotonic()
    log = RunLog()
    say = _checking_lines(say, log)
    async with servers.opened() as (frontier, store):
        with _graph_site(plan) as (site, graph):
            crawls = [await _begin(plan, graph, frontier=frontier, say=say, number=one) for one in range(plan.crawls)]
            run = ChaosRun(
                plan=plan, servers=servers, site=site, graph=graph, crawls=crawls, frontier=frontier, log=log, say=say
            )
            straggler = Straggler(run.crawl, frontier)
            await _attack(run, show, straggler)
            hits = site.hits()
        seconds = time.monotonic() - began
        found = await _check_all(run, store)
        report = report_on(plan, found, hits, log=log, late_settles=straggler.late_settles, seconds=seconds)
        if report.is_kept:
            for one in run.crawls:
                await frontier.delete_crawl(one.id)
        return report


async def _check_all(run: ChaosRun, store: Store) -> CrawlCheck:
    plan, graph = run.plan, run.graph
    # A kill may hit the worker that has a bad page.
    others = reasons_for(Harm.KILL) if plan.kills else ()
    if plan.stalls or plan.freezes:
        # A lease may expire before the frontier learns of the worker's end.
        others += (WORKER_LOST,)
    doomed = {graph.url(number): reasons_for(harm) + others for number, harm in bad_pages(plan).always.items()}
    found = [await check_crawl(run.frontier, store, run.crawl, urls=graph.expected_urls(), doomed=doomed)]
    shared = [graph.url(number) for number in plan.shared]
    found += [await check_crawl(run.frontier, store, one, urls=shared) for one in run.crawls[1:]]
    return combined(found)


@contextlib.contextmanager
def _graph_site(plan: Plan) -> Iterator[tuple[SiteProcess, LinkGraph]]:
    """The graph, served by a process with its own clock and log, and its contents."""
    hosts = [host for host in HOSTS if _has_address(host)]
    linked, bad = plan.pages - plan.apart, bad_pages(plan)
    graph = ["--graph", str(linked), "--apart", str(plan.apart), "--links", str(LINKS), "--seed", str(plan.seed)]
    marks = ["--marks", json.dumps(bad.always), "--marks-once", json.dumps(bad.once)]
    where = ["--hosts", ",".join(hosts), "--latency", str(LATENCY_SECONDS)]
    with site_process(*graph, *marks, *where, log=plan.folder / "hits.jsonl") as site:
        port = site.url.split(":")[2].split("/")[0]
        bases = tuple(f"http://{host}:{port}" for host in hosts)
        yield site, LinkGraph(pages=linked, links=LINKS, seed=plan.seed, bases=bases, apart=plan.apart)


def _has_address(host: str) -> bool:
    """Whether this machine has the address: not every system has all of 127.0.0.0/8."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


async def _begin(plan: Plan, graph: LinkGraph, *, frontier: Frontier, say: Say, number: int) -> Crawl:
    """Begin a crawl under a new name: other crawls in a shared frontier stay untouched."""
    kind = load_spider(plan.spider)
    name = f"chaos-{os.getpid():x}-{time.time_ns() // 1000 % 2**32:x}" + (f"-{number}" if number else "")
    apart = [] if plan.dead_feeders or number else [graph.url(number) for part in plan.parts for number in part]
    spider: Spider = type(kind.__name__, (kind,), {"start": [graph.url(0), *apart], "name": name})()
    settings = settings_for(plan, lanes=tuple(lane_of(base + "/") for base in graph.bases))
    crawl, _ = await begin(frontier, spider, settings=settings, reference=plan.spider)
    coordinator = Coordinator(crawl, frontier=frontier, show=_unseen, say=say)
    await coordinator.feed(spider, intake=intake_of(crawl))
    return crawl


async def _attack(run: ChaosRun, show: Show, straggler: Straggler) -> None:
    """Run workers, feeders and deeds until the crawls are finished or stand still."""
    plan, crawl, frontier, log = run.plan, run.crawl, run.frontier, run.log
    groups = [_group(run, number) for number in range(len(run.crawls))]
    events = schedule(plan)
    kept = [run.graph.url(number) for number in plan.reserve]
    reserves = [Reserve(one, kept, frontier=frontier, deeds=len(events)) for one in run.crawls]
    reserve = reserves[0]
    await asyncio.gather(*(one.hold() for one in reserves))
    feeders = Feeders(
        crawl,
        frontier=frontier,
        environment={**run.servers.environment, FRONTIER_VARIABLE: plan.frontier},
        reserve=reserve,
        log=log,
        say=run.say,
    )
    rng, enough = random.Random(plan.seed), asyncio.Event()
    to_workers = WorkerDeeds(groups, frontier=frontier, rng=rng, log=log, enough=enough)
    acts: dict[Deed, Act] = {
        **acts_of(run.servers.acts, log),
        Deed.KILL: to_workers.kill,
        Deed.FREEZE: to_workers.freeze,
        Deed.RELIEVE: to_workers.relieve,
        Deed.STRAGGLE: lambda: _straggle(straggler, log),
        Deed.FEED: feeders.kill_one,
    }
    deeds = DeedRunner(crawl, frontier=frontier, acts=acts, reserve=reserve, rng=rng, enough=enough)
    holding = [asyncio.create_task(one.run(deeds.calm)) for one in reserves]
    feeding = asyncio.create_task(_feed(feeders, run))
    working = asyncio.create_task(_work(groups))
    attacking = asyncio.create_task(deeds.run(events))
    watching = asyncio.create_task(_watch(run, groups, show))
    tasks = [*holding, feeding, working, attacking, watching]
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        deeds.stop()
        async with asyncio.timeout(2 * STAND_SECONDS):
            await attacking
            for group in groups:
                group.runner.stop()
            await working
            log.surprises += await straggler.settle_again()
    except ShoalError as error:
        log.surprises.append(f"the workers gave up: {error}")
    except TimeoutError:
        log.surprises.append(f"the run did not come to an end within {2 * STAND_SECONDS:g} s of its crawl")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _work(groups: Sequence[CrawlWorkers]) -> None:
    """Run all workers until the last crawl is done or the first one gives up."""
    working = [asyncio.create_task(group.runner.run()) for group in groups]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def _group(run: ChaosRun, number: int) -> CrawlWorkers:
    crawl = run.crawls[number]
    label = f" of crawl {number + 1}" if len(run.crawls) > 1 else ""
    return CrawlWorkers(crawl, FleetRunner(partial(_new_fleet, run, crawl)), label)


def _new_fleet(run: ChaosRun, crawl: Crawl) -> Fleet:
    plan = run.plan
    return fleet_for(
        crawl,
        plan.worker_places,
        workers=plan.workers,
        frontier=run.frontier,
        say=run.say,
        environment=run.servers.environment,
    )


async def _straggle(straggler: Straggler, log: RunLog) -> None:
    log.doing = "a worker that sleeps through its leases settles them late"
    await straggler.borrow()
    log.surprises += await straggler.settle_late()
    log.done[Deed.STRAGGLE] += 1


async def _feed(feeders: Feeders, run: ChaosRun) -> None:
    if run.plan.dead_feeders:
        slow, other = ([run.graph.url(number) for number in part] for part in run.plan.parts)
        await feeders.run(slow, other)


async def _watch(run: ChaosRun, groups: Sequence[CrawlWorkers], show: Show) -> None:
    """Show the progress until the crawls are finished or have stood still for too long."""
    loop = asyncio.get_running_loop()
    plan, log = run.plan, run.log
    stand = PIPED_STAND_SECONDS if plan.pipe else STAND_SECONDS
    longest = LONGEST_TIMES_EXPECTED * plan.tasks / plan.rate + 2 * stand
    began = moved = loop.time()
    ended = 0
    while True:
        try:
            async with asyncio.timeout(stand):
                reads = [partial(run.frontier.progress, group.crawl.id) for group in groups]
                crawls = [await until_reachable(read, say=run.say) for read in reads]
        except TimeoutError:
            log.surprises.append(f"the frontier did not answer for {stand:g} s")
            return
        done = sum(one.done for one in crawls)
        show(done, log.doing)
        log.ended += sum(len(group.runner.ended_by_themselves()) for group in groups)
        if all(one.is_finished for one in crawls):
            return
        if (at := done + sum(one.dead for one in crawls)) != ended:
            ended, moved = at, loop.time()
        if loop.time() - moved > stand or loop.time() - began > longest:
            log.surprises.append(f"the crawl stood still at {done:,} pages of {plan.tasks:,}")
            return
        await asyncio.sleep(POLL_SECONDS)


def _checking_lines(say: Say, log: RunLog) -> Say:
    """Pass on lines, except about killed workers, which are shown already; a traceback is a surprise."""

    def pass_on(line: str) -> None:
        if "Traceback" in line:
            log.surprises.append(f"a process wrote: {line}")
        if "ended with SIGKILL" not in line:
            say(line)

    return pass_on


def _unseen(snapshot: Snapshot) -> None:
    """Show nothing: the start is one page."""
