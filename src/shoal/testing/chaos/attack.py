"""A crawl under attack, from its first page to the verdict: the crash promise, proved with real processes.

A numbered graph is served by a process of its own and crawled by real workers. While it runs, its workers, a feeder
and the servers that were started for the run are killed, stopped and cut off, and some of its pages harm the workers
that handle them. Then every page of the graph is looked up in the frontier, in the store and in the site's own log."""

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
from shoal.testing.chaos.diary import POLL_SECONDS, Diary, Say
from shoal.testing.chaos.feeders import Feeders
from shoal.testing.chaos.fleets import Crew, Team
from shoal.testing.chaos.grounds import Grounds
from shoal.testing.chaos.mischief import Act, Mischief
from shoal.testing.chaos.plan import (
    HOSTS,
    LEASE_SECONDS,
    LINKS,
    Deed,
    Plan,
    bad_pages,
    schedule,
    settings_for,
)
from shoal.testing.chaos.report import Report, report_on
from shoal.testing.chaos.reserve import Reserve
from shoal.testing.chaos.server_deeds import acts_of
from shoal.testing.chaos.straggler import Straggler
from shoal.testing.chaos.survey import Survey, survey, together
from shoal.testing.chaos.worker_deeds import WorkerDeeds
from shoal.testing.sites.catalogue import LinkGraph
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.urls.canonical import lane_of
from shoal.worker.fleet import Fleet
from shoal.worker.outages import until_reachable

LATENCY_SECONDS = 0.05
# No page done or dead for this long: the crawl will not end by itself.
# A broker that was killed takes some seconds to start, a minute on a busy machine.
STAND_SECONDS = 5 * LEASE_SECONDS + 20
PIPED_STAND_SECONDS = STAND_SECONDS + 60
LONGEST_TIMES_EXPECTED = 10

