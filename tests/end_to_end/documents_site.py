"""The web sites of the documents, all of them one on loopback: each page has what spiders of the documents look for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOOKS = 3
PAGE = """<html><head><title>Shop</title></head><body>
<nav><a href="/list.html">All</a></nav>
<h1>Book {name}</h1>
<article><h3><a href="/book/1.html">One</a></h3></article>
<div class="product"><a href="/book/2.html">Two</a></div>
<a class="book" href="/book/3.html">Three</a> <a class="reviews" href="/reviews/3.html">Reviews</a>
<table><tr data-sku="s-{name}"><td>Name</td></tr></table>
<p class="price_color">£12.50</p> <p class="orders">3</p> <p class="logged-in-as">anna</p>
<form><input name="token" value="t"></form>
<ul><li class="next"><a href="/list.html">next</a></li></ul>
</body></html>"""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, text = _content(self.path.partition("?")[0], f"http://{self.headers['Host']}")
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing: the crawl says what it met."""


def _content(path: str, base: str) -> tuple[str, str]:
    if path == "/robots.txt":
        return "text/plain", f"User-agent: *\nDisallow: /private/\nSitemap: {base}/sitemap.xml\n"
    if path.startswith("/api/"):
        return "application/json", json.dumps([{"id": f"p-{number}", "stock": number} for number in range(BOOKS)])
    if path.endswith((".xml", ".xml.gz")) or path == "/feed":
        urls = "".join(f"<url><loc>{base}/book/{number}.html</loc></url>" for number in range(1, BOOKS + 1))
        return "application/xml", f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'
    return "text/html; charset=utf-8", PAGE.format(name=path.strip("/").replace("/", "-") or "start")


@contextmanager
def documents_site() -> Iterator[str]:
    """The site while it runs: its URL, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server, ThreadPoolExecutor(1) as thread:
        server.daemon_threads = True
        serving = thread.submit(server.serve_forever)
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.result()
