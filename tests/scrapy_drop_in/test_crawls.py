"""Scrapy spiders on a shoal frontier, in processes of their own."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from scrapy_project import GRAPH, HEAD, SECONDS, Project, fetched
from scrapy_versions import every_version_on_every_reactor, every_version_then_every_reactor

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.hostile import HostileSite, answer
from shoal.testing.sites.site_process import site_process

PAGES = 40


@every_version_on_every_reactor
def test_a_spider_that_is_not_changed_crawls_a_site_once(project: Project, tmp_path: Path) -> None:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        project.write(site.url)
        output = project.run()
        hits = fetched(site)
        assert len(hits) == PAGES
        assert set(hits.values()) == {1}
        assert sorted(int(item["key"]) for item in project.items()) == list(range(PAGES))
        assert project.counts() == ("finished", PAGES, 0, 0)
        for line in ("begun pages-1 at shoal.db", *project.scrapy.log_lines):
            assert line in output
        assert f"'scheduler/dequeued/shoal': {PAGES}" in output
        fate = project.shoal("why", site.url.replace("/g/0", "/g/7"))
        assert (fate["state"], fate["attempts"][0]["status"], fate["items"][0]["key"]) == ("done", 200, "7")


# The start lasts until both processes have opened their scheduler.
TOGETHER = """
    async def start(self):
        import asyncio, os, pathlib
        pathlib.Path(f"here-{os.getpid()}").touch()
        while len(list(pathlib.Path().glob("here-*"))) < 2:
            await asyncio.sleep(0.02)
        async for request in super().start():
            yield request
"""


@pytest.mark.full
def test_two_processes_share_a_crawl_on_redis(project: Project, tmp_path: Path, redis: RedisServer) -> None:
    with site_process("--graph", "80", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, GRAPH + TOGETHER, frontier=redis.url)
        both = [project.start("-s", "DOWNLOAD_DELAY=0.02") for _ in range(2)]
        outputs = [process.communicate(timeout=SECONDS)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], outputs
        hits = fetched(site)
        assert (len(hits), set(hits.values())) == (80, {1})
        shares = [int((re.search(r"'scheduler/dequeued/shoal': (\d+)", output) or [0, 0])[1]) for output in outputs]
        assert sum(shares) == 80
        assert min(shares) > 0
        times = sorted(hit.time for hit in site.hits() if hit.path != "/robots.txt")
        assert times[-1] - times[0] > 0.9 * 79 * 0.02


SHAKY = """
    def parse(self, response):
        yield scrapy.Request(response.urljoin("/unstable"), self.page, errback=self.failed)
        yield scrapy.Request(response.urljoin("/gone"), self.page)
        yield scrapy.Request(response.urljoin("/down"), self.page)
        yield scrapy.Request(response.urljoin("/moved"), self.page, cb_kwargs={"name": "moved"})
        yield scrapy.Request(response.urljoin("/broken"), self.broken)
        yield scrapy.Request(response.urljoin("/lambda"), lambda response: None)
        yield scrapy.Request(response.urljoin("/asking"), self.asking)
        yield scrapy.Request(response.urljoin("/refused"), self.page, errback=self.failed)

    def page(self, response, name=""):
        yield {"key": name or response.url.rsplit("/", 1)[1], "status": response.status}

    def broken(self, response):
        yield {"key": "broken"}
        raise ValueError("no price")

    async def asking(self, response):
        yield {"key": "asking"}
        self.crawler.engine.crawl(scrapy.Request(response.urljoin("/closure"), lambda response: None))

    def failed(self, failure):
        yield {"key": "failed: " + failure.request.url.rsplit("/", 1)[1]}
