"""Web sites on loopback to crawl in tests and in the demo: a catalogue, and a graph of numbered pages.

Both know the truth about themselves and keep a log of every request by their own clock. They run in the current
event loop, or in a process of their own: `python -m shoal.testing.sites.site --products 300 --log hits.jsonl`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import stat
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from shoal.testing.sites.catalogue import Catalogue, LinkGraph, Page
from shoal.testing.sites.loopback import (
    Hit,
    LoopbackServer,
    Reply,
    Request,
    busiest_window,
    pace_violations,
    read_log,
    reply,
)

__all__ = [
    "CatalogueSite",
    "GraphSite",
    "Hit",
    "busiest_window",
    "pace_violations",
    "read_log",
]

FLAKY_FAILURES = 2
NUMBERED = re.compile(r"/(?:catalogue/page-|slow/|flaky/|g/)(\d{1,9})(?:\.html)?")


@dataclass(kw_only=True)
class CatalogueSite:
    """A shop on the first host and its slow review pages on the second one.

    `rate_limit=(n, seconds)` and `fail_paths={path: status}` make it difficult.
    """

    products: int = 200
    per_page: int = 20
    hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2")
    latency: float = 0.0
    slow_host_latency: float = 0.5
    crawl_delay: float | None = None
    flaky: int = 2
    seed: int = 1
    port: int = 0
    rate_limit: tuple[int, float] | None = None
    fail_paths: Mapping[str, int] = field(default_factory=dict)
    log: Path | None = None
    server: LoopbackServer = field(init=False)
    catalogue: Catalogue = field(init=False)
    _pages: dict[tuple[str, str], Reply] = field(default_factory=dict, init=False)
    _failures: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.server = LoopbackServer(
            answer=self._answer,
            hosts=self.hosts,
            port=self.port,
            rate_limit=self.rate_limit,
            fail_paths=self.fail_paths,
            log=self.log,
        )

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.catalogue = Catalogue(
            products=self.products,
            per_page=self.per_page,
            seed=self.seed,
            flaky=self.flaky,
            base=self.urls[0].rstrip("/"),
            reviews_base=self.urls[1].rstrip("/") if len(self.urls) > 1 else None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    @property
    def urls(self) -> list[str]:
        """The addresses of the hosts, with a trailing slash; a crawl starts at the first."""
        return [f"http://{host}:{self.server.port}/" for host in self.server.hosts]

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def requests(self) -> list[Hit]:
        return self.server.requests

    @property
    def peak_in_flight(self) -> Counter[str]:
        return self.server.peak_in_flight

    def expected_products(self) -> set[str]:
        """The SKU of every product."""
        return self.catalogue.expected_products()

    def expected_urls(self) -> set[str]:
        """Every URL of the main host that a full crawl from `url` fetches exactly once with status 200."""
        return self.catalogue.expected_urls()

    def _answer(self, request: Request) -> Reply:
        known = (request.host, request.path)
        found = self._pages.get(known)
        if found is not None:
            return found
        result = self._special(request)
        if result is None:
            is_main = request.host == self.server.hosts[0]
            page = self._main_page(request.path) if is_main else self._slow_page(request.path)
            delay = self.latency if is_main else self._slow_delay(request.path)
            result = self._pages[known] = _page_reply(page, delay=delay)
        return result

    def _special(self, request: Request) -> Reply | None:
        """Answers that are not the same each time, or not pages."""
        path = urlsplit(request.path).path
        if path == "/echo":
            return _echo(request)
        if path.startswith("/flaky/") and self._failures[path] < FLAKY_FAILURES:
            self._failures[path] += 1
            return reply("try again", status=503, kind="text/plain", delay=self.latency)
        if path.startswith("/redirect/"):
            target = self.catalogue.redirect(_stem(path))
            if target is not None:
                return reply("", status=302, headers={"Location": target}, delay=self.latency)
        if path == "/bounce":
            target = _parameter(request.path, "to")
            return reply("", status=302, headers={"Location": target}, delay=self.latency)
        return None

    def _main_page(self, target: str) -> Page | None:
        path = urlsplit(target).path
        fixed = self._fixed_pages().get(path)
        if fixed is not None:
            return fixed()
        folder = path.split("/")[1]
        match folder:
            case "catalogue":
                return self.catalogue.listing(_number(path))
            case "category":
                return self.catalogue.category(_stem(path))
            case "product":
                return self.catalogue.product_page(_stem(path))
            case "flaky" if 0 <= _number(path) < self.flaky:
                return Page(f"<title>Offer</title><h1>Offer {_number(path) + 1}</h1><a href='/'>Home</a>")
            case "private":
                return Page("<title>Private</title><h1>You should not have come here</h1>")
            case "api" if path == "/api/products.json":
                page = _parameter(target, "page") or "1"
                return self.catalogue.api(int(page) if page.isdecimal() else 0)
        return None

    def _fixed_pages(self) -> dict[str, Callable[[], Page]]:
        shop = self.catalogue
        return {
            "/": shop.home,
            "/robots.txt": lambda: shop.robots(crawl_delay=self.crawl_delay),
            "/sitemap.xml": shop.sitemap_index,
            "/sitemap-products.xml.gz": shop.sitemap,
            "/feed.xml": shop.feed,
            "/plain.txt": shop.plain,
        }

    def _slow_page(self, target: str) -> Page | None:
        path = urlsplit(target).path
        if path == "/robots.txt":
            return self.catalogue.robots(crawl_delay=self.crawl_delay)
        return self.catalogue.review(_number(path)) if path.startswith("/slow/") else None

    def _slow_delay(self, target: str) -> float:
        """Between once and twice the latency, the same for the same page."""
        return self.slow_host_latency * (1 + max(0, _number(urlsplit(target).path)) * 7 % 10 / 10)


@dataclass(kw_only=True)
class GraphSite:
    """Numbered pages `/g/0`, `/g/1`, … spread over the hosts, all reachable from the first but those `apart`.

    `marks` are texts that pages show by their number; those of `marks_once` are shown in the first answer only."""

    pages: int = 2000
    links: int = 8
    seed: int = 1
    hosts: Sequence[str] = ("127.0.0.1",)
    latency: float = 0.0
    port: int = 0
    rate_limit: tuple[int, float] | None = None
    fail_paths: Mapping[str, int] = field(default_factory=dict)
    log: Path | None = None
    apart: int = 0
    marks: Mapping[int, str] = field(default_factory=dict)
    marks_once: Mapping[int, str] = field(default_factory=dict)
    server: LoopbackServer = field(init=False)
    graph: LinkGraph = field(init=False)
    _pages: dict[tuple[str, str], Reply] = field(default_factory=dict, init=False)
    _shown: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.server = LoopbackServer(
            answer=self._answer,
            hosts=self.hosts,
            port=self.port,
            rate_limit=self.rate_limit,
            fail_paths=self.fail_paths,
            log=self.log,
        )

    async def __aenter__(self) -> Self:
        await self.server.start()
        bases = tuple(f"http://{host}:{self.server.port}" for host in self.server.hosts)
        self.graph = LinkGraph(pages=self.pages, links=self.links, seed=self.seed, bases=bases, apart=self.apart)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    @property
    def url(self) -> str:
        """Where a crawl starts."""
        return self.graph.url(0)

    @property
    def urls(self) -> list[str]:
        return [self.url]

    @property
    def requests(self) -> list[Hit]:
        return self.server.requests

    @property
    def peak_in_flight(self) -> Counter[str]:
        return self.server.peak_in_flight

    def expected_urls(self) -> set[str]:
        """Every page."""
        return self.graph.expected_urls()

    def expected_items(self) -> set[str]:
        """The text of every page's h1."""
        return {str(number) for number in range(self.pages + self.apart)}

    def _answer(self, request: Request) -> Reply:
        known = (request.host, request.path)
        result = self._pages.get(known)
        if result is None:
            number = _number(request.path)
            result = _page_reply(self._page(request, number), delay=self.latency)
            if number in self.marks_once and number not in self._shown:
                self._shown.add(number)
            else:
                self._pages[known] = result
        return result

    def _page(self, request: Request, number: int) -> Page | None:
        if request.path == "/robots.txt":
            return Page("User-agent: *\nDisallow:\n", "text/plain")
        is_page = 0 <= number < self.pages + self.apart
        if not is_page or self.server.hosts[number % len(self.server.hosts)] != request.host:
            return None
        once = "" if number in self._shown else self.marks_once.get(number, "")
        return self.graph.page(number, mark=self.marks.get(number, once))


