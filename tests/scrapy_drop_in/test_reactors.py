"""What a page gave belongs to that page under every reactor that Scrapy runs on."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from scrapy_project import Project
from small_site import small_site

pytestmark = pytest.mark.full

HEAD = """
import scrapy

class Asking:
    async def process_item(self, item):
        if item.get("bad"):
            raise KeyError("of a pipeline")
        return item

class Pages(scrapy.Spider):
    name = "pages"
    start_urls = ["{url}"]
    custom_settings = {{
        "ADDONS": {{"shoal.scrapy.Addon": 0}},
        "ITEM_PIPELINES": {{Asking: 1}},
        "SHOAL_FRONTIER": "{frontier}",
        "SHOAL_STORE": "shoal.db",
        "TELNETCONSOLE_ENABLED": False,
    }}
"""
METHODS = """
    def parse(self, response):
        yield {"of": "a generator"}
        for path, callback in (("a", self.asynchronous), ("b", self.fails), ("c", self.fails_later), ("d", self.bad)):
            yield scrapy.Request(response.urljoin(path), callback)

    async def asynchronous(self, response):
        yield {"of": "an asynchronous generator"}
        yield scrapy.Request(response.urljoin("e"), self.listed, errback=self.failed)

    async def listed(self, response):
        return [{"of": "a coroutine"}]

    def fails(self, response):
        yield {"of": "a callback that fails"}
        raise KeyError("at once")

    async def fails_later(self, response):
        yield scrapy.Request(response.urljoin("f"), self.listed)
        raise KeyError("later")

    def bad(self, response):
        yield {"bad": True}

    def failed(self, failure):
        yield {"of": "an errback"}
"""


def rows(project: Project, query: str) -> set[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(project.folder / "shoal.db")) as db:
        return set(db.execute(query))


@pytest.mark.parametrize("reactor", ["asyncioreactor.AsyncioSelectorReactor", "selectreactor.SelectReactor"])
def test_items_requests_and_errors_belong_to_their_page(project: Project, reactor: str) -> None:
    with small_site({}) as site:
        project.write(site.url + "/", METHODS, head=HEAD)
        project.run("-s", f"TWISTED_REACTOR=twisted.internet.{reactor}")
    expected = {
        "/": "a generator", "/a": "an asynchronous generator", "/b": "a callback that fails", "/e": "a coroutine",
        "/f": "a coroutine",
    }  # fmt: skip
    # The page's URL is the key and the origin of its item.
    assert rows(project, "SELECT key, url, json_extract(data, '$.of') FROM items") == {
        (f"{site.url}{path}", f"{site.url}{path}", of) for path, of in expected.items()
    }
    reasons = {letter["url"].removeprefix(site.url): letter["reason"] for letter in project.shoal("dead", "list")}
    assert reasons == {
        "/b": "handler: KeyError: 'at once'", "/c": "handler: KeyError: 'later'",
        "/d": "pipeline: KeyError: 'of a pipeline'",
    }  # fmt: skip
    assert rows(project, "SELECT url FROM fetches WHERE parent IS NULL") == {(f"{site.url}/",)}
