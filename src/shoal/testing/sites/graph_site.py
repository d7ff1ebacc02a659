"""The graph of numbered pages as a web site on loopback; KneeSite serves it from a host with limited capacity."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from shoal.testing.sites.catalogue import LinkGraph, Page
from shoal.testing.sites.loopback import Hit, LoopbackServer, Reply, Request, number_of, page_reply


@dataclass(kw_only=True)
class GraphSite:
    """Numbered pages `/g/0`, `/g/1`, … spread over the hosts, all reachable from the first except those `apart`.

    `marks` are texts on pages, by number; `marks_once` are shown only in the first response."""

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
        """The first page of a crawl."""
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
            number = number_of(request.path)
            result = page_reply(self._page(request, number), delay=self.latency)
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


HEAVY_SHARE = 0.1
HEAVY_TIMES = 3.0


@dataclass(kw_only=True)
class KneeSite(GraphSite):
    """Responses take longer and longer above `bears` requests per second. Some pages are slower than others at any
    pace. Above `rate_limit`, requests are refused."""

    bears: float
    _free_at: float = field(default=0.0, init=False)
    _rng: random.Random = field(default_factory=lambda: random.Random(1), init=False)

    def _answer(self, request: Request) -> Reply:
        now = time.monotonic()
        waits = max(self._free_at - now, 0.0)
        self._free_at = now + waits + 1 / self.bears
        own = self.latency * (HEAVY_TIMES if self._rng.random() < HEAVY_SHARE else self._rng.uniform(0.8, 1.2))
        return super()._answer(request)._replace(delay=waits + own)
