"""What a crawl leaves at its end: files with its items, and letters for what was refused or not handled."""

from __future__ import annotations

import json
import re

import pytest
from scrapy_project import HEAD, Project
from small_site import Answer, small_site

pytestmark = pytest.mark.full

METHODS = """
    async def start(self):
        yield scrapy.Request(self.start_urls[0], dont_filter=True)
        yield scrapy.Request("http://localhost:" + self.start_urls[0].rsplit(":", 1)[1] + "/", self.page)

    def parse(self, response):
        for number in range(3):
            yield response.follow(f"/{number}", self.page)
        yield response.follow("/passed-on", self.page, errback=self.pass_on)
        yield scrapy.Request("http://127.0.0.1:1/closed", self.page, errback=self.pass_on)
        yield response.follow("/raised", self.page, errback=self.raise_again)
        yield response.follow("/other", self.page, errback=self.raise_another)
        yield response.follow("/handled", self.page, errback=self.handle)

    def page(self, response):
        yield {"key": response.url.rsplit("/", 1)[1]}

    def pass_on(self, failure):
        return failure

    def raise_again(self, failure):
        failure.raiseException()

    def raise_another(self, failure):
        raise ValueError("in the errback")

    def handle(self, failure):
        yield {"key": "from the errback"}
"""
DOWN = dict.fromkeys(("/passed-on", "/raised", "/other", "/handled"), lambda _: Answer(status=503))


def test_the_run_that_finishes_a_crawl_writes_its_feeds_and_every_failure_is_a_letter(project: Project) -> None:
    with small_site(dict(DOWN)) as site:
        head = HEAD.replace('"SHOAL_STORE"', '"SHOAL_FEED": ["out.jsonl", "out.csv"], "SHOAL_STORE"')
        project.write(site.url, METHODS, head=head)
        given = ("-s", "RETRY_TIMES=0", "-s", "SHOAL_ALLOW_ADDRESSES=127.0.0.2/32", "-s", "SHOAL_RATE=20/s")
        refused = project.run(*given)
        reasons = {letter["url"]: letter["reason"] for letter in project.shoal("dead", "list", "pages-1")}
        assert reasons.keys() == {site.url, site.url.replace("127.0.0.1", "localhost") + "/"}
        assert all(reason.startswith("refused_address: ") for reason in reasons.values())
        assert "127.0.0.1 is at 127.0.0.1, a loopback address (SHOAL_ALLOW_PRIVATE is off)" in reasons[site.url]
        assert not site.hits
        assert "0 items of pages-1 are in out.jsonl" in refused

        project.shoal("dead", "requeue", "pages-1")
        output = project.run("-s", "RETRY_TIMES=0", "-s", "CLOSESPIDER_ITEMCOUNT=1", "-s", "SHOAL_RATE=4/s")
        assert "out.csv is not written: pages-1 is not finished" in output
        assert (project.folder / "out.jsonl").read_text() == ""

        output = project.run("-s", "RETRY_TIMES=0")
        items = [json.loads(line)["key"] for line in (project.folder / "out.jsonl").read_text().splitlines()]
        assert sorted(items) == ["", "0", "1", "2", "from the errback"]
        assert len((project.folder / "out.csv").read_text().splitlines()) == 6
        assert "5 items of pages-1 are in out.csv" in output
        letters = {
            letter["url"].rsplit("/", 1)[1]: letter["reason"] for letter in project.shoal("dead", "list", "pages-1")
        }
        assert letters.pop("closed").startswith("download_")
        assert letters == {
            "passed-on": "http_503: Scrapy gave up",
            "raised": "http_503: Scrapy gave up",
            "other": "handler: ValueError: in the errback",
        }


def test_a_spider_that_is_refused_says_why_and_shows_no_traceback(project: Project) -> None:
    project.write("http://127.0.0.1:9/")
    output = project.run("-s", "SHOAL_MAX_DEEPTH=3", code=1)
    assert "unknown setting 'max_deepth'" in output
    assert "Traceback" not in output


DROPPING = """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.dropped, scrapy.signals.request_dropped)
        return spider

    def parse(self, response):
        yield {"key": response.url}
        yield from response.follow_all(css="a", callback=self.parse)

    def dropped(self, request):
        self.logger.info("dropped %s", request.url)
"""


def test_a_request_that_only_the_frontier_knows_is_told_as_dropped(project: Project) -> None:
    pages = {"/": "<a href=/1>1</a><a href=/2>2</a>", "/new": "<a href=/1>1</a><a href=/3>3</a>"}
    with small_site(dict(pages)) as site:
        project.write(f"{site.url}/", DROPPING)
        project.run()
        project.write(f"{site.url}/new", DROPPING)
        output = project.run("-s", "SHOAL_CRAWL=pages-1", "-s", "DUPEFILTER_DEBUG=1")
        assert re.findall(r"dropped .*/(\w+)", output) == ["1"]
        assert f"Filtered duplicate request: <GET {site.url}/1> (referer: {site.url}/new)" in output
        assert "'dupefilter/filtered': 1" in output
        assert "'scheduler/enqueued/shoal': 2" in output
        assert site.hits == {"/": 1, "/1": 1, "/2": 1, "/new": 1, "/3": 1}


SAME = """
    def parse(self, response):
        for number in range(5):
            yield {"shelf": number % 2, "number": number}
        yield {"number": 6}
"""


def test_items_that_replace_each_other_and_keys_that_are_missing_are_told(project: Project) -> None:
    with small_site({}) as site:
        project.write(f"{site.url}/", SAME, head=HEAD.replace('"SHOAL_ITEM_KEY": "key"', '"SHOAL_ITEM_KEY": "shelf"'))
        output = project.run()
        assert output.count("an item has no 'shelf', which SHOAL_ITEM_KEY names") == 1
        assert (
            "pages-1 has yielded 6 items, of which 3 are stored: those with one key, by SHOAL_ITEM_KEY = 'shelf', have"
            " replaced each other"
        ) in output


FAILING = """
    def parse(self, response):
        for number in range(3):
            yield response.follow(f"/{number}", self.parse)
        raise ValueError("after its links")
"""


def test_links_of_pages_that_fail_are_done_and_sent_once(project: Project) -> None:
    with small_site({}) as site:
        project.write(f"{site.url}/", FAILING)
        output = project.run("-s", "CONCURRENT_REQUESTS=1")
        assert project.counts() == ("finished", 0, 4, 0)
        assert site.asked_for == {"/": 1, "/0": 1, "/1": 1, "/2": 1}
        assert "'scheduler/enqueued/shoal': 4" in output
