"""What people see of exits: `shoal exits`, and cost and quarantined exits in `status` and `top`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from command_line import json_of, shoal_

from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Budgets, Crawl, Done, ExitUse, Heartbeat, Lease, Pool, Retry, Task

CRAWL = "books-1"
CHEAP = Pool(name="cheap", exits=("dc-1", "dc-2"), interval=0.0, cap=9, quarantine=3600.0, cost=0.001)
DEAR = Pool(name="dear", exits=("res-1",), interval=0.0, cap=9, quarantine=3600.0, cost=0.01, region="de")


def with_frontier(work: Callable[[Frontier], Awaitable[None]]) -> None:
    async def run() -> None:
        frontier = await open_frontier("shoal.db")
        try:
            await work(frontier)
        finally:
            await frontier.close()

    asyncio.run(run())


async def open_crawl(frontier: Frontier, *, budget: float = 0.0, pools: tuple[Pool, ...] = (CHEAP, DEAR)) -> None:
    budgets = Budgets(cost=budget)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="books", interval=0.0, pools=pools, budgets=budgets))


async def take(frontier: Frontier, lane: str, count: int, *, first: int) -> list[Lease]:
    """Leases of a lane that had nothing to do so far."""
    tasks = [Task(url=f"https://{lane}/{number}", key=number, lane=lane) for number in range(first, first + count)]
    await frontier.put(CRAWL, tasks)
    return (await frontier.lease([CRAWL], count, worker="w", seconds=60.0, horizon=0.0)).leases


async def end(frontier: Frontier, leases: list[Lease], *, blocked: str = "") -> None:
    """All requests went well but those through one exit, whose pages wait again."""
    use = ExitUse(size=2_000_000, elapsed=0.5)
    turned_away = ExitUse(verdict="blocked", elapsed=0.1)
    await frontier.settle(
        [
            Retry(lease=lease, reason="blocked", free=True, delay=60.0, exit=turned_away)
            if lease.exit == blocked
            else Done(lease=lease, exit=use)
            for lease in leases
        ]
    )


@pytest.fixture
def crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A crawl in which the cheap pool gets half of its requests through, and the dear one all."""
    monkeypatch.chdir(tmp_path)

    async def work(frontier: Frontier) -> None:
        await open_crawl(frontier)
        await end(frontier, await take(frontier, "shop.test via cheap", 2, first=0), blocked="dc-2")
        await end(frontier, await take(frontier, "shop.test via dear", 4, first=10))
        await take(frontier, "news.test via cheap", 1, first=20)

    with_frontier(work)
    return CRAWL


def test_tells_which_pool_earns_its_money_for_each_host(crawl: str) -> None:
    hosts = json_of("exits", crawl)["hosts"]
    assert [(one["host"], one["pool"]) for one in hosts] == [
        ("news.test", "cheap"),
        ("shop.test", "cheap"),
        ("shop.test", "dear"),
    ]
    cheap, dear = hosts[1:]
    assert (cheap["region"], dear["region"]) == (None, "de")
    assert (cheap["success"], dear["success"]) == (0.5, 1.0)
    assert cheap["cost_per_1000_ok"] == pytest.approx(2.0)
    assert dear["cost_per_1000_ok"] == pytest.approx(10.0)
    assert (hosts[0]["success"], hosts[0]["cost_per_1000_ok"], hosts[0]["requests"]) == (None, None, 1)


def test_tells_how_every_exit_does_towards_every_host(crawl: str) -> None:
    rows = {(one["exit"], one["host"]): one for one in json_of("exits")["exits"]}
    healthy, quarantined = rows["dc-1", "shop.test"], rows["dc-2", "shop.test"]
    assert (healthy["requests"], healthy["ok"], healthy["bytes"], healthy["mean_seconds"]) == (1, 1, 2_000_000, 0.5)
    assert (healthy["health"], quarantined["health"], quarantined["blocked"]) == ("healthy", "resting", 1)
    assert 3500 < quarantined["rests_for"] <= 3600
    assert sum(one["in_flight"] for one in rows.values()) == 1


REGIONAL = Pool(name="region:eu", exits=("region:eu/127.0.0.2@fra-1", "region:eu/127.0.0.3@fra-1"), interval=0.0, cap=9)


async def offer(frontier: Frontier, count: int, *, pages: int = 2) -> None:
    """A worker on fra-1 offers its exits, has done so many pages through them, and tells of so many of its exits."""
    tasks = [
        Task(url=f"https://a.test/{key}", key=key, lane="a.test via region:eu", pool="region:eu", kind="http@eu")
        for key in range(100, 103)
    ]
    await frontier.put(CRAWL, tasks)
    kinds = ("http", "http@eu")
    batch = await frontier.lease([CRAWL], pages, worker="w1", seconds=60.0, horizon=0.0, kinds=kinds, offers=[REGIONAL])
    await end(frontier, batch.leases)
    told = {"region:eu@fra-1": count} if count else {}
    await frontier.beat(
        Heartbeat(
            worker="w1", crawl=CRAWL, host="h", pid=1, version="1", slots=1, machine="m", kinds=kinds, offers=told
        )
    )


