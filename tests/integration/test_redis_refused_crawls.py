"""A crawl on a Redis server that a newer version wrote, or whose record cannot be read, beside sound ones.

Every command names it once and leaves it as it is. Only a command that means exactly this crawl is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from command_line import Folder

from shoal.cli.main import shoal
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.scripts import LAYOUT_VERSION
from shoal.frontier.redis.shards import shards_of
from shoal.model import CrawlState
from shoal.run.coordinator import Coordinator
from shoal.testing.contract.frontier.control_promises import beat_of
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 3
REFUSED, SOUND, OTHER = "books-1", "books-2", "news-1"
RECORD = f"{shards_of(REFUSED, 1)[0].prefix}crawl"
NEWS = """
from shoal import Spider

class News(Spider):
    start = ["{url}catalogue/page-1.html"]
    settings = {{"allow_private": True}}

    def parse(self, page):
        return None
"""


class Fleet(NamedTuple):
    """A finished crawl of each of three ids on one server, and the folder that they were run in."""

    server: RedisServer
    folder: Folder
    site: SiteProcess
    keys: dict[bytes, bytes]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, site: SiteProcess, redis_of_all: RedisServer) -> Fleet:
    server = redis_of_all
    server.call("FLUSHALL")
    folder = Folder(tmp_path_factory.mktemp("fleet"))
    at = ("--frontier", server.url)
    folder.run("run", folder.spider(site.url), *at)
    folder.run("run", "books.py", "--again", *at)
    (folder.path / "news.py").write_text(NEWS.format(url=site.url))
    folder.run("run", "news.py", *at)
    server.call("HSET", RECORD, "state", "running")
    return Fleet(server, folder, site, contents(server))


@pytest.fixture
def fleet(begun: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The same before every test."""
    begun.server.call("FLUSHALL")
    for key, value in begun.keys.items():
        begun.server.call("RESTORE", key, 0, value)
    monkeypatch.chdir(begun.folder.path)
    return begun


def contents(server: RedisServer) -> dict[bytes, bytes]:
    return {key: server.call("DUMP", key) for key in server.call("KEYS", "*")}


def field(name: str, value: str) -> Callable[[RedisServer], None]:
    return lambda server: server.call("HSET", RECORD, name, value)


def of_another_type(server: RedisServer) -> None:
    server.call("DEL", RECORD)
    server.call("SET", RECORD, "not yours")


NEWER = f"crawl 'books-1' at {{url}} was written by a newer shoal (layout 99, this one has {LAYOUT_VERSION})"
UNREADABLE = "the record of crawl 'books-1' at {url} cannot be read"
DAMAGES = {
    # What was done to the record, and what every command says of it.
    "layout 99": (field("layout", "99"), NEWER),
    "layout garbage": (field("layout", "garbage"), UNREADABLE),
    "another type": (of_another_type, UNREADABLE),
    "settings that are none": (field("settings", "{garbage"), UNREADABLE),
    "settings of another shape": (field("settings", '{"settings": 5}'), "the record of crawl books-1 cannot be read"),
    "no spider": (lambda server: server.call("HDEL", RECORD, "spider"), UNREADABLE),
}


@pytest.fixture(params=DAMAGES)
def line(request: pytest.FixtureRequest, fleet: Fleet) -> str:
    """The record is damaged; gives how the line about it begins."""
    damage, text = DAMAGES[request.param]
    damage(fleet.server)
    return text.format(url=fleet.server.url)


def of_the_refused(server: RedisServer) -> dict[bytes, Any]:
    """What is in the crawl. Of one of this version only its tasks: what else is bad may be set aside."""
    reads = {
        b"string": lambda key: server.call("GET", key),
        b"hash": lambda key: server.call("HGETALL", key),
        b"zset": lambda key: server.call("ZRANGE", key, 0, -1, "WITHSCORES"),
        b"set": lambda key: set(server.call("SMEMBERS", key)),
    }
    keys = server.call("KEYS", f"shoal:{{*}}:{REFUSED}:*")
    if server.call("TYPE", RECORD) == b"hash" and server.call("HGET", RECORD, "layout") == str(LAYOUT_VERSION).encode():
        keys = [key for key in keys if re.search(rb":(dead|held|later|q:.*|seen:.*|outcomes)$", key)]
    return {key: reads[server.call("TYPE", key)](key) for key in sorted(keys)}


def commands(fleet: Fleet, crawl: str) -> list[list[str]]:
    """Commands that mean one crawl."""
    url = f"{fleet.site.url}catalogue/page-1.html"
    return [
        ["status", crawl],
        ["top", crawl],
        ["why", url, crawl],
        ["dead", "list", crawl],
        ["dead", "requeue", crawl],
        ["exits", crawl],
        ["pace", "127.0.0.1", "1/s", crawl],
        ["add", crawl, url],
        ["export", crawl, "-o", "out.csv"],
    ]


