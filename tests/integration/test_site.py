"""The test site is what other tests trust, so its own truth, clock and manners are proved here."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser

from shoal.testing.sites.catalogue import Catalogue, LinkGraph
from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site import (
    CatalogueSite,
    GraphSite,
    busiest_window,
    pace_violations,
    read_log,
)
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import eventually


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def tree(self) -> LexborHTMLParser:
        return LexborHTMLParser(self.body)


def get(url: str, *, method: str = "GET", body: bytes | None = None) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, body=body, headers={"User-Agent": "test"})
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


async def fetch(url: str) -> Answer:
    return await asyncio.to_thread(get, url)


def links_of(url: str, answer: Answer) -> list[str]:
    hrefs = [node.attributes.get("href") or "" for node in answer.tree.css("a[href]")]
    return [urldefrag(urljoin(url, href)).url for href in hrefs]


def key_of(url: str) -> str:
    """The same page under another address: tracking parameters off, the query in order."""
    path, _, query = url.partition("?")
    kept = sorted(part for part in query.split("&") if part and not part.startswith(("utm_", "fbclid")))
    return f"{path}?{'&'.join(kept)}"


async def crawl(site: CatalogueSite | GraphSite, *, hosts: list[str]) -> Counter[tuple[str, int]]:
    """Follow every link within the hosts once, redirects included, and count the answers by URL and status."""
    answers: Counter[tuple[str, int]] = Counter()
    seen = {key_of(site.url)}
    queue = [site.url]
    while queue:
        url = queue.pop(0)
        answer = await fetch(url)
        answers[url, answer.status] += 1
        found = [urljoin(url, answer.headers["location"])] if answer.status == 302 else links_of(url, answer)
        if answer.status == 503:
            queue.append(url)
        for link in found:
            if urlsplit(link).hostname in hosts and "/private/" not in link and key_of(link) not in seen:
                seen.add(key_of(link))
                queue.append(link)
    return answers


def hits_at(*times: float, host: str = "127.0.0.1") -> list[Hit]:
    return [Hit(at, at, host, "GET", "/", "", 200) for at in times]


async def test_a_full_crawl_fetches_exactly_the_expected_pages() -> None:
    async with CatalogueSite(products=90, per_page=10) as site:
        answers = await crawl(site, hosts=["127.0.0.1"])
        fetched = Counter({url: count for (url, status), count in answers.items() if status == 200})
        assert set(fetched) == site.expected_urls()
        assert set(fetched.values()) == {1}
        assert {url for url, status in answers if status == 404} == site.catalogue.expected_missing()
        assert Counter(status for _, status in answers)[302] == 3
        assert sum(count for (_, status), count in answers.items() if status == 503) == 4


async def test_a_catalogue_of_a_few_products_is_complete_too() -> None:
    async with CatalogueSite(products=3, hosts=("127.0.0.1",)) as site:
        answers = await crawl(site, hosts=["127.0.0.1"])
        assert {url for url, status in answers if status == 200} == site.expected_urls()
        assert site.catalogue.expected_reviews() == set()


async def test_a_product_page_has_what_a_spider_reads() -> None:
    async with CatalogueSite(products=30) as site:
        product = site.catalogue.product(7)
        tree = (await fetch(f"{site.url}product/{product.sku}.html")).tree
        cell, heading, price = (tree.css_first(s) for s in ("tr:nth-child(1) td", "h1", ".price_color"))
        assert (cell.text(), heading.text(), price.text()) == (product.sku, product.title, product.price)
        hrefs = [node.attributes["href"] or "" for node in tree.css("a")]
        assert any(href.startswith("mailto:") for href in hrefs)
        assert any(href.startswith("/private/") for href in hrefs)
        assert any("utm_source" in href for href in hrefs)
        assert any(href.startswith("http://127.0.0.99") for href in hrefs)
        assert any(href.startswith(f"{site.urls[1]}slow/") for href in hrefs)


async def test_listing_pages_lead_to_every_product() -> None:
    async with CatalogueSite(products=45, per_page=20) as site:
        first = await fetch(f"{site.url}catalogue/page-1.html")
        last = first.tree.css_first("a.last")
        assert (last.text(), last.attributes["href"]) == ("3", "/catalogue/page-3.html")
        found = set()
        for page in range(1, 4):
            answer = await fetch(f"{site.url}catalogue/page-{page}.html")
            found |= {node.attributes["href"] for node in answer.tree.css("article h3 a")}
            assert (answer.tree.css_first("li.next a") is None) == (page == 3)
        assert found == {site.catalogue.address(number) for number in range(45)}
        assert (await fetch(f"{site.url}catalogue/page-4.html")).status == 404


async def test_the_sitemap_index_leads_to_every_product() -> None:
    async with CatalogueSite(products=25, crawl_delay=0.5) as site:
        robots = (await fetch(f"{site.url}robots.txt")).body.decode()
        assert "Disallow: /private/\n" in robots
        assert "Crawl-delay: 0.5\n" in robots
        assert f"Sitemap: {site.url}sitemap.xml\n" in robots
        index = (await fetch(f"{site.url}sitemap.xml")).body.decode()
        assert f"<loc>{site.url}sitemap-products.xml.gz</loc>" in index
        products = gzip.decompress((await fetch(f"{site.url}sitemap-products.xml.gz")).body).decode()
        assert all(f"<loc>{url}</loc>" in products for url in site.catalogue.sitemap_urls())


async def test_the_api_pages_through_every_product() -> None:
    async with CatalogueSite(products=25, per_page=10) as site:
        pages = [json.loads((await fetch(f"{site.url}api/products.json?page={n}")).body) for n in (1, 2, 3)]
        assert {page["last"] for page in pages} == {3}
        assert {product["sku"] for page in pages for product in page["products"]} == site.expected_products()
        assert (await fetch(f"{site.url}api/products.json?page=4")).status == 404
        assert (await fetch(f"{site.url}feed.xml")).headers["content-type"] == "application/rss+xml"
        assert len((await fetch(f"{site.url}plain.txt")).body.splitlines()) == 25


async def test_a_flaky_page_fails_twice_and_then_answers() -> None:
    async with CatalogueSite(products=5) as site:
        assert [(await fetch(f"{site.url}flaky/0.html")).status for _ in range(4)] == [503, 503, 200, 200]
        assert (await fetch(f"{site.url}flaky/99.html")).status == 503


async def test_a_moved_product_redirects_to_its_page() -> None:
    async with CatalogueSite(products=5) as site:
        answer = await fetch(f"{site.url.rstrip('/')}{site.catalogue.address(4)}")
        assert (answer.status, answer.headers["location"]) == (302, f"/product/{site.catalogue.sku(4)}.html")


async def test_the_slow_host_is_slow_and_the_other_is_not() -> None:
    async with CatalogueSite(products=30, slow_host_latency=1.0) as site:
        started = time.monotonic()
        reviews = [asyncio.create_task(fetch(url)) for url in site.catalogue.expected_reviews()]
        await eventually(lambda: site.server.in_flight["127.0.0.2"] == 3)
        assert (await fetch(site.url)).status == 200
        assert site.server.in_flight["127.0.0.2"] == 3
        answers = await asyncio.gather(*reviews)
        assert {answer.status for answer in answers} == {200}
        assert time.monotonic() - started >= 1.0
        assert site.server.in_flight["127.0.0.2"] == 0


async def test_a_client_that_hangs_up_is_no_longer_in_flight() -> None:
    async with CatalogueSite(products=30, latency=600) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: site.server.in_flight["127.0.0.1"] == 1)
        writer.close()
        await eventually(lambda: site.server.in_flight["127.0.0.1"] == 0)


async def test_one_connection_carries_many_requests_in_order() -> None:
    async with GraphSite(pages=10, latency=0.01) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
        writer.write(b"".join(b"GET /g/%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(3)))
        writer.write(b"HEAD /g/3 HTTP/1.1\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        assert [text.index(f"<h1>{n}</h1>") for n in range(3)] == sorted(text.index(f"<h1>{n}</h1>") for n in range(3))
        assert text.count("HTTP/1.1 200 OK") == 4
        assert "<h1>3</h1>" not in text


async def test_a_malformed_request_ends_its_connection_only() -> None:
    async with GraphSite(pages=10) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
        writer.write(b"nonsense\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert (await fetch(site.url)).status == 200


async def test_echo_shows_what_was_sent() -> None:
    async with CatalogueSite(products=5) as site:
        answer = await asyncio.to_thread(get, f"{site.url}echo?a=1", method="POST", body=b"term=tide")
        shown = json.loads(answer.body)
        assert (shown["method"], shown["path"], shown["body"]) == ("POST", "/echo?a=1", "term=tide")
        assert shown["headers"]["user-agent"] == "test"
        bounce = await fetch(f"{site.url}bounce?to=http%3A%2F%2F127.0.0.2%2Fx")
        assert bounce.headers["location"] == "http://127.0.0.2/x"


async def test_beyond_its_rate_limit_the_site_answers_429_with_retry_after() -> None:
    async with CatalogueSite(products=5, rate_limit=(2, 60)) as site:
        answers = [await fetch(site.url) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert 58 <= int(answers[2].headers["retry-after"]) <= 60


async def test_fail_paths_answer_their_status_always() -> None:
    async with CatalogueSite(products=5, fail_paths={"/plain.txt": 500}) as site:
        assert [(await fetch(f"{site.url}plain.txt")).status for _ in range(3)] == [500] * 3


async def test_the_log_has_each_request_by_the_clock_of_the_site(tmp_path: Path) -> None:
    log = tmp_path / "hits.jsonl"
    async with CatalogueSite(products=5, log=log) as site:
        before = time.monotonic()
        await fetch(site.url)
        await fetch(f"{site.url}nothing.html?x=1")
        first, second = site.requests
        assert before <= first.time <= second.time <= time.monotonic()
        assert first[2:] == ("127.0.0.1", "GET", "/", "test", 200, "127.0.0.1")
        assert second[2:] == ("127.0.0.1", "GET", "/nothing.html?x=1", "test", 404, "127.0.0.1")
        assert read_log(log) == site.requests
    with log.open("a") as file:
        file.write('{"time": 1')
    assert len(read_log(log)) == 2


def test_pace_is_judged_per_host() -> None:
    hits = hits_at(0.0, 1.0, 1.9, 3.0) + hits_at(0.5, 1.5, host="127.0.0.2")
    assert pace_violations(hits, interval=1.0) == 1
    assert pace_violations(hits, interval=1.0, tolerance=0.15) == 0
    assert pace_violations([], interval=1.0) == 0


def test_the_busiest_window_counts_one_host() -> None:
    hits = hits_at(0.0, 0.4, 0.9, 1.0, 1.3) + hits_at(0.9, 1.0, host="127.0.0.2")
    assert busiest_window(hits, seconds=1.0) == 4
    assert busiest_window(hits, seconds=0.05) == 1
    assert busiest_window([]) == 0


async def test_the_graph_is_reachable_over_all_its_hosts() -> None:
    async with GraphSite(pages=120, links=5, hosts=("127.0.0.1", "127.0.0.2")) as site:
        answers = await crawl(site, hosts=["127.0.0.1", "127.0.0.2"])
        assert answers == Counter({(url, 200): 1 for url in site.expected_urls()})
        assert Counter(hit.host for hit in site.requests) == {"127.0.0.1": 60, "127.0.0.2": 60}
        assert (await fetch(f"http://127.0.0.1:{site.server.port}/g/1")).status == 404
        assert site.expected_items() == {str(n) for n in range(120)}


def test_every_page_of_a_graph_is_reachable_for_any_number_of_links() -> None:
    for links in (0, 1, 2, 8):
        graph = LinkGraph(pages=300, links=links)
        reached, queue = {0}, [0]
        while queue:
            new = set(graph.targets(queue.pop())) - reached
            reached |= new
            queue.extend(new)
        assert reached == set(range(300))


async def test_no_link_leads_to_pages_apart_and_they_are_there() -> None:
    async with GraphSite(pages=60, apart=5, links=2) as site:
        reached = await crawl(site, hosts=["127.0.0.1"])
        apart = {site.graph.url(number) for number in site.graph.pages_apart}
        assert {url for url, _ in reached} == site.expected_urls() - apart
        assert [(await fetch(url)).status for url in sorted(apart)] == [200] * 5
        assert (await fetch(site.graph.url(65))).status == 404


async def test_a_page_shows_its_mark_always_or_in_the_first_answer_only() -> None:
    async with GraphSite(pages=10, marks={1: "always"}, marks_once={2: "once"}) as site:
        bodies = {number: [(await fetch(site.graph.url(number))).body for _ in range(3)] for number in (1, 2, 3)}
    assert [b"always" in body for body in bodies[1]] == [True, True, True]
    assert [b"once" in body for body in bodies[2]] == [True, False, False]
    assert not any(b"mark" in body for body in bodies[3])


def test_the_same_seed_gives_the_same_site() -> None:
    one, same, other = (Catalogue(products=20, seed=seed) for seed in (1, 1, 2))
    sku = one.sku(3)
    assert one.product_page(sku) == same.product_page(sku)
    assert one.expected_products().isdisjoint(other.expected_products())
    assert LinkGraph(seed=1).page(5) == LinkGraph(seed=1).page(5) != LinkGraph(seed=2).page(5)


def test_runs_in_a_process_of_its_own_and_stops_when_its_owner_goes(tmp_path: Path) -> None:
    log = tmp_path / "hits.jsonl"
    with site_process("--graph", "50", log=log) as site:
        assert get(site.url).status == 200
        assert [hit.path for hit in site.hits()] == ["/g/0"]
        assert site.process.stdin is not None
        site.process.stdin.close()
        assert site.process.wait(timeout=10) == 0


def test_a_site_process_stops_on_sigterm(tmp_path: Path) -> None:
    with site_process("--products", "30", log=tmp_path / "hits.jsonl") as site:
        assert [urlsplit(url).hostname for url in site.urls] == ["127.0.0.1", "127.0.0.2"]
        assert get(site.url).status == 200
        site.process.send_signal(signal.SIGTERM)
        assert site.process.wait(timeout=10) == 0


async def test_binds_another_port_when_one_host_has_it_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        async with GraphSite(pages=5, hosts=("127.0.0.1", "127.0.0.2")) as site:
            assert site.server.port != taken.getsockname()[1]
            assert site.server.hosts == ("127.0.0.1", "127.0.0.2")
