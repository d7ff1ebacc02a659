"""The benchmark's spider as the README writes spiders, with default settings but for speed. Starts at BENCH_URL."""

import os

from shoal import Item, Spider


class Bench(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = "unlimited"
    per_host = 64
    concurrency = 64
    allow_private = True

    def parse(self, page):
        yield Item(url=page.url, title=page.text("title"), links=len(page.hrefs("a[href]")))
        yield from page.follow("a[href]")
