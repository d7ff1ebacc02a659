"""Crawls that store in a real PostgreSQL server: one that goes away in the middle, one that is slow."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis_fleet import SECONDS, RedisFleet, ended

from called_here import call_shoal
from shoal.frontier import open_frontier
from shoal.model import Heartbeat, Progress
from shoal.run.coordinator import Coordinator
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

PAGES = 300
LEASE_SECONDS = 2.0
MIB = 1024 * 1024
SLOW = """
    CREATE FUNCTION shoal.nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
    CREATE TRIGGER nap BEFORE INSERT ON shoal.items FOR EACH ROW EXECUTE FUNCTION shoal.nap()"""


@contextmanager
def fleet_with(store: str, folder: Path) -> Iterator[RedisFleet]:
    """A crawl of the graph, its tasks in a file, its items in PostgreSQL."""
    with site_process("--graph", str(PAGES), log=folder / "hits.jsonl") as site:
        fleet = RedisFleet(folder, site, str(folder / "shoal.db"), store=store)
        yield fleet
        fleet.end()


def check(fleet: RedisFleet, run: subprocess.Popen[str]) -> str:
    """The run ends well, with every page once in the store, and none fetched twice: no lease ran out."""
    _, err, code = ended(run)
    assert code == 0, err
    fleet.check(PAGES)
    assert set(fleet.fetches().values()) == {1}
    return err


def progress_at_rest(fleet: RedisFleet) -> Progress:
    """The crawl's counters, once five looks in a row, a fifth of a second apart, have found them the same."""
    seen: deque[Progress] = deque(maxlen=5)

    def is_at_rest() -> bool:
        seen.append(fleet.progress())
        return list(seen) == [seen[0]] * 5

    wait_until(is_at_rest, otherwise="the counters do not come to rest", seconds=SECONDS, pause=0.2)
    return seen[0]


async def look(fleet: RedisFleet) -> tuple[str, list[Heartbeat]]:
    """What the crawl is bound by, and its workers. The store is left alone: it may be away."""
    frontier = await open_frontier(fleet.url)
    try:
        (crawl,) = await frontier.crawls()
        snapshot = await Coordinator(crawl, frontier=frontier, show=id, say=print).snapshot()
        return snapshot.bound, await frontier.workers()
    finally:
        await frontier.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    server = PostgresServer().start()
    yield server
    server.remove()


# Nine seconds: the server has to be away for longer than the two seconds of a lease.
def test_a_server_that_goes_away_for_longer_than_a_lease_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, own_server: PostgresServer
) -> None:
    with fleet_with(own_server.url(), tmp_path) as fleet:
        spider = fleet.spider(flush_pages=16, concurrency=16, rate="150/s", lease_seconds=LEASE_SECONDS)
        run = fleet.start("run", spider)
        fleet.wait_for_pages(40)
        own_server.stop()
        done = progress_at_rest(fleet)
        time.sleep(LEASE_SECONDS + 0.5)  # every lease would have run out by now
        later = fleet.progress()
        assert later.done == done.done < PAGES
        # Pages in hand, pages that wait to be written, pages in the write: no more was lent, and none was lost.
        assert 0 < later.leased == done.leased <= 16 + 2 * 16 + 2 * 16
        assert later.lost == 0
        assert run.poll() is None
        assert asyncio.run(look(fleet))[0].startswith("the store: waiting for ")
        own_server.start()
        err = check(fleet, run)
    assert err.count("; waiting") == 1, err
    assert "s3cr3t" not in err


# Six seconds: long enough for a buffer without a bound to be seen in the memory of the worker.
def test_a_slow_store_holds_up_leasing_and_memory_stays_flat(tmp_path: Path, postgres: PostgresServer) -> None:
    database = f"slow_{uuid.uuid4().hex}"
    with fleet_with(postgres.new_database(database), tmp_path) as fleet:
        assert "is ready" in call_shoal(tmp_path, "store", "init", "--store", fleet.store).stdout
        postgres.call(SLOW, database=database)
        run = fleet.start("run", fleet.spider(flush_pages=4, concurrency=4, lease_seconds=LEASE_SECONDS))
        fleet.wait_for_pages(1)
        leased, memory = [], []
        while run.poll() is None:
            leased.append(fleet.progress().leased)
            memory += [beat.memory_bytes for beat in asyncio.run(look(fleet))[1]]
            time.sleep(0.05)  # between two looks
        check(fleet, run)
    assert 0 < max(leased) <= 4 + 2 * 4 + 2 * 4
    assert max(memory) - memory[0] < 16 * MIB