def _page_reply(page: Page | None, *, delay: float) -> Reply:
    if page is None:
        return reply("<title>Not found</title><h1>Not found</h1>", status=404, delay=delay)
    return reply(page.body, kind=page.kind, delay=delay)


def _echo(request: Request) -> Reply:
    """What was sent, as JSON."""
    shown = {
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
        "body": request.body.decode("utf-8", "replace"),
    }
    return reply(json.dumps(shown), kind="application/json")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".html")


def _number(path: str) -> int:
    """The number in a numbered path, or -1."""
    match = NUMBERED.fullmatch(path)
    return int(match[1]) if match else -1


def _parameter(target: str, name: str) -> str:
    return parse_qs(urlsplit(target).query).get(name, [""])[0]


def main() -> None:
    """Serve until SIGTERM, SIGINT or the end of standard input."""
    parser = argparse.ArgumentParser(prog="python -m shoal.testing.sites.site", description=main.__doc__)
    parser.add_argument("--products", type=int, default=200, help="products of the catalogue")
    parser.add_argument("--graph", type=int, default=0, metavar="PAGES", help="serve a graph of this many pages")
    parser.add_argument("--links", type=int, default=8, help="links per page of the graph")
    parser.add_argument("--apart", type=int, default=0, metavar="PAGES", help="further pages to which no link leads")
    parser.add_argument("--marks", type=_marks, default={}, help="texts that pages of the graph show, as JSON")
    parser.add_argument("--marks-once", type=_marks, default={}, help="the same, in the first answer only")
    parser.add_argument("--hosts", help="loopback addresses, comma-separated")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer")
    parser.add_argument("--slow-host-latency", type=float, default=0.5, help="the same for the slow host")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="append every request to this file, one JSON line each")
    site = _build(parser.parse_args())
    with asyncio.Runner(loop_factory=_fast_loop) as runner:
        runner.run(_serve(site))


