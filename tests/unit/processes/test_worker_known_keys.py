"""Which links a worker remembers as known, and when it forgets them."""

from __future__ import annotations

import asyncio

import msgspec
from worker_in_memory import HOST, Bench

from shoal.model import Budgets, Crawl
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import task_for
from shoal.testing.waiting import eventually
from shoal.urls.canonical import key_of


async def test_a_key_is_known_only_after_its_settle_was_confirmed() -> None:
    """Page A finds /x and is not settled yet: page B, which finds /x too, must still send it."""
    bench = Bench({"/a": "/x", "/b": "/x"}, flush_pages=1)
    await bench.begin("/a", "/b")
    confirmed = asyncio.Event()
    bench.frontier.meddle = lambda name, *_: confirmed.wait() if name == "settle" else None
    running = asyncio.create_task(bench.run())
    await eventually(lambda: sorted(bench.fetched()) == ["/a", "/b"] and bench.count("settle") == 1)
    assert key_of(f"{HOST}/x") not in bench.known
    confirmed.set()
    await running
    sent = [
        result.found
        for name, given in bench.calls
        if name == "settle"
        for result in given
        if getattr(result, "found", None)
    ]
    assert [[task.url for task in found] for found in sent] == [[f"{HOST}/x"], [f"{HOST}/x"]]
    assert key_of(f"{HOST}/x") in bench.known
    assert bench.fetched().count("/x") == 1


async def test_links_of_a_stale_settle_do_not_become_known() -> None:
    bench = Bench({"/": "/x"}, feeding=True, max_attempts=1)
    await bench.begin("/")
    running = await bench.background()
    await bench.memory.delete_crawl("c")
    await bench.memory.open_crawl(bench.crawl)
    bench.fetcher.gate.set()
    await eventually(lambda: bench.count("settle"))
    bench.stop.set()
    assert await running == 0
    assert key_of(f"{HOST}/x") not in bench.known


async def test_links_that_a_budget_refused_do_not_become_known() -> None:
    bench = Bench({"/": "/x /y"})
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, budgets=Budgets(pages=2))
    await bench.begin("/")
    assert await bench.run() == 2
    assert key_of(f"{HOST}/x") in bench.known
    assert key_of(f"{HOST}/y") not in bench.known


async def test_links_of_a_long_list_that_a_budget_refused_do_not_become_known() -> None:
    bench = Bench({"/": " ".join(f"/{number}" for number in range(700))})
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, budgets=Budgets(pages=2))
    await bench.begin("/")
    await bench.run()
    assert key_of(f"{HOST}/0") in bench.known
    assert key_of(f"{HOST}/1") not in bench.known


async def test_a_new_epoch_empties_the_known_keys() -> None:
    bench = Bench({"/": "/x", "/x": ""}, feeding=True)
    await bench.begin("/")
    running = await bench.background()
    bench.fetcher.gate.set()
    await eventually(lambda: key_of(f"{HOST}/x") in bench.known)
    await eventually(lambda: len(bench.store.rows) == 2)
    await bench.memory.forget("c", [key_of(f"{HOST}/x")])
    await eventually(lambda: key_of(f"{HOST}/x") not in bench.known)
    bench.stop.set()
    await running


async def test_a_link_to_a_page_that_has_expired_is_followed_again() -> None:
    clock = FakeClock()
    bench = Bench({"/1": "/x", "/2": "/x", "/x": ""}, feeding=True, clock=clock)
    bench.crawl = msgspec.structs.replace(bench.crawl, dedup_ttl=100.0)
    await bench.begin("/1")
    # Put before the page expires: no put tells the worker that it has.
    await bench.memory.put("c", [msgspec.structs.replace(task_for(f"{HOST}/2"), delay=200.0)])
    running = await bench.background()
    bench.fetcher.gate.set()
    await eventually(lambda: len(bench.store.rows) == 2 and key_of(f"{HOST}/x") in bench.known)
    clock.advance(200.0)
    await eventually(lambda: bench.fetched() == ["/1", "/x", "/2", "/x"])
    bench.stop.set()
    await running
