"""The benchmark's spider with requests of its own: priorities, meta and two handlers. Starts at BENCH_URL."""

import os

from shoal import Item, Request, Spider


class Bench(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = "unlimited"
    per_host = 64
    concurrency = 64
    allow_private = True

    def parse(self, page):
        yield from self.leaf(page)

    def leaf(self, page):
        links = page.links("a[href]")
        meta = {"parent": page.url, "level": page.meta.get("level", 0) + 1}
        yield Item(url=page.url, title=page.text("title"), links=len(page.hrefs("a[href]")), level=meta["level"])
        for number, url in enumerate(links):
            yield Request(url, self.leaf if number % 2 else self.parse, priority=number % 3, meta=meta)
