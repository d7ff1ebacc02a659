"""A project as the documents of scrapy-redis show it. For shoal, its imports and one line of its settings change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scrapy_project import SECONDS, Project
from small_site import SmallSite, small_site

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

SETTINGS = """
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"
USER_AGENT = "scrapy-redis (example)"
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"
SCHEDULER = "scrapy_redis.scheduler.Scheduler"
SCHEDULER_PERSIST = True
ITEM_PIPELINES = {{"example.pipelines.Stamp": 300, "scrapy_redis.pipelines.RedisPipeline": 400}}
LOG_LEVEL = "DEBUG"
DOWNLOAD_DELAY = 0.02
REDIS_URL = "{redis}"
ADDONS = {{"shoal.scrapy.Addon": 0}}
"""
PIPELINES = """
from datetime import datetime, timezone

class Stamp:
    def process_item(self, item, spider):
        item["crawled"] = datetime.now(timezone.utc)
        item["spider"] = spider.name
        return item
"""
ITEMS = """
from itemloaders.processors import MapCompose, TakeFirst
from scrapy.item import Field, Item
from scrapy.loader import ItemLoader

class Book(Item):
    name = Field()
    link = Field()
    crawled = Field()
    spider = Field()
    url = Field()

class BookLoader(ItemLoader):
    default_item_class = Book
    default_input_processor = MapCompose(str.strip)
    default_output_processor = TakeFirst()
"""
SPIDERS = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from shoal.scrapy import RedisCrawlSpider, RedisSpider

from example.items import BookLoader


class Catalogue(CrawlSpider):
    name = "catalogue"
    allowed_domains = ["127.0.0.1"]
    start_urls = ["{url}/"]
    rules = [Rule(LinkExtractor(restrict_css=(".top", ".sub")), callback="parse_shelf", follow=True)]

    def parse_shelf(self, response):
        for book in response.css("li"):
            yield {{
                "name": book.css("a::text").get(),
                "link": book.css("a::attr(href)").get(),
            }}


class MyCrawler(RedisCrawlSpider):
    name = "mycrawler_redis"
    redis_key = "mycrawler:start_urls"
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def __init__(self, *args, **kwargs):
        domain = kwargs.pop("domain", "")
        self.allowed_domains = [name for name in domain.split(",") if name]
        super().__init__(*args, **kwargs)

    def parse_page(self, response):
        loader = BookLoader(response=response)
        loader.add_css("name", "title::text")
        loader.add_value("url", response.url)
        return loader.load_item()


class MySpider(RedisSpider):
    name = "myspider_redis"
    redis_key = "myspider:start_urls"

    def __init__(self, *args, **kwargs):
        domain = kwargs.pop("domain", "")
        self.allowed_domains = [name for name in domain.split(",") if name]
        super().__init__(*args, **kwargs)

    def parse(self, response):
        return {{"name": response.css("title::text").get(), "url": response.url}}
"""
CRAWL = ("-m", "scrapy", "crawl")
SHELVES = ("fish", "birds", "stones")


def pages() -> dict[str, Any]:
    links = "".join(f"<a href=/{shelf}>{shelf}</a>" for shelf in SHELVES)
    books = "".join(f"<li><a href=/book/{number}>book {number}</a></li>" for number in range(3))
    shelf = "<title>shelf</title><div class=sub><a href=/fish/more>more</a></div>" + books
    top = f"<title>top</title><div class=top>{links}</div>"
    return {"/": top, **dict.fromkeys((f"/{name}" for name in SHELVES), shelf), "/fish/more": "<title>more</title>"}


@pytest.fixture
def example(project: Project, redis: RedisServer) -> Project:
    folder = project.folder / "example"
    (folder / "spiders").mkdir(parents=True)
    for file in (folder, folder / "spiders"):
        Path(file, "__init__.py").touch()
    (project.folder / "scrapy.cfg").write_text("[settings]\ndefault = example.settings\n")
    (folder / "settings.py").write_text(SETTINGS.format(redis=redis.url))
    (folder / "pipelines.py").write_text(PIPELINES)
    (folder / "items.py").write_text(ITEMS)
    return project


def pushed(redis: RedisServer, key: str) -> list[Any]:
    return [json.loads(item) for item in redis.call("LRANGE", key, 0, -1)]


def stop(process: subprocess.Popen[str]) -> str:
    process.terminate()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    return output


def check_waiting_spiders(example: Project, redis: RedisServer, site: SmallSite) -> None:
    names = ("mycrawler", "myspider")
    processes = [example.start(f"{name}_redis", "-a", "domain=127.0.0.1", command=CRAWL) for name in names]
    try:
        redis.call("LPUSH", "mycrawler:start_urls", f"{site.url}/")
        redis.call("LPUSH", "myspider:start_urls", f"{site.url}/solo", json.dumps({"url": f"{site.url}/fish"}))
        for key, number in (("mycrawler_redis:items", 7), ("myspider_redis:items", 2)):
            wait_until(
                lambda key=key, number=number: len(pushed(redis, key)) >= number, otherwise=f"{key} is too short"
            )
    finally:
        outputs = [stop(process) for process in processes]
    found = {item["url"].removeprefix(site.url): item for item in pushed(redis, "mycrawler_redis:items")}
    assert found.keys() == {"/fish", "/birds", "/stones", "/fish/more", *(f"/book/{number}" for number in range(3))}
    assert found["/fish"]["name"] == "shelf"
    assert {(item["spider"], bool(item["crawled"])) for item in found.values()} == {("mycrawler_redis", True)}
    assert {item["url"] for item in pushed(redis, "myspider_redis:items")} == {f"{site.url}/solo", f"{site.url}/fish"}
    for output in outputs:
        assert "DUPEFILTER_CLASS of scrapy_redis is not used: the frontier knows its requests by fingerprint" in output
        assert "Traceback" not in output


def test_the_example_of_scrapy_redis_runs_with_other_imports(example: Project, redis: RedisServer) -> None:
    with small_site(pages()) as site:
        (example.folder / "example" / "spiders" / "all.py").write_text(SPIDERS.format(url=site.url))
        output = example.run("catalogue", command=CRAWL)
        assert "'finish_reason': 'finished'" in output
        books = [item["name"] for item in pushed(redis, "catalogue:items")]
        assert sorted(books) == sorted(f"book {number}" for number in range(3) for _ in SHELVES)
        assert len(example.items("--frontier", redis.url, crawl="catalogue-1")) == len(books)
        assert site.asked_for == dict.fromkeys(("/", "/fish", "/birds", "/stones", "/fish/more"), 1)

        check_waiting_spiders(example, redis, site)

        looked = ("--nolog", "--spider=catalogue", "-c", "parse_shelf", f"{site.url}/fish")
        assert "'name': 'book 2'" in example.run(*looked, command=("-m", "scrapy", "parse"))
