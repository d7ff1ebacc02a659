"""Autoscaling on `shoal_workers_wanted`, simulated: what the HPA and KEDA make of it, with the numbers of the chart.

Crawls, workers and autoscalers are models; the number of workers is what shoal itself says of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from autoscaler_rules import chart_numbers
from crawl_model import ModelCrawl, Writing
from fleet_model import Deployment, Fleet, Moment
from scaling_table import hosts, of_cores

from shoal.insight.utilisation import TARGET_SHARE
from shoal.model import CrawlState

pytestmark = pytest.mark.full

HOUR = 3600.0
SERVER = "postgresql://db.example/results"
COOLDOWN = float(chart_numbers()["cooldownSeconds"])
STABLE = float(chart_numbers()["scaleDown"]["stabilizationSeconds"])


def keda(*kinds: str, crawl: str = "") -> Deployment:
    return Deployment(kinds=kinds or ("http",), crawl=crawl, scaler="keda")


def hpa(*kinds: str, replicas: int = 1) -> Deployment:
    return Deployment(kinds=kinds or ("http",), scaler="hpa", replicas=replicas)


def changes(seen: list[Moment]) -> int:
    """How often the replicas changed."""
    return sum(one.replicas != after.replicas for one, after in pairwise(seen))


def fed_by_paces(crawl: ModelCrawl, *, noise: float = 0.0) -> int:
    """The workers that the hosts' paces can feed, by advice's own arithmetic: each is loaded up to its target share."""
    rate = sum(min(1 / one.interval if one.interval else math.inf, one.cap / crawl.latency) for one in crawl.hosts)
    return math.ceil(rate * crawl.cpu["http"] * (1 + noise) / TARGET_SHARE)


@pytest.mark.parametrize("look_seconds", [5.0, 30.0])
async def test_a_crawl_bound_by_cpu_grows_to_what_its_paces_feed_and_stays_there(look_seconds: float) -> None:
    fleet = Fleet([of_cores()], [keda()], look_seconds=look_seconds)
    await fleet.run(HOUR)
    seen = fleet.seen[0]
    assert fed_by_paces(fleet.crawls[0]) == 6
    assert seen[-1].workers in (6, 7)
    assert max(one.replicas for one in seen) <= 7
    assert changes(seen) <= 3
    assert all(one.replicas == seen[-1].replicas for one in seen if one.at > HOUR / 4)


@pytest.mark.parametrize("seed", [1, 2])
async def test_noise_of_a_fifth_in_latency_and_cpu_does_not_flap(seed: int) -> None:
    fleet = Fleet([of_cores()], [hpa()], noise=0.2, seed=seed)
    await fleet.run(HOUR)
    late = [one for one in fleet.seen[0] if one.at > HOUR / 4]
    assert changes(late) <= 2
    assert max(one.replicas for one in late) <= fed_by_paces(fleet.crawls[0], noise=0.2) + 1
    assert min(one.replicas for one in late) >= 6


@pytest.mark.parametrize("interval", [0.5, 1.0, 30.0])
async def test_few_hosts_never_get_more_workers_than_their_paces_feed(interval: float) -> None:
    crawl = ModelCrawl(id="a", hosts=hosts(3, interval=interval, waiting=400_000))
    fleet = Fleet([crawl], [hpa(replicas=6)], noise=0.2)
    await fleet.run(HOUR)
    assert crawl.queued > 1_000_000
    assert max(one.metric or 0 for one in fleet.seen[0] if one.at > 120) <= fed_by_paces(crawl) + 1
    assert fleet.seen[0][-1].replicas == 1


async def test_where_answers_are_slow_workers_are_kept_for_their_slots() -> None:
    """Thirty pages per second of five seconds each are 150 on their way: more than four workers have slots for. Once
    there are enough, no slot is waited for, and that is no reason to send them away."""
    crawl = ModelCrawl(id="a", hosts=hosts(6, interval=0.2, waiting=400_000), latency=5.0, cpu={"http": 0.005})
    fleet = Fleet([crawl], [hpa()])
    await fleet.run(HOUR)
    late = [one.replicas for one in fleet.seen[0] if one.at > HOUR / 4]
    assert set(late) == {late[0]}
    assert late[0] in (5, 6, 7)


async def test_a_burst_is_met_and_then_let_go() -> None:
    """A trickle that one worker is enough for; after twenty minutes 60,000 pages at once."""
    quiet = hosts(5, interval=0.025, waiting=0)
    crawl = ModelCrawl(
        id="a", hosts=quiet, cpu={"http": 0.025}, feeding_until=3 * HOUR,
        arrivals=lambda at: {one.name: 12_000 if at == 1_200 else int(at % 5 == 0) for one in quiet},
    )  # fmt: skip
    fleet = Fleet([crawl], [hpa()])
    await fleet.run(2 * HOUR)
    seen = fleet.seen[0]
    assert {one.replicas for one in seen if one.at < 1_200} == {1}
    assert max(one.replicas for one in seen) in (6, 7, 8)
    done_at = next(one.at for one in seen if one.at > 1_300 and one.left < 100)
    assert done_at < 1_200 + 900
    assert {one.replicas for one in seen if one.at > done_at + STABLE + 240} == {1}
    assert changes(seen) <= 7


async def test_the_end_of_a_crawl_brings_zero_with_keda_and_the_least_with_the_hpa() -> None:
    for one, least in ((keda(), 0), (hpa(), chart_numbers()["minReplicas"])):
        crawl = ModelCrawl(id="a", hosts=hosts(5, interval=0.025, waiting=12_000), cpu={"http": 0.025})
        fleet = Fleet([crawl], [one])
        await fleet.run(HOUR)
        assert (crawl.state, crawl.left, crawl.done) == (CrawlState.FINISHED, 0, 60_000)
        done_at = next(moment.at for moment in fleet.seen[0] if moment.left == 0)
        assert fleet.seen[0][-1].replicas == least
        # Not before the cooldown, nor long after it: the windows of the HPA are over by then as well.
        gone_at = next(moment.at for moment in fleet.seen[0] if moment.at > done_at and moment.replicas == least)
        assert STABLE / 2 <= gone_at - done_at <= max(COOLDOWN, STABLE) + 240


async def test_from_zero_the_next_crawl_brings_workers_back_and_none_of_its_pages_is_lost() -> None:
    first = ModelCrawl(id="a", hosts=hosts(5, interval=0.1, waiting=200))
    fleet = Fleet([first], [keda()])
    await fleet.run(1_200)
    assert fleet.seen[0][-1].replicas == 0
    second = ModelCrawl(id="b", hosts=hosts(5, interval=0.1, waiting=2_000), began=fleet.now)
    fleet.crawls.append(second)
    await fleet.run(120)
    assert second.done > 0
    await fleet.run(HOUR)
    assert (first.done, second.done, second.state) == (1_000, 10_000, CrawlState.FINISHED)
    assert fleet.seen[0][-1].replicas == 0


async def test_from_zero_a_push_into_the_inbox_of_a_finished_crawl_brings_a_worker_back() -> None:
    crawl = ModelCrawl(id="a", hosts=hosts(1, interval=0.1, waiting=10))
    fleet = Fleet([crawl], [keda()])
    await fleet.run(1_200)
    assert (fleet.seen[0][-1].replicas, crawl.state) == (0, CrawlState.FINISHED)
    crawl.pushed = 40
    await fleet.run(180)
    assert (crawl.pushed, crawl.done, crawl.state) == (0, 50, CrawlState.FINISHED)
    await fleet.run(900)
    assert fleet.seen[0][-1].replicas == 0


@pytest.mark.parametrize("every", [5, 20, 100])
async def test_a_start_that_is_fed_slowly_keeps_one_worker(every: int) -> None:
    """Whenever somebody looks, there is nothing left: each page is done before the next one comes."""
    crawl = ModelCrawl(
        id="a", hosts=hosts(1, interval=0.1, waiting=0), feeding_until=HOUR,
        arrivals=lambda at: {"h0.example": int(at % every == 3)},
    )  # fmt: skip
    fleet = Fleet([crawl], [keda()])
    await fleet.run(2 * HOUR)
    fed = [one for one in fleet.seen[0] if 300 < one.at < HOUR]
    assert {one.replicas for one in fed} == {1}
    assert fleet.seen[0][-1].replicas == 0
    assert (crawl.left, crawl.state) == (0, CrawlState.FINISHED)


async def test_a_revisit_in_hours_keeps_no_worker_and_one_is_there_when_it_is_due() -> None:
    """All pages are visited again three hours later. The worker is at work before the first of them is late."""
    crawl = ModelCrawl(id="a", hosts=hosts(5, interval=0.1, waiting=500), revisit=3 * HOUR)
    fleet = Fleet([crawl], [keda()])
    await fleet.run(2 * HOUR)
    assert (crawl.visits, crawl.delayed, fleet.seen[0][-1].replicas) == (2_500, 2_500, 0)
    due = fleet.now + crawl.progress(fleet.now).due_in
    await fleet.run(due - fleet.now + 5)
    assert fleet.seen[0][-1].workers == 1
    assert crawl.visits > 2_500
    await fleet.run(2 * HOUR)
    assert (crawl.visits, fleet.seen[0][-1].replicas) == (5_000, 0)
    assert changes(fleet.seen[0]) <= 8


async def test_retries_that_are_due_soon_keep_a_worker() -> None:
    crawl = ModelCrawl(id="a", hosts=hosts(2, interval=0.1, waiting=2_000), retry_every=3)
    fleet = Fleet([crawl], [keda()])
    await fleet.run(HOUR)
    assert (crawl.done, crawl.state) == (4_000, CrawlState.FINISHED)
    assert changes(fleet.seen[0]) <= 2


async def test_a_host_that_rests_for_an_hour_keeps_no_worker() -> None:
    """Its pages are queued, not delayed; none of them may begin."""
    crawl = ModelCrawl(id="a", hosts=hosts(1, interval=0.1, waiting=20_000))
    fleet = Fleet([crawl], [keda()])
    await fleet.run(300)
    crawl.hosts[0].rests_until = fleet.now + HOUR
    await fleet.run(HOUR)
    assert fleet.seen[0][-1].workers == 1
    assert min(one.replicas for one in fleet.seen[0] if one.at > 900) == 0
    before = crawl.done
    await fleet.run(60)
    assert crawl.done > before


async def test_hosts_that_rest_feed_nobody() -> None:
    """Of 20 hosts 16 rest for hours: the four others are what workers are worth running for."""
    crawl = ModelCrawl(id="a", hosts=hosts(20, interval=0.1, waiting=10_000), cpu={"http": 0.04})
    for one in crawl.hosts[4:]:
        one.rests_until = 5 * HOUR
    fleet = Fleet([crawl], [hpa()])
    await fleet.run(HOUR / 2)
    # Forty pages per second: 1.6 cores.
    assert max(one.replicas for one in fleet.seen[0]) <= 3


async def test_each_kind_has_its_own_deployment() -> None:
    """Pages for browsers cost a core second each and come from the same hosts: their number is their own, and theirs
    alone goes to zero when they are done."""
    crawl = ModelCrawl(
        id="a", hosts=hosts(5, interval=0.1, waiting=80_000), cpu={"http": 0.01, "browser": 1.0}
    )  # fmt: skip
    for host in range(5):
        crawl.add(host, 600, kind="browser")
    fleet = Fleet([crawl], [keda("http"), keda("browser")])
    await fleet.run(HOUR)
    pages, browsers = fleet.seen
    assert max(one.replicas for one in pages) <= 2
    assert 4 <= max(one.replicas for one in browsers) <= fleet.most
    done_at = next(one.at for one in browsers if one.at > 60 and not crawl_has(one))
    assert browsers[-1].replicas == 0
    assert pages[-1].replicas >= 1
    assert done_at < HOUR


def crawl_has(moment: Moment) -> bool:
    """Whether the deployment's kind is wanted at all."""
    return bool(moment.metric)


