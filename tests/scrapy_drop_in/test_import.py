"""`shoal import scrapy-redis`: what waits is fetched once, what the filter knows is not, and nothing is lost."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from left_by_scrapy_redis import FILTER, QUEUE, Leftovers, as_json, newer, of_scrapy, older, pickled, run_scrapy_redis
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest
from scrapy_project import SECONDS, Project
from small_site import Answer, Visitor, small_site

from called_here import call_shoal
from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.version import install_command

COMMON = """
import scrapy

class Pages(scrapy.Spider):
    name = "pages"
    start_urls = ["{url}"]

    def parse(self, response):
        yield from self.links(response)

    def linked(self, response, found_on):
        yield {{"key": response.url, "found_on": found_on, "shelf": response.meta["shelf"]}}
        yield from self.links(response)

    def links(self, response):
        more = dict(cb_kwargs={{"found_on": response.url}}, meta={{"shelf": 7}}, errback=self.failed, priority=3)
        yield from response.follow_all(css="a", callback=self.linked, **more)

    def failed(self, failure):
        self.logger.error("failed: %s", failure)

    custom_settings = {{
        "DOWNLOAD_DELAY": 0,
        "TELNETCONSOLE_ENABLED": False,
"""
WITH_SCRAPY_REDIS = """
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.{queue}",
        "SCHEDULER_PERSIST": True,
        "REDIS_URL": "{redis}",
        "CLOSESPIDER_PAGECOUNT": 12,
        "CONCURRENT_REQUESTS": 4,
    }}
"""
WITH_SHOAL = """
        "ADDONS": {{"shoal.scrapy.Addon": 0}},
        "SHOAL_FRONTIER": "{redis}",
        "SHOAL_STORE": "shoal.db",
        "SHOAL_ITEM_KEY": "key",
    }}
