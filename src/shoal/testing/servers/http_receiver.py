"""A small HTTP server on loopback that records its requests: collectors of traces, webhooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class HttpReceiver:
    """Answers every POST with the status from `answer`, and records the request."""

    def __init__(self, answer: Callable[[int], int] = lambda _: 200) -> None:
        self.received: list[Received] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True  # The client broke off: that is no request.
                    return
                with receiver._lock:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver.received.append(Received(self.path, headers, body))
                    status = answer(len(receiver.received))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name it has
                """Nothing: a test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def http_receiver(answer: Callable[[int], int] = lambda _: 200) -> Iterator[HttpReceiver]:
    """A receiver on a free port; `answer` maps the number of a request to a status."""
    receiver = HttpReceiver(answer)
    try:
        yield receiver
    finally:
        receiver.close()