async def test_workers_that_do_several_crawls_are_wanted_once_not_once_per_crawl() -> None:
    """Two crawls need 4 cores together; their workers work on both."""
    crawls = [ModelCrawl(id=name, hosts=hosts(2, interval=0.02, waiting=500_000)) for name in "ab"]
    fleet = Fleet(crawls, [keda()])
    await fleet.run(HOUR)
    assert fleet.seen[0][-1].workers in (5, 6)
    assert changes(fleet.seen[0]) <= 4


async def test_of_many_small_crawls_one_worker_does_all() -> None:
    crawls = [ModelCrawl(id=f"c{one}", hosts=hosts(1, interval=0.5, waiting=20_000)) for one in range(6)]
    fleet = Fleet(crawls, [keda()])
    await fleet.run(HOUR / 2)
    assert fleet.seen[0][-1].workers == 1
    assert all(crawl.done > 2_000 for crawl in crawls)


async def test_crawls_with_deployments_of_their_own_have_numbers_of_their_own() -> None:
    large = ModelCrawl(id="large", hosts=hosts(5, interval=0.025, waiting=400_000), cpu={"http": 0.025})
    small = ModelCrawl(id="small", hosts=hosts(1, interval=0.5, waiting=100_000))
    fleet = Fleet([large, small], [keda(crawl="large"), keda(crawl="small")])
    await fleet.run(HOUR / 2)
    assert [seen[-1].replicas for seen in fleet.seen] in ([6, 1], [7, 1])


