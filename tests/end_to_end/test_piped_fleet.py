"""Workers that reach nothing but a broker, their site and the store: whole crawls, and what dies on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from piped_fleet import check_pace, ended, fetches, kill

from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_for_line, wait_until

PAGES = 260  # of the graph


async def test_two_workers_behind_rabbitmq_fetch_every_page_once(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("two-workers"), rate="unlimited")
    fleet.start_coordinator()
    workers = [fleet.start_worker(), fleet.start_worker()]
    for worker in workers:
        assert "guest:guest" not in await ended(worker)
    progress = await fleet.crawl.check()
    assert (progress.stale, progress.lost) == (0, 0)
    assert set(fetches(fleet).values()) == {1}


async def test_a_worker_behind_sqs_does_a_whole_crawl(moto: Any, new_fleet: Any) -> None:
    fleet = await new_fleet(moto.queues_url("whole-crawl"), rate="unlimited")
    fleet.start_coordinator()
    await ended(fleet.start_worker())
    await fleet.crawl.check()


@pytest.mark.full
async def test_urls_pushed_into_redis_reach_a_worker_behind_the_pipe(
    rabbitmq: RabbitServer, new_fleet: Any, graph: Any, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        fleet = await new_fleet(rabbitmq.at("inbox"), frontier=server.url, rate="unlimited")
        fleet.start_coordinator()
        server.call("LPUSH", f"shoal:inbox:{fleet.crawl.crawl}", f"{graph.url}?pushed")
        await asyncio.to_thread(wait_until, lambda: not server.call("KEYS", "*inbox*"), otherwise="nobody takes it in")
        await ended(fleet.start_worker())
        assert set(fetches(fleet).values()) == {1} == {fetches(fleet)["/g/0?pushed"]}
        async with fleet.crawl.opened() as (frontier, _):
            progress = await frontier.progress(fleet.crawl.crawl)
        assert (progress.is_finished, progress.done, progress.dead) == (True, PAGES + 1, 0)
    finally:
        fleet.end()
        server.stop()


@pytest.mark.full
async def test_a_newer_worker_is_refused_while_the_others_go_on(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("newer-worker"), rate="40/s")
    fleet.start_coordinator()
    worker = fleet.start_worker()
    await fleet.crawl.wait_for_pages(10)
    said = await ended(fleet.start_worker(newer=True), code=2)
    assert said.count("upgrade shoal on the machine of the coordinator") == 1
    assert "guest:guest" not in said
    await ended(worker)
    progress = await fleet.crawl.check()
    assert (progress.stale, progress.lost) == (0, 0)


# The leases of the worker that is refused, five seconds each, have to run out.
@pytest.mark.full
async def test_workers_from_before_an_upgrade_are_refused_and_lose_nothing(
    rabbitmq: RabbitServer, new_fleet: Any
) -> None:
    fleet = await new_fleet(rabbitmq.at("upgraded"), rate="40/s")
    coordinator = fleet.start_coordinator()
    older = fleet.start_worker()
    await fleet.crawl.wait_for_pages(30)
    kill(coordinator)
    fleet.start_coordinator(newer=True)
    assert "upgrade shoal on the machine of the worker" in await ended(older, code=2)
    await ended(fleet.start_worker(newer=True))
    await fleet.crawl.check()


# A server of its own, which is killed; leases of five seconds have to run out.
@pytest.mark.full
async def test_nothing_is_lost_when_worker_coordinator_and_broker_are_killed_in_turn(
    tmp_path: Path, new_fleet: Any
) -> None:
    server = RabbitServer(tmp_path / "rabbitmq").start()
    try:
        fleet = await new_fleet(server.at("killed"), rate="40/s")
        coordinator = fleet.start_coordinator()
        await asyncio.to_thread(server.wait_for_the_disk, "killed.requests")
        doomed, _ = fleet.start_worker(), fleet.start_worker()
        await fleet.crawl.wait_for_pages(30)
        kill(doomed)
        await fleet.crawl.wait_for_pages(60)
        kill(coordinator)
        fleet.start_coordinator()
        await fleet.crawl.wait_for_pages(90)
        await asyncio.to_thread(server.restart)
        await fleet.crawl.wait_for_pages(120)
        last = fleet.start_worker()
        await ended(last)
        await fleet.crawl.check()
        check_pace(fleet.crawl.site.hits(), per_second=40)
    finally:
        fleet.end()
        server.remove()


@pytest.mark.full
async def test_a_worker_says_that_it_waits_for_a_coordinator(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("no-coordinator"), rate="unlimited")
    worker = fleet.start_worker()
    wait_for_line(worker.stderr, "no coordinator answers at amqp://guest:***@")
    fleet.start_coordinator()
    await ended(worker)
    await fleet.crawl.check()
