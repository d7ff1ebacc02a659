"""What a running crawl says it is bound by, in the situations that it names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from exit_crawl import ExitCrawl, busiest_by_peer, graph, site

from shoal import Item, Spider
from shoal.frontier.base import Frontier
from shoal.insight.stats import Snapshot
from shoal.model import LaneUpdate
from shoal.policy.politeness import lent_interval
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, busiest_window, reply

pytestmark = pytest.mark.full

PAGES = 30

NewCrawl = Callable[..., ExitCrawl]
StartProxy = Callable[..., Tinyproxy]


class Numbers(Spider):
    name = "numbers"
    pool = "ring"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")


class Member(Numbers):
    pool = "shop"

    async def login(self, session: Any) -> bool:
        await session.get(self.start[0])
        page = await session.post("/login", form={"password": session.account["password"]})
        return bool(page.text("b") == "welcome")


class Direct(Numbers):
    pool = "direct"


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with site(graph(PAGES)) as server:
        yield server


def host_of(server: LoopbackServer) -> str:
    return f"127.0.0.1:{server.port}"


def is_bound_by(text: str) -> Callable[[Snapshot], bool]:
    return lambda snapshot: text in snapshot.bound


@pytest.mark.parametrize("backend", ["sqlite", "redis"], indirect=True)
async def test_a_pool_without_a_rate_keeps_the_spiders_and_says_so(
    server: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(Numbers, f"http://{host_of(server)}/0", rate="10/s")
    crawl.pool("ring", [start_proxy(f"127.0.0.{number}").url for number in (2, 3)])
    await crawl.begin()
    told = f"politeness: {host_of(server)} via ring at 10/s, the spider's rate; --rate changes it"
    await crawl.watched(is_bound_by(told))
    progress = await crawl.work()
    assert progress.done == PAGES
    # One more than the rate is the start that opens the window, another what a busy machine may delay on the way.
    assert 4 < busiest_window(server.requests) <= 10 + 2
    assert len(busiest_by_peer(server.requests)) == 2


@pytest.mark.parametrize("backend", ["sqlite", "redis"], indirect=True)
async def test_a_pools_own_rate_is_named_with_its_table(
    server: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(Numbers, f"http://{host_of(server)}/0", rate="unlimited")
    crawl.pool("ring", [start_proxy("127.0.0.2").url], rate="1/s")
    await crawl.begin()
    snapshot = await crawl.watched(is_bound_by("per exit"))
    assert snapshot.bound == (
        f"politeness: {host_of(server)} via ring at 1/s per exit, the pool's rate; `rate` of [proxies.ring] changes it,"
        " and so do more exits"
    )
    assert snapshot.eta_seconds is not None
    assert snapshot.eta_seconds >= PAGES / 2


@pytest.mark.parametrize("obey_robots", [True, False])
async def test_a_pace_that_an_operator_set_is_not_taken_for_the_hosts(
    server: LoopbackServer, exit_crawl: NewCrawl, obey_robots: bool
) -> None:
    crawl = exit_crawl(Direct, f"http://{host_of(server)}/0", rate="20/s", obey_robots=obey_robots)
    await crawl.begin()
    slow = lent_interval(2.0)

    async def pace(frontier: Frontier) -> None:
        await frontier.update_lane(crawl.crawl, host_of(server), LaneUpdate(interval=slow, base_interval=slow))

    await crawl.watched(is_bound_by(f"politeness: {host_of(server)} at 30/m, set by `shoal pace`"), meanwhile=pace)


def slow_host(request: Request) -> Reply:
    if request.path == "/robots.txt":
        return reply("User-agent: *\nCrawl-delay: 3", kind="text/plain")
    return graph(PAGES)(request)


async def test_a_crawl_delay_is_named(exit_crawl: NewCrawl) -> None:
    async with site(slow_host) as slow:
        crawl = exit_crawl(Direct, f"http://{host_of(slow)}/0", rate="20/s", obey_robots=True)
        await crawl.begin()
        told = f"politeness: {host_of(slow)} at 20/m, slower than asked for: robots.txt has Crawl-delay 3 s"
        await crawl.watched(is_bound_by(told))


@pytest.mark.parametrize("backend", ["sqlite", "redis"], indirect=True)
async def test_a_proxy_that_is_down_is_said_live_with_the_cause(server: LoopbackServer, exit_crawl: NewCrawl) -> None:
    crawl = exit_crawl(Numbers, f"http://{host_of(server)}/0")
    address = f"127.0.0.8:{free_port()}"
    crawl.pool("ring", [f"http://anna:s3cret@{address}"], quarantine="1m")
    await crawl.begin()
    snapshot = await crawl.watched(is_bound_by("is down"))
    assert snapshot.bound.startswith("every exit of ring rests until ")
    down = f"proxy ring/{address} is down: "
    assert down in snapshot.bound
    assert any(line.startswith(down) for line in snapshot.workers[0].troubles)
    said = [line for line in crawl.said if line.startswith(down)]
    assert said
    assert set(said) == {said[0]}
    assert "s3cret" not in f"{snapshot.bound}{crawl.said}{snapshot.workers}"


def wrong_password(request: Request) -> Reply:
    return reply("<b>wrong</b>" if request.path == "/login" else "<h1>members only</h1>")


@pytest.mark.parametrize("backend", ["sqlite", "redis"], indirect=True)
async def test_a_login_that_is_refused_is_said_live_with_the_cause(exit_crawl: NewCrawl) -> None:
    async with site(wrong_password) as shop:
        crawl = exit_crawl(Member, f"http://{host_of(shop)}/0")
        crawl.accounts("shop", {"anna": "s3cret-word"})
        await crawl.begin()
        snapshot = await crawl.watched(is_bound_by("logins refused"))
    told = "logins refused: shop/anna (the spider's login returned False); every account of shop rests until "
    assert snapshot.bound.startswith(told)
    refused = "login refused: shop/anna: the spider's login returned False"
    assert snapshot.workers[0].troubles == (refused,)
    assert refused in crawl.said
    assert "s3cret-word" not in f"{snapshot.bound}{crawl.said}{snapshot.workers}"
