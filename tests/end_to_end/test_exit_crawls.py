"""Crawls that leave through real proxies: who the site sees and how often, and what bad exits cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from exit_crawl import BACKENDS, ExitCrawl, busiest_by_peer, graph, lying_server, pages_of, silent_server, site

from shoal import Item, Spider
from shoal.errors import SettingError, UsageError
from shoal.model import CrawlState
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Gateway, Tinyproxy
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, busiest_window, reply

PAGES = 20
ALL_ONCE = {f"/{number}": 1 for number in range(PAGES)}

NewCrawl = Callable[..., ExitCrawl]
StartProxy = Callable[..., Tinyproxy]


class Numbers(Spider):
    """Takes every page of the graph."""

    pool = "ring"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")


class Wary(Numbers):
    """Knows this site's way of turning people away."""

    def parse(self, page: Any) -> Any:
        if "not you" in page.text():
            page.blocked("not you")
        yield from super().parse(page)


@pytest.fixture
async def graph_site() -> AsyncIterator[LoopbackServer]:
    async with site(graph(PAGES)) as server:
        yield server


def home(server: LoopbackServer) -> str:
    return f"http://127.0.0.1:{server.port}/0"


def peers(server: LoopbackServer) -> Counter[str]:
    return Counter(hit.peer for hit in server.requests)


async def test_pages_leave_through_the_proxies_of_the_pool_in_turn(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(Numbers, home(graph_site), obey_robots=True)
    locked = start_proxy("127.0.0.3", user="anna", password="secret")
    crawl.pool("ring", [start_proxy("127.0.0.2").url, locked.url], rate="20/s")
    progress = await crawl.run()
    assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 0)
    assert pages_of(graph_site.requests) == ALL_ONCE
    assert len(await crawl.items()) == PAGES
    # With robots.txt there are 21 requests: ours are nowhere among them.
    assert peers(graph_site).keys() == {"127.0.0.2", "127.0.0.3"}
    assert min(peers(graph_site).values()) >= PAGES // 2 - 1