def shoal_(*arguments: str) -> tuple[int, list[str]]:
    """The return code, and the lines on stderr."""
    result = CliRunner().invoke(shoal, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    return result.exit_code, result.stderr.splitlines()


def test_commands_on_another_crawl_name_it_once_and_leave_it_alone(fleet: Fleet, line: str) -> None:
    before = of_the_refused(fleet.server)
    url = f"{fleet.site.url}catalogue/page-1.html"
    for arguments in [
        ["status"],
        ["status", "--json"],
        ["top"],
        ["why", url],
        *commands(fleet, SOUND),
        ["status", "news"],
    ]:
        code, lines = shoal_(*arguments, "--frontier", fleet.server.url)
        assert code == 0, (arguments, lines)
        assert sum(one.startswith(line) for one in lines) == 1, (arguments, lines)
        assert of_the_refused(fleet.server) == before, arguments


def test_commands_on_exactly_this_crawl_are_refused_with_one_line(fleet: Fleet, line: str) -> None:
    before = of_the_refused(fleet.server)
    for arguments in commands(fleet, REFUSED):
        code, lines = shoal_(*arguments, "--frontier", fleet.server.url)
        assert code == 2, (arguments, lines)
        assert [one.removeprefix("shoal: ").startswith(line) for one in lines] == [True], (arguments, lines)
        assert of_the_refused(fleet.server) == before, arguments


def test_a_run_of_the_same_spider_goes_on_without_it(fleet: Fleet, line: str) -> None:
    before = of_the_refused(fleet.server)
    done = fleet.folder.run("run", "books.py", "--frontier", fleet.server.url)
    assert f"{SOUND} is finished" in done.stderr
    done = fleet.folder.run("run", "books.py", "--again", "--frontier", fleet.server.url)
    assert re.search(r"^beginning books-([3-9]|\d\d) in", done.stderr, re.MULTILINE)
    assert sum(one.startswith(line) for one in done.stderr.splitlines()) == 1, done.stderr
    assert of_the_refused(fleet.server) == before


@pytest.mark.parametrize("kind", ["layout 99", "another type"])
def test_a_fresh_run_begins_beside_it(fleet: Fleet, kind: str) -> None:
    DAMAGES[kind][0](fleet.server)
    before = of_the_refused(fleet.server)
    done = fleet.folder.run("run", "books.py", "--fresh", "--yes", "--frontier", fleet.server.url)
    assert re.search(r"^beginning books-([3-9]|\d\d) in", done.stderr, re.MULTILINE)
    assert of_the_refused(fleet.server) == before


def test_a_fresh_run_discards_a_crawl_without_a_layout_version(fleet: Fleet) -> None:
    DAMAGES["layout garbage"][0](fleet.server)
    fleet.folder.run("run", "books.py", "--fresh", "--yes", "--frontier", fleet.server.url)
    assert of_the_refused(fleet.server) == {}


def test_a_worker_of_the_same_spider_works_on_the_sound_crawl(fleet: Fleet, line: str) -> None:
    before = of_the_refused(fleet.server)
    at = ("--frontier", fleet.server.url)
    code, lines = shoal_("add", SOUND, f"{fleet.site.url}catalogue/page-1.html?more", *at)
    assert code == 0, lines
    done = fleet.folder.run("worker", "books.py", "--burst", *at)
    assert f"left {SOUND}: 1 page" in done.stderr
    assert sum(one.startswith(line) for one in done.stderr.splitlines()) == 1, done.stderr
    done = fleet.folder.run("worker", "books.py", "--burst", "--crawl", REFUSED, *at, code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.removeprefix("shoal: ").startswith(line)
    assert of_the_refused(fleet.server) == before


async def test_reclaiming_from_exited_workers_leaves_it_alone(fleet: Fleet, line: str) -> None:
    before = of_the_refused(fleet.server)
    frontier = await RedisFrontier.open(fleet.server.url)
    sound = next(crawl for crawl in await frontier.crawls() if crawl.id == SOUND)
    assert await frontier.evict("w") == 0
    await frontier.beat(beat_of("w", crawl=SOUND))
    said: list[str] = []
    await Coordinator(sound, frontier=frontier, show=lambda _: None, say=said.append).reclaim_from_exited_workers()
    assert said == []
    assert (await frontier.progress(SOUND)).state is CrawlState.FINISHED
    await frontier.close()
    assert of_the_refused(fleet.server) == before
