"""`shoal serve` goes on when its frontier or its store does not answer, says so, and recovers by itself."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from command_line import Folder
from serving import Serving, serving

from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until
from shoal.version import install_command

PRODUCTS = 10
# More than the two seconds that an answer may take, on a busy machine; less than a driver's own patience.
BOUNDED = 15.0


def lists_again(server: Serving) -> None:
    wait_until(lambda: server.get("/crawls").status == 200, otherwise="the list does not come back", pause=0.1)
    wait_until(lambda: server.get("/readyz", prefix="").status == 200, otherwise="it is not ready again", pause=0.1)
    assert server.get("/status").json["problems"] == []


def test_says_that_redis_is_away_and_goes_on_when_it_is_back(
    folder: Folder, own_redis: RedisServer, site: SiteProcess
) -> None:
    folder.run("run", folder.spider(site.url), "--frontier", own_redis.url)
    with serving(folder, "--frontier", own_redis.url) as server, server.events() as events:
        assert [crawl["id"] for crawl in server.get("/crawls").json["crawls"]] == ["books-1"]
        wait_until(lambda: next(events) == ("problems", []), otherwise="no event")
        own_redis.stop()
        _, lines = next(event for event in events if event[0] == "problems" and event[1])
        assert "cannot reach Redis" in lines[0]
        answer = server.get("/crawls")
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert "cannot reach Redis" in answer.error
        assert server.post("/crawls/books-1/pause").status == 503
        assert server.get("/healthz", prefix="").status == 200
        ready = server.get("/readyz", prefix="")
        assert (ready.status, ready.json["ok"]) == (503, False)
        assert "cannot reach Redis" in server.get("/status").json["problems"][0]
        own_redis.start()
        lists_again(server)
        # Before that the problem may be told in other words: a server that is loading its data.
        wait_until(lambda: next(events) == ("problems", []), otherwise="the problem is not over")


@pytest.mark.full
def test_a_redis_that_stands_still_is_not_waited_for(folder: Folder, own_redis: RedisServer) -> None:
    with serving(folder, "--frontier", own_redis.url) as server:
        assert server.get("/crawls").status == 200
        own_redis.pause()
        began = time.monotonic()
        answer = server.ask("GET", "/crawls")
        assert (answer.status, time.monotonic() - began < BOUNDED) == (503, True)
        assert "gives no answer within 2 s" in answer.error
        own_redis.resume()
        lists_again(server)


@pytest.mark.full
def test_begins_while_redis_is_away(folder: Folder, own_redis: RedisServer) -> None:
    own_redis.stop()
    with serving(folder, "--frontier", own_redis.url) as server:
        assert server.get("/crawls").status == 503
        own_redis.start()
        lists_again(server)


@pytest.mark.full
def test_says_that_postgresql_is_away_and_goes_on_when_it_is_back(folder: Folder, site: SiteProcess) -> None:
    database = PostgresServer().start()
    try:
        store = ("--store", database.url())
        folder.run("run", folder.spider(site.url), *store)
        with serving(folder, *store) as server:
            first = server.get("/crawls/books-1/items?limit=3").json
            assert len(first["items"]) == 3
            database.stop()
            answer = server.get("/crawls/books-1/items")
            assert (answer.status, "PostgreSQL" in answer.error) == (503, True)
            assert "PostgreSQL" in server.get("/status").json["problems"][0]
            assert server.get("/readyz", prefix="").status == 503
            assert server.get("/crawls/books-1").json["counts"]["done"] > 3
            database.start()
            lists_again(server)
            assert server.get("/crawls/books-1/items?limit=3").json == first
    finally:
        database.remove()


def test_a_file_that_is_gone_is_not_replaced_by_an_empty_one(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--max-pages", "2")
    file = folder.path / "shoal.db"
    with serving(folder) as server:
        assert len(server.get("/crawls").json["crawls"]) == 1
        file.rename(folder.path / "elsewhere.db")
        wait_until(lambda: server.get("/crawls").status == 503, otherwise="nobody notices", pause=0.1)
        assert "is gone" in server.get("/crawls").error
        assert not file.exists()
        (folder.path / "elsewhere.db").rename(file)
        lists_again(server)
        assert len(server.get("/crawls").json["crawls"]) == 1


@pytest.mark.full
@pytest.mark.parametrize("store", ["kept.db", "files:kept"])
def test_a_store_that_is_gone_is_not_replaced_by_an_empty_one(folder: Folder, site: SiteProcess, store: str) -> None:
    folder.run("run", folder.spider(site.url), "--max-pages", "2", "--store", store)
    kept = folder.path / store.removeprefix("files:")
    kept.rename(folder.path / "elsewhere")
    with serving(folder) as server:
        # The looks after sinks open the store by themselves.
        answer = server.get("/crawls/books-1/items")
        assert (answer.status, "kept" in answer.error) == (409, True)
        server.get("/metrics", prefix="")
        assert not kept.exists()
        (folder.path / "elsewhere").rename(kept)
        assert server.get("/crawls/books-1/items").status == 200


def test_a_missing_extra_is_one_line(folder: Folder) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['shoal', 'serve']\n"
        "from shoal.cli.main import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder.path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"shoal: serve needs its web server: {install_command('serve')}\n"
