"""What people are told of records that could not be read: by the run's summary, status, top, why and dead, on both
frontiers."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import pytest
from command_line import Folder, json_of, shoal_

from shoal.frontier.redis.shards import prefix_of
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 3
CRAWL = "books-1"
FIRST = "catalogue/page-1.html?bad"
SECOND = "catalogue/page-1.html?sound"


@pytest.fixture(params=["sqlite", "redis"])
def at(
    request: pytest.FixtureRequest, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, folder: Folder
) -> list[str]:
    """The options that name the frontier."""
    monkeypatch.chdir(folder.path)
    return [] if request.param == "sqlite" else ["--frontier", redis.url]


def damage(redis: RedisServer, folder: Folder, at: list[str], url: str) -> None:
    """The record of a waiting task becomes one that cannot be decoded; its URL is still in it."""
    if not at:
        with sqlite3.connect(folder.path / "shoal.db", isolation_level=None) as db:
            rows = db.execute(
                "UPDATE task SET payload = CAST(x'dc00ff' || substr(payload, 2) AS BLOB) WHERE instr(payload, ?)",
                (url.encode(),),
            ).rowcount
        assert rows == 1
        return
    (queue,) = redis.call("KEYS", f"{prefix_of(CRAWL)}q:*".replace("{", r"\{"))
    member = next(one for one in redis.call("ZRANGE", queue, 0, -1) if one.endswith(url.encode()))
    redis.call("ZREM", queue, member)
    # The length of its handler's name is beyond its end.
    redis.call("ZADD", queue, 1, member[:8] + struct.pack(">q", -1)[:4] + b"\xff" * 40 + url.encode())


def test_everybody_tells_of_it(redis: RedisServer, folder: Folder, site: SiteProcess, at: list[str]) -> None:
    folder.run("run", folder.spider(site.url), *at)
    bad, sound = f"{site.url}{FIRST}", f"{site.url}{SECOND}"
    shoal_("add", CRAWL, bad, sound, *at)
    damage(redis, folder, at, bad)
    done = folder.run("run", "books.py", *at, code=1)
    line = "1 record of the frontier could not be read and was set aside"
    assert line in done.stdout.replace("\n", " ")
    # One line while it works, from the worker that met it.
    assert done.stderr.count("could not be read") == 1, done.stderr
    assert "Traceback" not in done.stderr
    place = "task" if not at else None
    status = json_of("status", CRAWL, *at)
    assert list(status["set_aside"].values()) == [1]
    assert place is None or status["set_aside"] == {place: 1}
    assert line in shoal_("status", CRAWL, *at).output
    assert "1 record set aside" in shoal_("top", CRAWL, *at).output
    assert "dead (bad record): its record in the frontier could not be read" in shoal_("why", bad, *at).output
    told = json_of("why", bad, *at)
    assert (told["state"], told["task"]["reason"]) == ("dead", "bad record")
    (letter,) = json_of("dead", "list", CRAWL, *at)
    assert (letter["url"], letter["reason"]) == (bad, "bad record")
    assert json_of("why", sound, *at)["state"] == "done"
    assert "1 dead letter queued again" in shoal_("dead", "requeue", CRAWL, "--reason", "bad record", *at).output
    assert folder.run("run", "books.py", *at, code=1).returncode == 1
    assert json_of("why", bad, *at)["state"] == "done"


def test_a_task_of_which_nothing_is_left_is_not_called_done_for_sure(
    redis: RedisServer, folder: Folder, site: SiteProcess, tmp_path: Path
) -> None:
    at = ["--frontier", redis.url]
    folder.run("run", folder.spider(site.url), *at)
    bad = f"{site.url}{FIRST}"
    shoal_("add", CRAWL, bad, *at)
    (queue,) = redis.call("KEYS", f"{prefix_of(CRAWL)}q:*".replace("{", r"\{"))
    redis.call("ZREM", queue, redis.call("ZRANGE", queue, 0, 0)[0])
    redis.call("ZADD", queue, 1, b"abc")
    folder.run("run", "books.py", *at, code=1)
    assert "done, or lost with a record of the crawl: 1 record of the frontier" in shoal_("why", bad, *at).output


def test_two_crawls_are_told_of_by_name(folder: Folder, site: SiteProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    folder.run("run", folder.spider(site.url))
    folder.run("run", "books.py", "--again")
    shoal_("add", CRAWL, f"{site.url}{FIRST}")
    with sqlite3.connect(folder.path / "shoal.db", isolation_level=None) as db:
        db.execute("UPDATE task SET payload = x'ff'")
    shoal_("worker", "books.py", "--burst", "--crawl", CRAWL, code=1)
    assert f"{CRAWL}: 1 record of the frontier could not be read and was set aside" in shoal_("status").output
    assert "(unknown URL)" in shoal_("dead", "list", CRAWL).output