Show = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Audience:
    """Where a run reports to. `show` gets the number of pages done and the current attack, again and again; `say` gets
    a line now and then."""

    show: Show
    say: Say


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The crawls that are attacked, their site, and what happened to them so far. To the first one is done what is done
    to one crawl alone."""

    plan: Plan
    here: Grounds
    site: SiteProcess
    graph: LinkGraph
    crawls: list[Crawl]
    frontier: Frontier
    diary: Diary
    say: Say

    @property
    def crawl(self) -> Crawl:
        return self.crawls[0]


async def run_chaos(plan: Plan, *, audience: Audience, here: Grounds | None = None) -> Report:
    """Run the plan to its end. `here` says what may be done to the servers; without it, nothing."""
    here = here or Grounds(frontier=plan.places.frontier, store=plan.places.store)
    began = time.monotonic()
    diary = Diary()
    say = _listening(audience.say, diary)
    async with here.opened() as (frontier, store):
        with _graph_site(plan) as (site, graph):
            crawls = [await _begin(plan, graph, frontier=frontier, say=say, number=one) for one in range(plan.crawls)]
            scene = Scene(
                plan=plan, here=here, site=site, graph=graph, crawls=crawls, frontier=frontier, diary=diary, say=say
            )
            straggler = Straggler(scene.crawl, frontier)
            await _attack(scene, audience.show, straggler)
            hits = site.hits()
        seconds = time.monotonic() - began
        found = await _survey_all(scene, store)
        report = report_on(plan, found, hits, diary=diary, late_settles=straggler.late_settles, seconds=seconds)
        if report.is_kept:
            for one in scene.crawls:
                await frontier.delete_crawl(one.id)
        return report


async def _survey_all(scene: Scene, store: Store) -> Survey:
    plan, graph = scene.plan, scene.graph
    # A kill may hit the worker that has such a page.
    others = reasons_for(Harm.KILL) if plan.kills else ()
    if plan.stalls or plan.freezes:
        # A lease may run out before the frontier hears of the worker's end.
        others += (WORKER_LOST,)
    doomed = {graph.url(number): reasons_for(harm) + others for number, harm in bad_pages(plan).always.items()}
    found = [await survey(scene.frontier, store, scene.crawl, urls=graph.expected_urls(), doomed=doomed)]
    shared = [graph.url(number) for number in plan.shared]
    found += [await survey(scene.frontier, store, one, urls=shared) for one in scene.crawls[1:]]
    return together(found)


@contextlib.contextmanager
def _graph_site(plan: Plan) -> Iterator[tuple[SiteProcess, LinkGraph]]:
    """The graph in a process with its own clock and log, and what it consists of."""
    hosts = [host for host in HOSTS if _is_ours(host)]
    linked, bad = plan.pages - plan.apart, bad_pages(plan)
    graph = ["--graph", str(linked), "--apart", str(plan.apart), "--links", str(LINKS), "--seed", str(plan.seed)]
    marks = ["--marks", json.dumps(bad.always), "--marks-once", json.dumps(bad.once)]
    where = ["--hosts", ",".join(hosts), "--latency", str(LATENCY_SECONDS)]
    with site_process(*graph, *marks, *where, log=plan.folder / "hits.jsonl") as site:
        port = site.url.split(":")[2].split("/")[0]
        bases = tuple(f"http://{host}:{port}" for host in hosts)
        yield site, LinkGraph(pages=linked, links=LINKS, seed=plan.seed, bases=bases, apart=plan.apart)


def _is_ours(host: str) -> bool:
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


async def _attack(scene: Scene, show: Show, straggler: Straggler) -> None:
    """Run workers, feeders and attacks until the crawls are finished or stand still."""
    plan, crawl, frontier, diary = scene.plan, scene.crawl, scene.frontier, scene.diary
    teams = [_team(scene, number) for number in range(len(scene.crawls))]
    events = schedule(plan)
    kept = [scene.graph.url(number) for number in plan.reserve]
    reserves = [Reserve(one, kept, frontier=frontier, deeds=len(events)) for one in scene.crawls]
    reserve = reserves[0]
    await asyncio.gather(*(one.hold() for one in reserves))
    feeders = Feeders(
        crawl,
        frontier=frontier,
        environment={**scene.here.environment, FRONTIER_VARIABLE: plan.frontier},
        reserve=reserve,
        diary=diary,
        say=scene.say,
    )
    rng, enough = random.Random(plan.seed), asyncio.Event()
    to_workers = WorkerDeeds(teams, frontier=frontier, rng=rng, diary=diary, enough=enough)
    acts: dict[Deed, Act] = {
        **acts_of(scene.here.levers, diary),
        Deed.KILL: to_workers.kill,
        Deed.FREEZE: to_workers.freeze,
        Deed.RELIEVE: to_workers.relieve,
        Deed.STRAGGLE: lambda: _straggle(straggler, diary),
        Deed.FEED: feeders.kill_one,
    }
    mischief = Mischief(crawl, frontier=frontier, acts=acts, reserve=reserve, rng=rng, enough=enough)
    holding = [asyncio.create_task(one.run(mischief.calm)) for one in reserves]
    feeding = asyncio.create_task(_feed(feeders, scene))
    working = asyncio.create_task(_work(teams))
    attacking = asyncio.create_task(mischief.run(events))
    watching = asyncio.create_task(_watch(scene, teams, show))
    tasks = [*holding, feeding, working, attacking, watching]
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        mischief.stop()
        async with asyncio.timeout(2 * STAND_SECONDS):
            await attacking
            for team in teams:
                team.crew.send_home()
            await working
            diary.surprises += await straggler.settle_again()
    except ShoalError as error:
        diary.surprises.append(f"the workers gave up: {error}")
    except TimeoutError:
        diary.surprises.append(f"the run did not come to an end within {2 * STAND_SECONDS:g} s of its crawl")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _work(teams: Sequence[Team]) -> None:
    """Every crew at work, until the last one is done or the first one gives up."""
    working = [asyncio.create_task(team.crew.run()) for team in teams]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def _team(scene: Scene, number: int) -> Team:
    crawl = scene.crawls[number]
    label = f" of crawl {number + 1}" if len(scene.crawls) > 1 else ""
    return Team(crawl, Crew(partial(_new_fleet, scene, crawl)), label)


def _new_fleet(scene: Scene, crawl: Crawl) -> Fleet:
    plan = scene.plan
    return fleet_for(
        crawl,
        plan.worker_places,
        workers=plan.workers,
        frontier=scene.frontier,
        say=scene.say,
        environment=scene.here.environment,
    )


async def _straggle(straggler: Straggler, diary: Diary) -> None:
    diary.doing = "a worker that sleeps through its leases settles them late"
    await straggler.borrow()
    diary.surprises += await straggler.settle_late()
    diary.done[Deed.STRAGGLE] += 1


async def _feed(feeders: Feeders, scene: Scene) -> None:
    if scene.plan.dead_feeders:
        slow, other = ([scene.graph.url(number) for number in part] for part in scene.plan.parts)
        await feeders.run(slow, other)


async def _watch(scene: Scene, teams: Sequence[Team], show: Show) -> None:
    """Show the progress until the crawls are finished or have stood still for too long."""
    loop = asyncio.get_running_loop()
    plan, diary = scene.plan, scene.diary
    stand = PIPED_STAND_SECONDS if plan.pipe else STAND_SECONDS
    longest = LONGEST_TIMES_EXPECTED * plan.tasks / plan.rate + 2 * stand
    began = moved = loop.time()
    ended = 0
    while True:
        try:
            async with asyncio.timeout(stand):
                reads = [partial(scene.frontier.progress, team.crawl.id) for team in teams]
                crawls = [await until_reachable(read, say=scene.say) for read in reads]
        except TimeoutError:
            diary.surprises.append(f"the frontier did not answer for {stand:g} s")
            return
        done = sum(one.done for one in crawls)
        show(done, diary.doing)
        diary.ended += sum(len(team.crew.ended_unasked()) for team in teams)
        if all(one.is_finished for one in crawls):
            return
        if (at := done + sum(one.dead for one in crawls)) != ended:
            ended, moved = at, loop.time()
        if loop.time() - moved > stand or loop.time() - began > longest:
            diary.surprises.append(f"the crawl came to a stand at {done:,} pages of {plan.tasks:,}")
            return
        await asyncio.sleep(POLL_SECONDS)


def _listening(say: Say, diary: Diary) -> Say:
    """Pass lines on but those about killed workers, which are announced already; a traceback is a surprise."""

    def pass_on(line: str) -> None:
        if "Traceback" in line:
            diary.surprises.append(f"a process wrote: {line}")
        if "ended with SIGKILL" not in line:
            say(line)

    return pass_on


def _unseen(snapshot: Snapshot) -> None:
    """Show nothing: the start is one page."""