async def test_spot_nodes_that_vanish_in_waves_lose_no_page_and_no_replicas() -> None:
    crawl = ModelCrawl(id="a", hosts=hosts(5, interval=0.025, waiting=60_000), cpu={"http": 0.025})
    fleet = Fleet([crawl], [keda()])
    await fleet.run(600)
    at_most = fleet.seen[0][-1].replicas
    for gone in (3, 6, 2, 6):
        fleet.vanish(0, gone)
        await fleet.run(200)
    assert {one.replicas for one in fleet.seen[0] if one.at > 600} <= {at_most, at_most + 1}
    await fleet.run(HOUR)
    assert (crawl.done, crawl.state) == (300_000, CrawlState.FINISHED)
    assert fleet.seen[0][-1].replicas == 0


async def test_without_prometheus_the_replicas_stay() -> None:
    for one in (keda(), hpa()):
        fleet = Fleet([of_cores()], [one])
        await fleet.run(900)
        before = fleet.seen[0][-1].replicas
        fleet.without_prometheus = (fleet.now, fleet.now + 300)
        await fleet.run(600)
        away = [moment for moment in fleet.seen[0] if moment.metric is None]
        assert len(away) >= 19
        assert {moment.replicas for moment in fleet.seen[0] if moment.at > 900} == {before}


