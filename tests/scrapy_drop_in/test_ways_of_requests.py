"""Every way by which a request gets into Scrapy's engine leads to one fetch of it, no more and no less."""

from __future__ import annotations

import re

import pytest
from scrapy_project import Project
from scrapy_versions import every_version_then_every_reactor
from small_site import Answer, Visitor, small_site

HEAD = """
import asyncio
import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider, DropItem, IgnoreRequest
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import deferred_from_coro

async def pause(seconds):
    if is_asyncio_available():
        return await asyncio.sleep(seconds)
    from twisted.internet import reactor, task
    await task.deferLater(reactor, seconds)

class Swapping:
    def process_request(self, request):
        if request.url.endswith("/swap"):
            return request.replace(url=request.url + "ped")
        if request.url.endswith("/ignored"):
            raise IgnoreRequest("not this one")

class Adding:
    async def process_start(self, start):
        async for output in start:
            yield output
        yield scrapy.Request(URL + "/after-the-start")

    async def process_spider_output_async(self, response, result):
        async for output in result:
            yield output
        if response.url.endswith("/middleware"):
            yield scrapy.Request(URL + "/from-middleware")

    def process_spider_output(self, response, result):
        yield from result
        if response.url.endswith("/middleware"):
            yield scrapy.Request(URL + "/from-middleware")

class Asking:
    @classmethod
    def from_crawler(cls, crawler):
        made = cls()
        made.crawler = crawler
        return made

    def process_item(self, item):
        if item.get("asks"):
            self.crawler.engine.crawl(scrapy.Request(URL + "/from-pipeline"))
        return item

URL = "{url}"

class Pages(scrapy.Spider):
    name = "pages"
    custom_settings = {{
        "ADDONS": {{"shoal.scrapy.Addon": 0}},
        "DOWNLOADER_MIDDLEWARES": {{Swapping: 50}},
        "SPIDER_MIDDLEWARES": {{Adding: 40}},
        "ITEM_PIPELINES": {{Asking: 10}},
        "SHOAL_FRONTIER": "{frontier}",
        "SHOAL_RETRY_SECONDS": 0.05,
        "TELNETCONSOLE_ENABLED": False,
        "RETRY_TIMES": 3,
    }}
"""
METHODS = """
    idle = 0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.on_idle, signals.spider_idle)
        crawler.signals.connect(spider.on_scheduled, signals.request_scheduled)
        return spider

    async def start(self):
        yield {"of": "start", "number": 1}
        yield {"of": "start", "number": 2}
        yield scrapy.Request(URL + "/", self.main, dont_filter=True)
        yield scrapy.Request(URL + "/unsteady-start", self.parse, dont_filter=True)
        await pause(0.2)
        yield scrapy.Request(URL + "/slow-start", self.parse)

    def on_idle(self):
        self.idle += 1
        if self.idle <= 2:
            self.crawler.engine.crawl(scrapy.Request(URL + f"/idle-{self.idle}", self.parse))
        if self.idle <= 2 or not self.late.called:
            raise DontCloseSpider

    def on_scheduled(self, request):
        if request.url.endswith("/vetoed"):
            raise IgnoreRequest("no")

    async def main(self, response):
        self.late = deferred_from_coro(self.later(response))
        for _ in range(3):
            yield scrapy.Request(URL + "/thrice", self.parse, dont_filter=True)
        yield scrapy.Request(URL + "/nowhere", self.parse, errback=self.failed)
        for path in ("/swap", "/ignored", "/vetoed", "/hop-1", "/unsteady", "/middleware", "/many", "/same", "/same"):
            yield scrapy.Request(URL + path, self.parse)
        yield scrapy.Request(URL + "/asks", self.parse, cb_kwargs={"asks": True})
        yield scrapy.Request(URL + "/inline", self.inline)
        # While this goes on, the others are redirected and tried again.
        await pause(1.5)
        yield {"of": "the end of a long callback"}

    async def later(self, response):
        await pause(2.5)
        self.crawler.engine.crawl(response.request.replace(dont_filter=True, callback=self.parse))
        self.crawler.engine.crawl(scrapy.Request(URL + "/late", self.parse))

    async def inline(self, response):
        inner = await self.crawler.engine.download_async(scrapy.Request(URL + "/inside"))
        yield {"of": "inline", "inner": inner.text}
        yield scrapy.Request(URL + "/after-inside", self.parse)

    def parse(self, response, asks=False):
        for number in range(10 if response.url.endswith("/many") else 1):
            yield {"of": response.url.removeprefix(URL), "number": number, "asks": asks}

    def failed(self, failure):
        yield scrapy.Request(URL + "/from-errback", self.parse)
"""