"""
MANY = 6_000


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def left(redis: RedisServer) -> Iterator[Leftovers]:
    left = Leftovers(redis)
    yield left
    left.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", "80", log=tmp_path / "hits.jsonl") as site:
        yield site


class Importer:
    """`shoal import scrapy-redis pages` in the folder of a project."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self._folder = folder
        self._words = ["import", "scrapy-redis", "pages", "--frontier", redis.url]
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal", *self._words, *arguments], cwd=self._folder, env=self._environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def text(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What it says on standard output and standard error, called in this process."""
        done = call_shoal(self._folder, *self._words, *arguments, code=code)
        return done.stdout, done.stderr

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Its report."""
        report: dict[str, Any] = json.loads(self.text("--json", *arguments, code=code)[0])
        return report


@pytest.fixture
def importer(project: Project, redis: RedisServer) -> Importer:
    return Importer(project.folder, redis)


def progress(project: Project, redis: RedisServer, crawl: str = "pages-1") -> dict[str, Any]:
    status = project.shoal("status", crawl, "--frontier", redis.url)
    counts: dict[str, Any] = status["progress"]
    return counts


def run_with_shoal(project: Project, redis: RedisServer, url: str, *arguments: str) -> str:
    (project.folder / "pages.py").write_text((COMMON + WITH_SHOAL).format(url=url, redis=redis.url))
    return project.run(*arguments)


@pytest.mark.parametrize("queue", ["PriorityQueue", pytest.param("FifoQueue", marks=pytest.mark.full)])
def test_a_crawl_that_scrapy_redis_has_begun_goes_on_where_it_was(
    project: Project, redis: RedisServer, site: SiteProcess, importer: Importer, queue: str
) -> None:
    text = (COMMON + WITH_SCRAPY_REDIS).format(url=site.url, redis=redis.url, queue=queue)
    (project.folder / "before.py").write_text(text)
    run_scrapy_redis(project.folder, "before.py")
    before = {hit.path for hit in site.hits()}
    waiting, known = redis.call("ZCARD" if queue == "PriorityQueue" else "LLEN", QUEUE), redis.call("SCARD", FILTER)
    assert 5 < len(before) < 60
    assert waiting > 5
    report = importer.run("--trust-pickle")
    assert (report["requests"], report["new"], report["keys"], report["new_keys"]) == (
        waiting, waiting, known, known - waiting,
    )  # fmt: skip
    assert (report["fingerprints"], report["is_sure"], report["problems"]) == ("scrapy-redis-0.8", True, [])
    output = run_with_shoal(project, redis, site.url)
    assert "joined pages-1" in output
    start = "/" + site.url.rpartition("127.0.0.1")[2].partition("/")[2]
    hits = Counter(hit.path for hit in site.hits() if hit.path not in (start, "/robots.txt"))
    assert len(hits) == 79
    assert set(hits.values()) == {1}
    items = project.items("--frontier", redis.url)
    fetched_by_shoal = {path for path in hits if path not in before}
    # The start page is linked, too, and its own request is not in the filter.
    assert len(fetched_by_shoal) <= len(items) <= len(fetched_by_shoal) + 1
    assert {item["shelf"] for item in items} == {7}
    assert progress(project, redis)["notes"][KNOWN_KEYS] == known - waiting


@pytest.mark.full
def test_an_import_that_is_killed_and_run_again_loses_and_doubles_nothing(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    requests = [Request(f"http://127.0.0.1:1/{number}") for number in range(MANY)]
    unfiltered = as_json(Request("http://127.0.0.1:1/again", dont_filter=True), callback="parse")
    left.push(*(as_json(request, callback="parse") for request in requests), *[unfiltered] * 300)
    left.know(*requests, *(Request(f"http://127.0.0.1:1/old/{number}") for number in range(MANY)))

    def is_under_way() -> bool:
        return int(redis.call("HGET", "shoal:{0-1}:pages-1:count", "queued") or 0) > 1000

    def is_filtering() -> bool:
        return int(redis.call("HGET", "shoal:{0-1}:pages-1:count", "untasked") or 0) > 1000

    for reached in (is_under_way, is_filtering):
        with importer.start() as process:
            until = time.monotonic() + SECONDS
            while not reached():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    report = importer.run()
    assert (report["requests"], report["is_begun"], report["problems"]) == (MANY + 300, False, [])
    counts = progress(project, redis)
    assert (counts["queued"], counts["notes"]) == (MANY + 300, {KNOWN_KEYS: MANY})
    assert importer.run()["new"] == importer.run("--remove")["new_keys"] == 0
    assert redis.call("EXISTS", QUEUE, FILTER) == 0
    assert progress(project, redis)["queued"] == MANY + 300


@pytest.mark.full
def test_every_kind_of_request_comes_back_as_it_was(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    seen: dict[str, Visitor] = {}

    def page(visitor: Visitor) -> Answer:
        seen[visitor.path] = visitor
        return Answer(f'<p>{visitor.path}</p><a href="/known">k</a><a href="/form">f</a><a href="/new">n</a>')

    paths = ("/plain", "/form", "/json", "/headers", "/mixed", "/first", "/known", "/new")
    with small_site(dict.fromkeys(paths, page)) as site:
        known = Request(f"{site.url}/known")
        more = {"callback": "linked", "errback": "failed", "cb_kwargs": {"found_on": "x"}, "meta": {"shelf": 1}}
        waiting = [
            Request(f"{site.url}/plain?b=2&a=1"),
            FormRequest(f"{site.url}/form", formdata={"q": "fish"}),
            JsonRequest(f"{site.url}/json", data={"q": [1]}),
            Request(f"{site.url}/headers", headers={"X-Own": ["1", "2"]}, cookies={"c": "d"}),
        ]
        for request in waiting:
            left.rank(0, pickled(request, **more))
        left.rank(5, as_json(Request(f"{site.url}/mixed"), **more | {"priority": 5}))
        # As older versions of Scrapy wrote them.
        first = pickled(Request(f"{site.url}/first", dont_filter=True), **more | {"priority": 9})
        fields = pickle.loads(first)
        fields["_encoding"] = fields.pop("encoding")
        left.rank(9, pickle.dumps(fields, protocol=2))
        left.know(known, Request(f"{site.url}/mixed"), *waiting)
        assert importer.run("--trust-pickle")["requests"] == 6
        redis.call("DEL", QUEUE)
        run_with_shoal(project, redis, f"{site.url}/known", "-s", "CONCURRENT_REQUESTS=1", "-s", "SHOAL_CONCURRENCY=1")
    hits = dict(site.hits)
    # /known was done by scrapy-redis. A GET of /form is another request than the form.
    assert hits == {"/plain?b=2&a=1": 1, "/json": 1, "/headers": 1, "/mixed": 1, "/first": 1, "/form": 2, "/new": 1}
    assert list(seen)[:2] == ["/first", "/mixed"]
    assert seen["/json"].body == '{"q": [1]}'
    assert seen["/headers"].headers.get_all("X-Own") == ["1", "2"]
    assert seen["/headers"].headers["Cookie"] == "c=d"
    items = {item["key"].removeprefix(site.url): item for item in project.items("--frontier", redis.url)}
    assert set(items) == {"/plain?b=2&a=1", "/form", "/json", "/headers", "/mixed", "/first", "/new"}
    assert (items["/json"]["found_on"], items["/json"]["shelf"]) == ("x", 1)


class Touch:
    """Unpickled, it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_pickle_runs_only_when_it_is_trusted(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    trace = project.folder / "trace"
    left.push(pickled(Request("http://a.test/")), pickle.dumps(Touch(str(trace))), as_json(Request("http://b.test/")))
    left.know(Request("http://a.test/"), Request("http://b.test/"))
    out, err = importer.text(code=1)
    assert out == ""
    assert err.startswith("shoal: 2 of 3 requests in pages:requests are pickled, and nothing was taken over")
    assert "--trust-pickle" in err
    assert not trace.exists()
    assert redis.call("EXISTS", "shoal:crawls") == 0
    report = importer.run("--trust-pickle", code=1)
    assert (report["requests"], report["unreadable"], report["keys"]) == (2, 1, 0)
    assert trace.exists()


def test_a_filter_is_not_taken_over_while_requests_are_left_out(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    good, bad = Request("http://a.test/good"), Request("http://a.test/bad")
    left.push(as_json(good, callback="parse"), b"\x00 neither", b'{"method": "GET"}', b'{"url": "no scheme"}')
    left.know(good, bad)
    out, err = importer.text(code=1)
    assert "3 entries of pages:requests cannot be read, and the filter was not taken over" in err
    assert "left out" in out
    assert progress(project, redis)["notes"] == {}
    # What could not be read is there now: it is taken, since its key is not yet known.
    redis.call("LREM", QUEUE, 0, b"\x00 neither")
    left.push(as_json(bad, callback="parse"))
    report = importer.run("--skip-unreadable", code=1)
    assert (report["requests"], report["new"], report["unreadable"], report["keys"]) == (2, 1, 2, 2)
    assert report["problems"] == ["2 entries that cannot be read were left out, as you asked"]
    assert redis.call("LLEN", QUEUE) == 4


def test_requests_that_no_other_process_could_do_become_dead_letters(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    unfit = Request("http://a.test/unfit", meta={"shelf": object})
    twice = Request("http://a.test/odd", dont_filter=True, meta={"depth": "deep"})
    left.push(pickled(unfit), pickled(twice), pickled(twice), pickled(Request("http://a.test/"), callback="parse"))
    left.know(unfit, Request("http://a.test/"))
    for new in (1, 0):
        report = importer.run("--trust-pickle", "--remove", code=1)
        assert (report["requests"], report["new"], report["dead_letters"], report["keys"]) == (1, new, 3, 2)
        assert report["removed"] is False
        (problem,) = report["problems"]
        assert "3 requests cannot be done by another process and became dead letters of pages-1" in problem
    letters = project.shoal("dead", "list", "pages-1", "--frontier", redis.url)
    assert sorted(letter["url"] for letter in letters) == ["http://a.test/odd"] * 2 + ["http://a.test/unfit"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "name"), [(newer, "scrapy-redis-0.8"), (older, "scrapy-redis-0.6"), (of_scrapy, "project")]
)
def test_the_crawl_makes_its_keys_as_the_filter_was_made(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer, make: Any, name: str
) -> None:
    page = '<a href="/known?y=2&x=1">k</a><a href="/waiting">w</a><a href="/new">n</a>'
    with small_site({"/": page, "/waiting": page}) as site:
        waiting = Request(f"{site.url}/waiting")
        more = {"callback": "linked", "cb_kwargs": {"found_on": "x"}, "meta": {"shelf": 1}}
        left.push(as_json(waiting, **more))
        left.know(waiting, Request(f"{site.url}/known?x=1&y=2"), by=make)
        report = importer.run()
        assert (report["fingerprints"], report["is_sure"]) == (name, True)
        # In every process that joins, also in one that goes on after another.
        run_with_shoal(project, redis, f"{site.url}/", "-s", "CLOSESPIDER_PAGECOUNT=1")
        run_with_shoal(project, redis, f"{site.url}/", "-s", "SHOAL_CRAWL=pages-1")
    assert dict(site.hits) == {"/": 1, "/waiting": 1, "/new": 1}


def test_fingerprints_that_nothing_tells_are_guessed_and_said_to_be(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    left.know(Request("http://a.test/"))
    out, _ = importer.text()
    assert "scrapy-redis-0.8; a guess, no request shows it" in out
    # The crawl that is begun has its form: another one is refused.
    _, err = importer.text("--fingerprints", "scrapy-redis-0.6", code=2)
    assert "pages-1 is unfinished and makes its keys from the fingerprints of scrapy-redis-0.8" in err


def test_fingerprints_that_contradict_the_filter_are_refused(left: Leftovers, importer: Importer) -> None:
    waiting = Request("http://a.test/")
    left.push(as_json(waiting))
    left.know(Request("http://a.test/other"))
    _, err = importer.text(code=2)
    assert "none of 1 waiting request is in pages:dupefilter" in err
    left.know(waiting, by=older)
    _, err = importer.text("--fingerprints", "project", code=2)
    assert "1 of 1 waiting request by the fingerprints of scrapy-redis-0.6, and none by those of project" in err


@pytest.mark.full
def test_a_crawl_of_the_project_itself_is_filled_only_by_its_own_fingerprints(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    with small_site({}) as site:
        run_with_shoal(project, redis, site.url, "-s", "CLOSESPIDER_PAGECOUNT=1")
        project.shoal("add", "pages-1", f"{site.url}/more", "--frontier", redis.url)
        waiting = Request(f"{site.url}/waiting")
        left.push(as_json(waiting))
        left.know(waiting)
        _, err = importer.text(code=2)
        assert (
            "pages-1 is unfinished and makes its keys from the fingerprints of project, not of scrapy-redis-0.8" in err
        )
        left.know(waiting, by=of_scrapy)
        redis.call("SREM", FILTER, newer(waiting))
        report = importer.run()
    assert (report["crawl"], report["is_begun"], report["new"]) == ("pages-1", False, 1)


@pytest.mark.full
def test_a_queue_is_not_taken_over_twice_after_its_crawl_is_finished(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    with small_site({}) as site:
        waiting = Request(f"{site.url}/waiting")
        left.push(as_json(waiting))
        left.know(waiting)
        importer.run()
        run_with_shoal(project, redis, site.url)
        _, err = importer.text(code=2)
        assert "pages-1 took over this queue" in err
        assert importer.run("--again")["crawl"] == "pages-2"


def test_slips_are_refused_in_one_line(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    _, err = importer.text(code=2)
    assert "neither pages:requests nor pages:dupefilter is in Redis" in err
    redis.call("LPUSH", "pages:start_urls", "http://a.test/", "http://b.test/")
    _, err = importer.text(code=2)
    assert "2 start URLs in pages:start_urls need no import" in err
    redis.call("SET", "text", "x")
    left.know(Request("http://a.test/"))
    assert "text is a string, no queue of scrapy-redis" in importer.text("--queue-key", "text", code=2)[1]
    assert "text is a string, no filter" in importer.text("--dupefilter-key", "text", code=2)[1]
    # The last --frontier counts.
    assert "Give --from redis://" in importer.text("--frontier", "shoal.db", code=2)[1]
    assert "cannot reach Redis" in importer.text("--from", "redis://127.0.0.1:1/0", code=3)[1]
    assert not (project.folder / "shoal.db").exists()


def test_a_queue_of_another_name_and_server_is_taken_into_a_file(
    project: Project, redis: RedisServer, left: Leftovers, importer: Importer
) -> None:
    left.push(as_json(Request("http://a.test/")))
    redis.call("RENAME", QUEUE, "pages/queue")
    redis.call("LPUSH", "pages:start_urls", "http://a.test/")
    report = importer.run("--frontier", "shoal.db", "--from", redis.url, "--queue-key", "%(spider)s/queue", "-a", "x=1")
    assert (report["requests"], report["keys"], report["fingerprints"], report["start_urls"]) == (1, 0, "project", 1)
    assert project.shoal("status", "pages-1")["progress"]["queued"] == 1


@pytest.mark.parametrize("missing", ["scrapy", "redis"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(project: Project, missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['shoal', 'import', 'scrapy-redis', 'pages']\n"
        "from shoal.cli.main import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, text=True, capture_output=True, timeout=SECONDS, check=False
    )
    assert (ran.returncode, ran.stderr) == (
        2, f"shoal: `shoal import` needs {missing}: {install_command('scrapy', 'redis')}\n",
    )  # fmt: skip