def _fast_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def _build(options: argparse.Namespace) -> CatalogueSite | GraphSite:
    hosts = (
        options.hosts.split(",") if options.hosts else ["127.0.0.1"] if options.graph else ["127.0.0.1", "127.0.0.2"]
    )
    if options.graph:
        return GraphSite(
            pages=options.graph,
            links=options.links,
            seed=options.seed,
            hosts=hosts,
            latency=options.latency,
            port=options.port,
            log=options.log,
            apart=options.apart,
            marks=options.marks,
            marks_once=options.marks_once,
        )
    return CatalogueSite(
        products=options.products,
        seed=options.seed,
        hosts=hosts,
        latency=options.latency,
        slow_host_latency=options.slow_host_latency,
        port=options.port,
        log=options.log,
    )


def _marks(text: str) -> dict[int, str]:
    """Marks by the number of their page."""
    return {int(number): mark for number, mark in json.loads(text).items()}


async def _serve(site: CatalogueSite | GraphSite) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if _is_pipe(sys.stdin.fileno()):
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, stop)
    async with site:
        sys.stdout.write(json.dumps({"url": site.url, "urls": site.urls, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def _stop_at_end(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()


def _is_pipe(descriptor: int) -> bool:
    """A terminal or /dev/null says nothing about who started this process; the end of a pipe does."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


if __name__ == "__main__":
    main()
