"""The spider of the case of kills, as the README writes spiders. Starts at BENCH_URL."""

import os

from shoal import Item, Spider


class Bench(Spider):
    start = (os.environ["BENCH_URL"],)
    rate = "unlimited"
    per_host = 16
    concurrency = 16
    allow_private = True

    def parse(self, page):
        yield Item(url=page.url, title=page.text("title"), links=len(page.links()))
        yield from page.follow("a[href]")