def test_offered_exits_are_shown_with_their_machine_while_it_offers_them_and_after(
    crawl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_frontier(lambda frontier: offer(frontier, 2))
    document = json_of("exits", crawl, "--pool", "region:eu")
    assert document["offers"] == [{"machine": "fra-1", "pool": "region:eu", "exits": 2, "workers": 1}]
    assert [(one["host"], one["region"], one["exits"]) for one in document["hosts"]] == [("a.test", "eu", 2)]
    shown = [(one["exit"], one["machine"], one["offered"], one["health"]) for one in document["exits"]]
    assert shown == [(name, "fra-1", True, "healthy") for name in REGIONAL.exits]
    assert {one["machine"] for one in json_of("exits", crawl, "--pool", "cheap")["exits"]} == {None}
    text = shoal_("exits", crawl).stdout
    assert re.search(r"region:eu/127.0.0.2@fra-1 +region:eu +fra-1 +a.test .* healthy\n", text)
    assert re.search(r"machine +offers to +exits +workers\nfra-1 +region:eu +2 +1\n", text)
    with_frontier(lambda frontier: offer(frontier, 0, pages=0))
    assert json_of("exits", crawl)["offers"] == []
    assert {one["offered"] for one in json_of("exits", crawl, "--pool", "region:eu")["exits"]} == {False}
    text = shoal_("exits", crawl).stdout
    assert text.count("healthy, not offered now") == 2
    assert "offers to" not in text


def test_offers_are_shown_before_an_exit_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def work(frontier: Frontier) -> None:
        await open_crawl(frontier, pools=())
        await offer(frontier, 2, pages=0)

    with_frontier(work)
    result = shoal_("exits")
    assert "no exit was used yet" in result.stderr
    assert re.search(r"fra-1 +region:eu +2 +1\n", result.stdout)


def test_in_a_pipe_exits_are_plain_lines(crawl: str) -> None:
    lines = [line.split() for line in shoal_("exits", crawl).stdout.splitlines()]
    assert lines[2] == ["shop.test", "cheap", "2", "2", "50", "%", "1", "0", "0.0020", "2.00"]
    assert lines[5][:3] == ["exit", "pool", "host"]
    quarantined = next(line for line in lines if line[:3] == ["dc-2", "cheap", "shop.test"])
    assert "quarantined until" in " ".join(quarantined)
    assert lines[-1] == ["cost", "0.042"]
    assert lines[3][:3] == ["shop.test", "dear", "(de)"]


def test_exits_can_be_narrowed_down_and_sorted(crawl: str) -> None:
    def names(*options: str) -> list[tuple[str, str]]:
        return [(one["exit"], one["host"]) for one in json_of("exits", crawl, *options)["exits"]]

    assert {host for _, host in names("--host", "https://News.test/")} == {"news.test"}
    assert names("--pool", "dear") == [("res-1", "shop.test")]
    assert names("--sort", "success")[0] == ("dc-2", "shop.test")
    assert names("--sort", "cost")[0] == ("res-1", "shop.test")
    assert "leave them out to see all exits" in shoal_("exits", crawl, "--host", "other.test").stderr
    refused = shoal_("exits", crawl, "--pool", "daer", code=2).stderr
    assert refused == "shoal: books-1 has no pool 'daer', only cheap, dear\n"


def test_a_crawl_without_pools_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_frontier(lambda frontier: open_crawl(frontier, pools=()))
    result = shoal_("exits")
    assert (result.stdout, result.stderr) == ("", "books-1: it has no pools, every request is direct\n")
    assert json_of("exits")["exits"] == []


def test_long_lists_of_exits_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pool = Pool(name="many", exits=tuple(f"e{number}" for number in range(1200)), interval=0.0, host_cap=2000)

    async def work(frontier: Frontier) -> None:
        await open_crawl(frontier, pools=(pool,))
        await take(frontier, "a.test via many", 1100, first=0)

    with_frontier(work)
    document = json_of("exits")
    assert (len(document["exits"]), document["more_exits"]) == (1000, 100)
    assert shoal_("exits").stderr == "and 100 exits more; --host and --pool show fewer\n"


def test_status_and_top_tell_the_cost_so_far(crawl: str) -> None:
    assert ", cost 0.042, " in shoal_("status").stdout.splitlines()[0]
    with_frontier(lambda frontier: open_crawl(frontier, budget=5.0))
    for command in ("status", "top"):
        assert ", cost 0.042 of 5.00, " in shoal_(command).stdout.splitlines()[0]
    status = json_of("status", crawl)
    assert (status["budget"], status["is_budget_spent"]) == (5.0, False)
    assert status["cost"] == pytest.approx(0.042)


def test_status_says_that_the_budget_is_spent_and_how_to_raise_it(crawl: str) -> None:
    async def work(frontier: Frontier) -> None:
        await open_crawl(frontier, budget=0.04)
        assert not (await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)).leases

    with_frontier(work)
    told = "paused: the budget of 0.040 is spent; run it again with --set budget=0.08"
    assert told in shoal_("status").stdout
    assert told in shoal_("top").stdout
    assert json_of("status", crawl)["is_budget_spent"]
    # It would be paused again at once.
    assert "--set budget=0.08" in shoal_("resume", crawl, code=2).stderr


def test_status_says_until_when_every_exit_of_a_lane_rests(crawl: str) -> None:
    async def work(frontier: Frontier) -> None:
        await end(frontier, await take(frontier, "deep.test via dear", 1, first=50), blocked="res-1")
        await frontier.put(CRAWL, [Task(url="https://deep.test/9", key=99, lane="deep.test via dear")])

    with_frontier(work)
    line = next(line for line in shoal_("status").stdout.splitlines() if line.startswith("deep.test via dear"))
    assert "exits back " in line
    (lane,) = [one for one in json_of("status", crawl)["lanes"] if one["lane"] == "deep.test via dear"]
    assert lane["exits_rest"]
    assert 3500 < lane["starts_in"] <= 3600
