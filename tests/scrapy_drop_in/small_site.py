"""A site on loopback whose pages are functions: such that fail at first, want a cookie, or read a form."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


@dataclass
class Visitor:
    """One request. `visit`: how many there were of its path, with this one; `peer`: the address it came from."""

    path: str
    visit: int
    headers: Message
    body: str
    peer: str


@dataclass
class Answer:
    body: str | bytes = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_zipped: bool = False


class Hit(NamedTuple):
    path: str
    peer: str
    at: float


Page = Callable[[Visitor], Answer]


class SmallSite:
    """`pages` by path; any other path is a page with its path as its text. `log`: each request, in order."""

    def __init__(self, pages: dict[str, Page | str], port: int, *, is_secure: bool = False) -> None:
        self.pages = pages
        self.hits: Counter[str] = Counter()
        self.log: list[Hit] = []
        self.url = f"http{'s' if is_secure else ''}://127.0.0.1:{port}"

    @property
    def asked_for(self) -> dict[str, int]:
        """How often each page was, but for robots.txt; the first one first."""
        return {path: number for path, number in self.hits.items() if path != "/robots.txt"}

    def answer(self, visitor: Visitor) -> Answer:
        page = self.pages.get(visitor.path, f"<p>{visitor.path}</p>")
        return Answer(page) if isinstance(page, str) else page(visitor)


@contextmanager
def small_site(pages: dict[str, Page | str], *, tls: ssl.SSLContext | None = None) -> Iterator[SmallSite]:
    """Serve until the block ends; with `tls`, over https."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            with lock:
                site.hits[self.path] += 1
                peer = self.client_address[0]
                site.log.append(Hit(self.path, peer, time.monotonic()))
                answer = site.answer(Visitor(self.path, site.hits[self.path], self.headers, body, peer))
            content = answer.body if isinstance(answer.body, bytes) else answer.body.encode()
            if answer.is_zipped:
                content, answer.headers["Content-Encoding"] = gzip.compress(content), "gzip"
            self.send_response(answer.status)
            for name, value in {"Content-Type": "text/html", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 -- the library's name

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        site = SmallSite(pages, server.server_port, is_secure=tls is not None)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
