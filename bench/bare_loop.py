"""What the parts of a crawler cost without a crawler: `python -m bench.bare_loop URL… --concurrency 64 --out FILE`.

A loop over the libraries that shoal is made of: pyreqwest fetches, selectolax parses, ada-url resolves, a set knows the
URLs, a file takes one JSON line per page: URL, title, number of links. No robots.txt, no pace, no retries, no limits;
a crash loses everything. It follows links to the hosts that it was given, until none is left, and prints how many pages
it fetched; anything unexpected ends it. The event loop, malloc and the garbage collector are set as shoal sets them, so
that the difference to shoal is a crawler's work and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import BinaryIO

import msgspec
import uvloop
from ada_url import join_url
from pyreqwest.client import Client, ClientBuilder
from selectolax.lexbor import LexborHTMLParser

from shoal.worker.machine import collect_rarely, keep_freed_memory


class BareLoop:
    """One run: what is known, what waits, and a number of tasks that fetch."""

    def __init__(self, client: Client, *, start: list[str], limit: int, out: BinaryIO) -> None:
        self.pages = 0
        self._client = client
        self._origins = tuple({"/".join(url.split("/")[:3]) + "/" for url in start})
        self._known = set(start)
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._limit = limit
        self._out = out
        self._encode = msgspec.json.Encoder().encode
        for url in start:
            self._waiting.put_nowait(url)

    async def run(self, concurrency: int) -> None:
        """Fetch until nothing waits and nothing is in flight, or until the number of pages is reached."""
        fetching = [asyncio.create_task(self._fetch_pages()) for _ in range(concurrency)]
        ended = asyncio.create_task(self._waiting.join())
        await asyncio.wait([ended, *fetching], return_when=asyncio.FIRST_COMPLETED)
        for task in fetching:
            if task.done():
                task.result()
            task.cancel()

    async def _fetch_pages(self) -> None:
        while True:
            url = await self._waiting.get()
            if self._limit > 0:
                self._limit -= 1
                await self._fetch(url)
            self._waiting.task_done()

    async def _fetch(self, url: str) -> None:
        response = await self._client.get(url).build().send()
        if response.status != 200:
            raise SystemExit(f"{url} answered {response.status}")
        body = await response.bytes()
        self.pages += 1
        self._take(url, body.to_bytes())

    def _take(self, url: str, body: bytes) -> None:
        tree = LexborHTMLParser(body)
        title = tree.css_first("title")
        hrefs = [href for node in tree.css("a[href]") if (href := node.attrs.get("href"))]
        item = {"url": url, "title": title.text() if title else "", "links": len(hrefs)}
        self._out.write(self._encode(item) + b"\n")
        known, put, origins = self._known, self._waiting.put_nowait, self._origins
        for href in hrefs:
            link = join_url(url, href).partition("#")[0]
            if link not in known and link.startswith(origins):
                known.add(link)
                put(link)


async def crawl(options: argparse.Namespace) -> int:
    """The number of pages that were fetched."""
    builder = ClientBuilder().no_proxy().follow_redirects(False).pool_max_idle_per_host(options.concurrency)
    if options.insecure:
        builder.danger_accept_invalid_certs(True)
    async with builder.build() as client:
        with options.out.open("wb") as out:
            loop = BareLoop(client, start=options.urls, limit=options.pages, out=out)
            await loop.run(options.concurrency)
    return loop.pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bare_loop", description="the parts of a crawler, no crawler")
    parser.add_argument("urls", nargs="+", metavar="URL", help="where to begin; only links to these hosts are followed")
    parser.add_argument("--concurrency", type=int, default=64, help="requests in flight")
    parser.add_argument(
        "--pages", type=int, default=1 << 60, help="stop after so many; by default at the end of the site"
    )
    parser.add_argument("--out", type=Path, required=True, help="file for the items, JSON Lines")
    parser.add_argument("--insecure", action="store_true", help="take any certificate")
    options = parser.parse_args()
    keep_freed_memory()
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(f"{runner.run(crawl(options))} pages")


if __name__ == "__main__":
    main()