"""


@every_version_then_every_reactor
async def test_every_end_of_a_request_is_seen(project: Project, tmp_path: Path) -> None:
    async with HostileSite() as site:
        site.pages = {
            "/": answer(b"<p>start"),
            "/robots.txt": answer(b"User-agent: *\nDisallow: /refused"),
            "/unstable": answer(b"", status="503 Service Unavailable"),
            "/gone": answer(b"", status="404 Not Found"),
            "/down": answer(b"", status="500 Server Error"),
            "/moved": answer(status="301 Moved", headers="Location: /new\r\n"),
            "/new": answer(b"<p>new"),
            "/broken": answer(b"<p>broken"),
            "/asking": answer(b"<p>asking"),
        }
        project.write(site.url("/"), SHAKY)
        output = await asyncio.to_thread(project.run, "-s", "ROBOTSTXT_OBEY=1", "-s", "RETRY_TIMES=1")
        items = {item["key"] for item in project.items()}
        assert items == {"moved", "broken", "asking", "failed: unstable", "failed: refused"}
        dead = {
            letter["url"].rsplit("/", 1)[1]: letter["reason"] for letter in project.shoal("dead", "list", "pages-1")
        }
        assert dead.keys() == {"", "down", "broken", "asking"}
        assert re.search(r"unfit: the callback '<lambda>' \(.*pages.py:\d+\) is not a method", dead[""])
        assert dead["down"] == "http_500: Scrapy gave up"
        assert dead["broken"].startswith("handler: ValueError: no price")
        assert "is not a method of the spider 'pages'" in output
        assert project.counts()[0] == "finished"
        requests = Counter(head.split(b" ")[1].decode() for head in site.requests)
        assert (requests["/down"], requests["/unstable"], requests["/gone"]) == (2, 2, 1)
        assert requests["/refused"] == 0

        site.pages["/down"] = answer(b"<p>up again")
        project.shoal("dead", "requeue", "pages-1", "--reason", "http_500")
        await asyncio.to_thread(project.run)
        assert {item["key"] for item in project.items()} - items == {"down"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("frontier", "given", "said"),
    [
        ("redis:127.0.0.1", (), "SHOAL_FRONTIER redis:127.0.0.1: did you mean redis://127.0.0.1?"),
        ("shoal.db", ("-s", "SHOAL_PROXIES=ring.txt"), "cannot read the proxies in ring.txt"),
        ("shoal.db", ("-s", "SHOAL_ARCHIVE=pages"), "SHOAL_ARCHIVE has no effect on a Scrapy spider: leave it out"),
    ],
)
async def test_a_slip_in_the_settings_is_refused(
    project: Project, frontier: str, given: tuple[str, ...], said: str
) -> None:
    async with HostileSite() as site:
        project.write(site.url("/"), frontier=frontier)
        process = project.start(*given)
        output, _ = await asyncio.to_thread(process.communicate, timeout=120)
        assert said in output
        assert process.returncode == 1
        assert site.requests == []


@pytest.mark.full
async def test_a_setting_that_does_not_exist_is_named_before_anything_is_fetched(project: Project) -> None:
    async with HostileSite() as site:
        head = HEAD.replace('"SHOAL_RETRY_SECONDS"', '"SHOAL_RATES": "4/s", "SHOAL_RETRY_SECONDS"')
        project.write(site.url("/"), head=head)
        process = project.start()
        output, _ = await asyncio.to_thread(process.communicate, timeout=120)
        assert "rates" in output
        assert "did you mean 'rate'?" in output
        assert site.requests == []


def test_a_process_that_is_asked_to_stop_hands_its_requests_back(project: Project, tmp_path: Path) -> None:
    with site_process("--graph", "80", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url)
        process = project.start("-s", "SHOAL_RATE=20/s")
        while len(site.hits()) < 5:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        output, _ = process.communicate(timeout=120)
        assert "Closing spider (shutdown)" in output
        state, done, dead, left = project.counts()
        assert (state, dead) == ("running", 0)
        assert 0 < done < 80
        assert left > 0
        assert project.shoal("status", "pages-1")["progress"]["leased"] == 0
        project.run("-s", "SHOAL_RATE=unlimited")
        assert project.counts() == ("finished", 80, 0, 0)
        assert set(fetched(site).values()) == {1}


@pytest.mark.full
def test_a_frontier_that_is_lost_is_no_end_of_the_crawl(project: Project, tmp_path: Path) -> None:
    with site_process("--graph", "200", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url)
        process = project.start("-s", "SHOAL_RATE=20/s")
        while len(site.hits()) < 5:
            assert process.poll() is None
            time.sleep(0.05)
        for file in tmp_path.glob("shoal.db*"):
            file.unlink()
        output, _ = process.communicate(timeout=120)
        assert re.search(r"Spider closed \(shoal: .*shoal.db was deleted", output)
        assert "'finish_reason': 'finished'" not in output
