"""The catalogue as a web site on loopback: a shop, its slow review pages, and paths with faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from shoal.testing.sites.catalogue import Catalogue, Page
from shoal.testing.sites.loopback import Hit, LoopbackServer, Reply, Request, number_of, page_reply, reply

FLAKY_FAILURES = 2


@dataclass(kw_only=True)
class CatalogueSite:
    """A shop on the first host and its slow review pages on the second.

    `rate_limit=(n, seconds)` and `fail_paths={path: status}` add faults."""

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
            result = self._pages[known] = page_reply(page, delay=delay)
        return result

    def _special(self, request: Request) -> Reply | None:
        """Responses that differ each time, or are no pages."""
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
                return self.catalogue.listing(number_of(path))
            case "category":
                return self.catalogue.category(_stem(path))
            case "product":
                return self.catalogue.product_page(_stem(path))
            case "flaky" if 0 <= number_of(path) < self.flaky:
                return Page(f"<title>Offer</title><h1>Offer {number_of(path) + 1}</h1><a href='/'>Home</a>")
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
        return self.catalogue.review(number_of(path)) if path.startswith("/slow/") else None

    def _slow_delay(self, target: str) -> float:
        """Between once and twice the latency, always the same for a page."""
        return self.slow_host_latency * (1 + max(0, number_of(urlsplit(target).path)) * 7 % 10 / 10)


def _echo(request: Request) -> Reply:
    """The request as JSON."""
    shown = {
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
        "body": request.body.decode("utf-8", "replace"),
    }
    return reply(json.dumps(shown), kind="application/json")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".html")


def _parameter(target: str, name: str) -> str:
    return parse_qs(urlsplit(target).query).get(name, [""])[0]