async def test_a_store_that_is_used_up_gets_no_more_workers() -> None:
    """A server takes 400 pages per second, which seven workers fetch; hosts allow more. With each further worker every
    write would take longer, and all would look as busy as before."""
    crawl = ModelCrawl(
        id="a", hosts=hosts(5, interval=0.0025, waiting=2_000_000), cpu={"http": 0.002},
        writing=Writing(batch_seconds=0.3, most=400.0, url=SERVER),
    )  # fmt: skip
    fleet = Fleet([crawl], [hpa()])
    await fleet.run(HOUR)
    late = [one.replicas for one in fleet.seen[0] if one.at > 300]
    assert set(late) == {late[0]}
    assert 7 <= late[0] <= 10


async def test_a_paused_crawl_goes_to_zero_and_comes_back_when_it_is_resumed() -> None:
    crawl = of_cores()
    fleet = Fleet([crawl], [keda()])
    await fleet.run(600)
    crawl.state = CrawlState.PAUSED
    await fleet.run(COOLDOWN + STABLE)
    assert fleet.seen[0][-1].replicas == 0
    crawl.state, before = CrawlState.RUNNING, crawl.done
    await fleet.run(HOUR / 4)
    assert crawl.done > before
    assert fleet.seen[0][-1].replicas in (6, 7)


async def test_a_daily_feed_is_done_every_day_with_no_worker_between() -> None:
    """Three days of a feed that brings its pages within minutes, at a fast clock: a day is four hours here."""
    day = 4 * 3_600
    feed = hosts(4, interval=0.2, waiting=0)
    crawl = ModelCrawl(
        id="a", hosts=feed, feeding_until=3 * day,
        arrivals=lambda at: {one.name: 40 for one in feed} if 600 <= at % day < 630 else {},
    )  # fmt: skip
    fleet = Fleet([crawl], [keda()])
    await fleet.run(3 * day)
    assert (crawl.done, crawl.left) == (3 * 30 * 4 * 40, 0)
    zero = sum(one.replicas == 0 for one in fleet.seen[0])
    assert zero > len(fleet.seen[0]) / 2
    assert changes(fleet.seen[0]) <= 3 * 2
