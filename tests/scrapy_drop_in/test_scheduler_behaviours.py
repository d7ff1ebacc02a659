"""What Scrapy promises of its own scheduler, kept by shoal's."""

from __future__ import annotations

import re

import pytest
from scrapy_project import HEAD, Project
from small_site import Answer, Visitor, small_site

pytestmark = pytest.mark.full

PRIORITIES = {"/a": 0, "/b": 5, "/c": -3, "/d": 0, "/e": 9, "/f": 5}
CLOSING = f"""
    async def parse(self, response):
        for path, priority in {PRIORITIES}.items():
            yield response.follow(path, self.page, priority=priority)
        raise scrapy.exceptions.CloseSpider("enough")

    def page(self, response):
        yield {{"key": response.url}}
"""
ONE_BY_ONE = ("-s", "CONCURRENT_REQUESTS=1", "-s", "SHOAL_PER_HOST=1")


def stat(output: str, name: str) -> int:
    found = re.search(rf"'{re.escape(name)}': (\d+)", output)
    return int(found[1]) if found else 0


def test_a_spider_that_closes_itself_leaves_what_waits_for_the_next_run_in_the_order_of_priorities(
    project: Project,
) -> None:
    with small_site({}) as site:
        project.write(f"{site.url}/", CLOSING)
        output = project.run(*ONE_BY_ONE)
        assert "'finish_reason': 'enough'" in output
        # A page whose callback ends the run is done: what it yielded before that is kept.
        assert site.asked_for == {"/": 1}
        assert project.counts() == ("running", 1, 0, len(PRIORITIES))
        assert project.shoal("status", "pages-1")["progress"]["leased"] == 0

        output = project.run(*ONE_BY_ONE)
        assert list(site.asked_for) == ["/", "/e", "/b", "/f", "/a", "/d", "/c"]
        assert set(site.hits.values()) == {1}
        assert project.counts() == ("finished", 1 + len(PRIORITIES), 0, 0)


REPEATING = """
    dropped = 0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.count_dropped, scrapy.signals.request_dropped)
        return spider

    def count_dropped(self, request):
        self.dropped += 1

    def parse(self, response):
        for word in ("one", "two"):
            for number in range(3):
                yield response.follow(f"/{word}?visit={number}", self.page)
        for _ in range(3):
            yield response.follow("/again", self.page, dont_filter=True)
        for jar in (0, 1, 2):
            yield response.follow(f"/enter/{jar}", self.entered, meta={"cookiejar": jar})

    def page(self, response):
        yield {"key": response.url}
        yield response.follow("/one?visit=9", self.page)

    def entered(self, response):
        jar = response.meta["cookiejar"]
        yield response.follow(f"/room/{jar}", self.room, meta={"cookiejar": jar})

    def room(self, response):
        yield {"key": response.url, "seen": response.text}

    def closed(self, reason):
        self.logger.info("dropped: %s", self.dropped)


class ByPath:
    def fingerprint(self, request):
        import hashlib
        return hashlib.sha1(request.url.partition("?")[0].encode()).digest()
"""


def enter(visitor: Visitor) -> Answer:
    return Answer(headers={"Set-Cookie": f"jar=number-{visitor.path[-1]}; Path=/"})


def test_duplicates_fingerprints_and_sessions_are_those_of_scrapy(project: Project) -> None:
    numbers = range(3)
    rooms = {f"/room/{jar}": lambda visitor: Answer(str(visitor.headers.get("Cookie"))) for jar in numbers}
    with small_site({**{f"/enter/{jar}": enter for jar in numbers}, **rooms}) as site:
        head = HEAD.replace('"SHOAL_STORE"', '"REQUEST_FINGERPRINTER_CLASS": "pages.ByPath", "SHOAL_STORE"')
        project.write(f"{site.url}/", REPEATING, head=head)
        output = project.run()
        one, two = (next(path for path in site.hits if path.startswith(word)) for word in ("/one", "/two"))
        once = ["/", one, two, *(f"/{place}/{jar}" for place in ("enter", "room") for jar in numbers)]
        assert site.asked_for == {**dict.fromkeys(once, 1), "/again": 3}
        seen = {item["key"][-1]: item["seen"] for item in project.items() if "seen" in item}
        assert seen == {str(jar): f"jar=number-{jar}" for jar in numbers}

        fetched, duplicates = len(once) + 3, 4 + 5  # the page's own links, and a link of each of the five pages
        for verb in ("enqueued", "dequeued"):
            assert stat(output, f"scheduler/{verb}/shoal") == stat(output, f"scheduler/{verb}") == fetched
        assert stat(output, "dupefilter/filtered") == duplicates
        assert f"dropped: {duplicates}" in output
        shown = re.findall(r"\[scrapy.dupefilters\] DEBUG: Filtered duplicate request: .*", output)
        assert len(shown) == 1
        assert shown[0].endswith(" - no more duplicates will be shown (see DUPEFILTER_DEBUG to show all duplicates)")

        output = project.run("-s", "DUPEFILTER_DEBUG=1")
        assert "begun pages-2" in output
        shown = re.findall(r"Filtered duplicate request: <GET (\S+)> \(referer: (\S+)\)", output)
        assert len(shown) == stat(output, "dupefilter/filtered") == duplicates
        assert shown.count((f"{site.url}/two?visit=1", f"{site.url}/")) == 1
