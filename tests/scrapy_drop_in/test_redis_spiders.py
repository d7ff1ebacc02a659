"""Spiders whose start URLs are pushed to Redis, as with scrapy-redis."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scrapy_project import SECONDS, Project, fetched
from scrapy_versions import every_version

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process

KEY = "pages:start_urls"
HEAD = """
import scrapy
from shoal.scrapy import RedisSpider

class Pages(RedisSpider):
    name = "pages"
    custom_settings = {{
        "ADDONS": {{"shoal.scrapy.Addon": 0}},
        "REDIS_URL": "{url}",
        "SHOAL_STORE": "shoal.db",
        "SHOAL_ITEM_KEY": "key",
        "ITEM_PIPELINES": {{"scrapy_redis.pipelines.RedisPipeline": 300}},
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "TELNETCONSOLE_ENABLED": False,
    }}
"""
ONE_ITEM = """
    def parse(self, response):
        yield {"key": response.url, "meta": response.meta.get("job")}
"""

OWN_FORM = """
    def make_request_from_data(self, data):
        if not data.startswith(b"both "):
            return super().make_request_from_data(data)
        return [scrapy.Request(url) for url in data.decode().split()[1:]]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", "100", log=tmp_path / "hits.jsonl") as site:
        yield site


def url_of(site: SiteProcess, number: int) -> str:
    return site.url.replace("/g/0", f"/g/{number}")


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.full
def test_what_was_taken_from_redis_but_not_put_survives_a_kill(
    project: Project, tmp_path: Path, redis: RedisServer, site: SiteProcess
) -> None:
    frontier = RedisServer(tmp_path / "frontier").start()
    try:
        project.write(redis.url, ONE_ITEM, head=HEAD)
        on_frontier = ("-s", f"SHOAL_FRONTIER={frontier.url}")
        redis.call("LPUSH", KEY, url_of(site, 0))
        process = project.start(*on_frontier)
        try:
            wait_for(lambda: fetched(site), process)
            frontier.pause()
            redis.call("LPUSH", KEY, *(url_of(site, number) for number in range(1, 13)))
            wait_for(lambda: not redis.call("EXISTS", KEY), process)
        finally:
            process.kill()
            process.communicate()
            frontier.resume()
        assert redis.call("ZCARD", f"{KEY}:under_way") >= 12
        output = project.run(*on_frontier, "-s", "MAX_IDLE_TIME_BEFORE_CLOSE=1")
        hits = fetched(site)
        assert hits.keys() == {f"/g/{number}" for number in range(13)}
        # The first page may have been fetched but not settled when the frontier stood still.
        assert {count for path, count in hits.items() if path != "/g/0"} == {1}
        assert "no work for 1 s" in output
        assert redis.call("KEYS", f"{KEY}*") == []
    finally:
        frontier.stop()


@pytest.mark.full
@every_version
def test_urls_and_objects_are_read_and_what_is_neither_is_set_aside(
    project: Project, redis: RedisServer, site: SiteProcess
) -> None:
    project.write(redis.url, ONE_ITEM + OWN_FORM, head=HEAD)
    redis.call("RPUSH", KEY, f"both {url_of(site, 3)} {url_of(site, 4)}", f"both {url_of(site, 4)} {url_of(site, 5)}")
    # The URL that was pushed twice is fetched twice, as with scrapy-redis.
    redis.call("RPUSH", KEY, url_of(site, 1), url_of(site, 1), '{"meta": {}}', "no url")
    redis.call("RPUSH", KEY, json.dumps({"url": url_of(site, 2), "meta": {"job": "7"}}))
    output = project.run("-s", "MAX_IDLE_TIME_BEFORE_CLOSE=2", "-s", "SCHEDULER=scrapy_redis.scheduler.Scheduler")
    assert fetched(site) == {"/g/1": 2, "/g/2": 1, "/g/3": 1, "/g/4": 1, "/g/5": 1}
    items = {item["key"]: item["meta"] for item in project.items("--frontier", redis.url)}
    assert items == {url_of(site, number): "7" if number == 2 else None for number in range(1, 6)}
    assert redis.call("LRANGE", f"{KEY}:set_aside", 0, -1) == [b'{"meta": {}}', b"no url"]
    assert """is set aside in 'pages:start_urls:set_aside': it has no "url";""" in output
    assert "SCHEDULER of scrapy_redis is not used" in output
    redis.call("RPUSH", KEY, url_of(site, 1))
    assert "joined pages-1" in project.run("-s", "SCHEDULER_IDLE_BEFORE_CLOSE=1", "-s", "SCHEDULER_PERSIST=1")
    assert fetched(site) == {"/g/1": 3, "/g/2": 1, "/g/3": 1, "/g/4": 1, "/g/5": 1}
    assert "'finish_reason': 'finished'" in output
    assert [json.loads(item)["key"] for item in redis.call("LRANGE", "pages:items", 0, -1)].count(url_of(site, 1)) == 3


RULES = """
    rules = [Rule(LinkExtractor(allow="/g/"), callback="page", follow=True)]

    def page(self, response):
        yield {"key": response.url}
"""


@pytest.mark.full
def test_a_spider_with_rules_waits_for_more_and_for_redis_until_it_is_stopped(
    project: Project, redis: RedisServer, site: SiteProcess
) -> None:
    imports = "from scrapy.linkextractors import LinkExtractor\nfrom scrapy.spiders import Rule\n"
    project.write(redis.url, RULES, head=imports + HEAD.replace("RedisSpider", "RedisCrawlSpider"))
    processes = [project.start() for _ in range(2)]
    try:
        redis.call("SADD", KEY, url_of(site, 0))
        # As with scrapy-redis, a link to the start URL is another request: what was pushed is not filtered.
        wait_for(lambda: sum(fetched(site).values()) == 101, processes[0])
        redis.restart()
        redis.call("SADD", KEY, url_of(site, 0))
        wait_for(lambda: fetched(site)["/g/0"] == 3, processes[0])
        wait_for(lambda: not redis.call("KEYS", f"{KEY}*"), processes[0])
    finally:
        for process in processes:
            process.terminate()
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    assert (len(fetched(site)), sum(fetched(site).values())) == (100, 102)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "Closing spider (shutdown)" in output
        assert "Traceback" not in output


@pytest.mark.full
def test_a_spider_that_waits_for_more_ends_when_its_crawl_is_cancelled(
    project: Project, redis: RedisServer, site: SiteProcess
) -> None:
    project.write(redis.url, ONE_ITEM, head=HEAD)
    redis.call("LPUSH", KEY, url_of(site, 1))
    process = project.start()
    try:
        wait_for(lambda: fetched(site), process)
        project.shoal("cancel", "pages-1", "--yes", "--frontier", redis.url)
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "Spider closed (shoal: pages-1 was cancelled: " in output
    assert "Traceback" not in output