def second_time(visitor: Visitor) -> Answer:
    return Answer(visitor.path) if visitor.visit > 1 else Answer(status=503)


def to(path: str) -> Answer:
    return Answer(status=302, headers={"Location": path})


PAGES = {
    "/unsteady-start": second_time,
    "/unsteady": second_time,
    "/hop-1": lambda _: to("/hop-2"),
    "/hop-2": lambda _: to("/hop-3"),
    "/nowhere": lambda _: Answer(status=404),
}
ONCE = """
    /after-the-start /slow-start /idle-1 /idle-2 /nowhere /swapped /hop-1 /hop-2 /hop-3 /middleware /from-middleware
    /many /same /asks /from-pipeline /inline /inside /after-inside /late /from-errback
""".split()  # noqa: SIM905 -- as a list, one line per path


@every_version_then_every_reactor
def test_no_way_loses_or_doubles_a_request_or_an_item(project: Project) -> None:
    with small_site(dict(PAGES)) as site:
        project.write(site.url, METHODS, head=HEAD)
        output = project.run()
        twice = {"/": 2, "/unsteady-start": 2, "/unsteady": 2, "/thrice": 3}
        assert site.asked_for == {**dict.fromkeys(ONCE, 1), **twice}
        items = sorted((item["of"], item.get("number", 0)) for item in project.items())
        without = {"/nowhere", "/hop-1", "/hop-2", "/inside", "/inline", "/many"}
        pages = {*ONCE, "/", "/unsteady-start", "/unsteady"} - without
        assert items == sorted(
            [
                *((page, 0) for page in [*pages, *3 * ["/thrice"]]),
                *(("/many", number) for number in range(10)),
                *(("start", number) for number in (1, 2)),
                *(("the end of a long callback", 0), ("inline", 0)),
            ]
        )
        state, _, dead, left = project.counts()
        assert (state, dead, left) == ("finished", 0, 0)
        assert not re.findall(r"\[\w.-]+\] ERROR.*|Traceback.*", output)


START = """
    async def start(self):
        yield scrapy.Request(URL + "/good")
        yield scrapy.Request(URL + "/lambda", lambda response: None)
        yield scrapy.Request("file://" + __file__)
        yield {"of": "start", "number": float("inf")}

    def parse(self, response):
        yield {"of": response.url}
        yield {"of": "no JSON", "what": object()}
"""


@pytest.mark.full
def test_what_cannot_be_kept_is_a_dead_letter_also_at_the_start(project: Project) -> None:
    with small_site({}) as site:
        project.write(site.url, START, head=HEAD)
        output = project.run()
        dead = {
            letter["url"].rpartition("/")[2]: letter["reason"] for letter in project.shoal("dead", "list", "pages-1")
        }
        assert dead.keys() == {"lambda", "good", "after-the-start", "pages.py"}
        assert dead["lambda"].startswith("unfit: the callback '<lambda>'")
        assert dead["good"].startswith("unstorable: item ")
        assert len({item["of"] for item in project.items()}) == 3
        assert "cannot be stored: a number that is not finite" in output


BROKEN = """
    async def start(self):
        yield scrapy.Request(URL + "/one")
        if not hasattr(self, "is_mended"):
            raise ValueError("no more")
        yield scrapy.Request(URL + "/two")

    def parse(self, response):
        yield {"of": response.url}
"""


@pytest.mark.full
def test_a_start_that_breaks_off_ends_the_run_but_not_the_crawl(project: Project) -> None:
    with small_site({}) as site:
        project.write(site.url, BROKEN, head=HEAD)
        output = project.run()
        assert "'finish_reason': 'start_error'" in output
        assert project.counts() == ("running", 1, 0, 0)
        project.write(site.url, f"    is_mended = True\n{BROKEN}", head=HEAD)
        project.run()
        assert project.counts() == ("finished", 3, 0, 0)
        assert site.asked_for == {"/one": 1, "/two": 1, "/after-the-start": 1}