async def test_a_list_of_proxies_given_on_the_command_line_is_used(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(type("Plain", (Numbers,), {"pool": ""}), home(graph_site), proxies="proxies.txt", max_pages=2)
    (crawl.folder / "proxies.txt").write_text(f"# mine\n{start_proxy('127.0.0.2').url}\n")
    await crawl.run()
    assert peers(graph_site) == {"127.0.0.2": 2}


@pytest.mark.parametrize("obey_robots", [True, False])
async def test_bad_exits_rest_while_good_ones_serve(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl, *, obey_robots: bool
) -> None:
    crawl = exit_crawl(
        Numbers, home(graph_site), obey_robots=obey_robots, max_attempts=1, connect_seconds=2.0, first_byte_seconds=2.0
    )
    refusing = start_proxy("127.0.0.4", serves_us=False)
    wrong = start_proxy("127.0.0.5", user="anna", password="secret").url.replace("secret", "wrong")
    async with silent_server("127.0.0.6", hangs=True) as hanging, silent_server("127.0.0.7", hangs=False) as closing:
        gone = f"http://127.0.0.8:{free_port()}"
        bad = [gone, closing, wrong, hanging, refusing.url]
        good = [start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url]
        crawl.pool("ring", [*bad, *good], rate="20/s")
        progress = await crawl.run()
    assert (progress.done, progress.dead) == (PAGES, 0)
    assert pages_of(graph_site.requests) == ALL_ONCE
    assert peers(graph_site).keys() == {"127.0.0.2", "127.0.0.3"}
    items = await crawl.items()
    assert len({item.key for item in items}) == len(items) == PAGES
    exits = await crawl.exits()
    failed = [status for status in exits.values() if status.failed]
    assert len(failed) == len(bad)
    assert all(status.rests_for > 0 and status.ok == 0 for status in failed)
    # Those in flight when the first of them failed, and pages whose many failures no longer count against an exit.
    assert max(status.requests for status in failed) <= 8


async def test_exits_that_lie_use_up_no_attempt_of_a_page(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(Numbers, home(graph_site), max_attempts=1)
    captcha = reply("<script>window._cf_chl_opt={}</script>")
    refusal = reply("no", status=403)
    async with (
        silent_server("127.0.0.4", hangs=False) as closing,
        lying_server("127.0.0.5", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<h1>half") as cutting,
        lying_server("127.0.0.6", b"\x00\x01 nonsense\r\n\r\n") as babbling,
        lying_server("127.0.0.7", captcha.head + captcha.body) as guarding,
        lying_server("127.0.0.9", refusal.head + refusal.body) as refusing,
    ):
        # Those that turn away come last: the first page has five failures behind it when it meets them.
        gone = [f"http://127.0.0.8:{free_port()}", f"socks5://127.0.0.8:{free_port()}"]
        urls = [*gone, closing, cutting, babbling, guarding, refusing, start_proxy("127.0.0.2").url]
        crawl.pool("ring", urls, rate="20/s")
        progress = await crawl.run()
    assert (progress.done, progress.dead) == (PAGES, 0)
    assert pages_of(graph_site.requests) == ALL_ONCE
    assert {json.loads(item.data)["number"] for item in await crawl.items()} == ALL_ONCE.keys()
    told = {
        name.partition(":")[0]: (one.ok, one.blocked > 0, one.failed > 0) for name, one in (await crawl.exits()).items()
    }
    turned_away, failed = (0, True, False), (0, False, True)
    assert told == {
        "ring/127.0.0.2": (PAGES, False, False),
        **dict.fromkeys(["ring/127.0.0.7", "ring/127.0.0.9"], turned_away),
        **dict.fromkeys([f"ring/127.0.0.{number}" for number in (4, 5, 6, 8)], failed),
    }


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_sticky_pool_finds_the_exit_that_a_host_lets_in(start_proxy: StartProxy, exit_crawl: NewCrawl) -> None:
    def answer(request: Request) -> Reply:
        return graph(PAGES)(request) if request.peer == "127.0.0.5" else reply("no", status=403)

    async with site(answer) as server:
        crawl = exit_crawl(Numbers, home(server))
        urls = [start_proxy(f"127.0.0.{number}").url for number in (2, 3, 4, 5)]
        crawl.pool("ring", urls, rate="20/s", sticky=True)
        progress = await crawl.run()
        assert (progress.done, progress.dead) == (PAGES, 0)
        assert peers(server) == {"127.0.0.2": 1, "127.0.0.3": 1, "127.0.0.4": 1, "127.0.0.5": PAGES}


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize(("rate", "host_rate"), [(5, 10), (3, 100)], ids=["the host's limit", "the exit's limit"])
async def test_the_limit_of_an_exit_and_that_of_a_host_hold_together(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl, rate: int, host_rate: int
) -> None:
    crawl = exit_crawl(Numbers, home(graph_site))
    urls = [start_proxy(f"127.0.0.{number}").url for number in (2, 3, 4)]
    crawl.pool("ring", urls, rate=f"{rate}/s", host_rate=f"{host_rate}/s")
    progress = await crawl.run()
    assert progress.done == PAGES
    # One more than the rate is the start that opens the window, another what a busy machine may delay on the way.
    assert max(busiest_by_peer(graph_site.requests).values()) <= rate + 2
    assert busiest_window(graph_site.requests) <= min(host_rate, 3 * rate) + 2
    assert len(peers(graph_site)) == 3


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_with_every_exit_bad_pages_wait_and_are_then_given_up(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    urls = [f"http://127.0.0.1:{graph_site.port}/{number}" for number in range(PAGES)]
    crawl = exit_crawl(Numbers, *urls, exit_patience="2s", max_attempts=1)
    bad = [start_proxy("127.0.0.4", serves_us=False).url, f"http://127.0.0.8:{free_port()}"]
    crawl.pool("ring", bad, rate="20/s", per_exit=1, quarantine="0.5s", max_quarantine="1s")
    progress = await crawl.run()
    assert (progress.done, progress.dead, progress.state) == (0, PAGES, CrawlState.FINISHED)
    reasons = Counter(letter.reason.partition(":")[0] for letter in await crawl.dead())
    assert reasons["no_exit"] > PAGES // 2
    assert reasons.keys() <= {"no_exit", "exit"}
    assert graph_site.requests == []
    # Two exits, each tried again when its rest is over, for two seconds and a little: not a spin.
    assert 4 <= sum(status.requests for status in (await crawl.exits()).values()) < 40


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_page_that_is_blocked_everywhere_does_not_shut_the_pool(
    start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    async with site(graph(PAGES), fail_paths={"/7": 403}) as server:
        crawl = exit_crawl(Numbers, home(server))
        crawl.pool("ring", [start_proxy(f"127.0.0.{number}").url for number in range(2, 8)], rate="20/s")
        progress = await crawl.run()
        assert (progress.done, progress.dead) == (PAGES - 1, 1)
        (letter,) = await crawl.dead()
        assert (letter.reason, letter.attempts) == ("blocked: turned away through 6 exits", 1)
        assert pages_of(server.requests) == {**ALL_ONCE, "/7": 6}
        assert sum(status.blocked for status in (await crawl.exits()).values()) == 3


async def test_a_site_that_turns_one_exit_away_is_visited_through_the_others(
    start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    def answer(request: Request) -> Reply:
        return reply("<p>not you") if request.peer == "127.0.0.2" else graph(PAGES)(request)

    async with site(answer) as server:
        crawl = exit_crawl(Wary, home(server), max_attempts=1)
        crawl.pool("ring", [start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url], rate="20/s", per_exit=1)
        progress = await crawl.run()
        assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 1)
        assert peers(server) == {"127.0.0.2": 1, "127.0.0.3": PAGES}
        assert len(await crawl.items()) == PAGES


async def test_pages_come_through_a_gateway_under_their_own_urls(
    graph_site: LoopbackServer, exit_crawl: NewCrawl
) -> None:
    async with Gateway(key="abc", address="127.0.0.9") as gateway:
        crawl = exit_crawl(Numbers, home(graph_site))
        crawl.pool("ring", [gateway.template], rate="unlimited", cost=0.25)
        progress = await crawl.run()
    assert (progress.done, progress.cost) == (PAGES, PAGES * 0.25)
    assert peers(graph_site) == {"127.0.0.9": PAGES}
    assert {item.url for item in await crawl.items()} == {f"{home(graph_site)[:-1]}{number}" for number in range(PAGES)}


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_spent_budget_pauses_the_crawl_and_a_raised_one_lets_it_go_on(
    graph_site: LoopbackServer, exit_crawl: NewCrawl
) -> None:
    async with Gateway(key="abc", address="127.0.0.9") as gateway:
        crawl = exit_crawl(Numbers, home(graph_site))
        crawl.pool("ring", [gateway.template], rate="unlimited", per_exit=2, cost=0.5)
        paused = await crawl.run(until=lambda progress: progress.state is CrawlState.PAUSED, budget=3.0)
        assert 6 <= len(graph_site.requests) <= 8  # what was in flight when it was spent
        assert (paused.done, paused.cost) == (len(graph_site.requests), len(graph_site.requests) * 0.5)
        progress = await crawl.run(budget=100.0)
    assert (progress.done, progress.state) == (PAGES, CrawlState.FINISHED)
    assert pages_of(graph_site.requests) == ALL_ONCE


async def test_chains_of_pages_run_side_by_side_one_step_at_a_time(
    start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    chains, steps = 4, 5

    def answer(request: Request) -> Reply:
        chain, step = map(int, request.path[1:].split("/"))
        following = f'<a href="/{chain}/{step + 1}">next</a>' if step + 1 < steps else ""
        return reply(f"<h1>{request.path}</h1>{following}", delay=0.05)

    async with site(answer) as server:
        starts = [f"http://127.0.0.1:{server.port}/{chain}/0" for chain in range(chains)]
        crawl = exit_crawl(Numbers, *starts)
        crawl.pool("ring", [start_proxy("127.0.0.2").url], rate="unlimited", per_exit=50)
        progress = await crawl.run()
        order = [hit.path for hit in server.requests]
    assert progress.done == chains * steps
    for chain in range(chains):
        assert [path for path in order if path.startswith(f"/{chain}/")] == [
            f"/{chain}/{step}" for step in range(steps)
        ]
    # No chain waits for another to end: every first step is taken before any last one.
    assert max(order.index(f"/{chain}/0") for chain in range(chains)) < order.index("/0/4")
    assert server.peak_in_flight["127.0.0.1"] > 1


async def test_what_cannot_work_is_said_before_anything_begins(exit_crawl: NewCrawl) -> None:
    crawl = exit_crawl(Numbers, "http://127.0.0.1:1/")
    with pytest.raises(UsageError, match="there is no pool 'ring', only direct"):
        await crawl.run()
    crawl.accounts("shop", {"anna": "secret"})
    with pytest.raises(UsageError, match=r"Numbers has no login, and \[accounts.shop\] needs one"):
        await crawl.run(pool="shop")
    crawl.pool("ring", ["ftp://127.0.0.1:1"])
    with pytest.raises(SettingError, match=r"\[proxies.ring\]"):
        await crawl.run()
    async with crawl.opened() as (frontier, _):
        assert await frontier.crawls() == []


async def test_a_worker_without_the_exit_it_was_lent_says_so_and_hands_the_page_back(
    graph_site: LoopbackServer, start_proxy: StartProxy, exit_crawl: NewCrawl
) -> None:
    crawl = exit_crawl(Numbers, home(graph_site), max_pages=1, grace_seconds=0.1)
    crawl.pool("ring", [start_proxy("127.0.0.2").url])
    await crawl.begin()
    (crawl.folder / "shoal.toml").unlink()
    progress = await crawl.work(until=lambda _: bool(crawl.said))
    assert (progress.left, progress.done, progress.dead, progress.retried) == (1, 0, 0, 0)
    (line,) = crawl.said
    assert line.startswith("there is no exit ring/127.0.0.2:")
    assert graph_site.requests == []
    (status,) = (await crawl.exits()).values()
    assert (status.failed, status.in_flight) == (0, 0)
