"""The benchmark's crawl by Crawlee for Python, run in Crawlee's own environment:

    python crawlee_crawl.py {selectolax,parsel} START ITEMS [REDIS_URL]

One item per page into Crawlee's dataset, which is written to ITEMS as JSON Lines at the end. Settings chosen for speed:
64 requests in flight from the first second, no session pool, no log, no browser's fingerprint, uvloop.

- selectolax: HttpCrawler, pages parsed by selectolax, links added by the handler; the fastest that we found
- parsel: ParselCrawler with `enqueue_links`, as Crawlee's documentation shows it
"""

import json
import logging
import sys
import warnings
from urllib.parse import urljoin

import uvloop
from crawlee import ConcurrencySettings
from crawlee.crawlers import HttpCrawler, ParselCrawler
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient
from crawlee_redis import redis_storage
from selectolax.lexbor import LexborHTMLParser

CONCURRENCY = 64


async def main(form, start, items, redis_url=None):
    options = {
        "storage_client": MemoryStorageClient() if redis_url is None else redis_storage(redis_url),
        "http_client": ImpitHttpClient(browser=None, verify=False, persist_cookies_per_session=False),
        "concurrency_settings": ConcurrencySettings(
            min_concurrency=CONCURRENCY, desired_concurrency=CONCURRENCY, max_concurrency=CONCURRENCY
        ),
        "use_session_pool": False,
        "configure_logging": False,
    }
    crawler = {"selectolax": with_selectolax, "parsel": with_parsel}[form](options)
    await crawler.run([start])
    dataset = await crawler.get_dataset()
    with open(items, "w") as lines:  # noqa: ASYNC230 -- the crawl has ended
        async for item in dataset.iterate_items():
            lines.write(json.dumps(item) + "\n")


def with_selectolax(options):
    crawler = HttpCrawler(**options)

    @crawler.router.default_handler
    async def take(context):
        tree = LexborHTMLParser(await context.http_response.read())
        url, title = context.request.url, tree.css_first("title").text()
        hrefs = [node.attrs.get("href") for node in tree.css("a[href]")]
        await context.push_data({"url": url, "title": title, "links": len(hrefs)})
        await context.add_requests(list({urljoin(url, href) for href in hrefs}))

    return crawler


def with_parsel(options):
    crawler = ParselCrawler(**options)

    @crawler.router.default_handler
    async def take(context):
        links = context.selector.css("a::attr(href)").getall()
        title = context.selector.css("title::text").get()
        await context.push_data({"url": context.request.url, "title": title, "links": len(links)})
        await context.enqueue_links()

    return crawler


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    uvloop.run(main(*sys.argv[1:]))
