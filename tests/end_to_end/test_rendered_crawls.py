"""Crawls of a site that is empty without its scripts, by workers of the kind `browser` that are killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.browser.chromium import processes_below
from shoal.testing.servers.programs import find_program
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

BOOKS = 6
SLOW = 3
SPIDER = """
from shoal import Item, Render, Request, Spider


class Books(Spider):
    start = [Request("{url}/", render=True)]
    rate = "unlimited"
    allow_private = True
    settings = {{"lease_seconds": 4.0, "render_pages": 2}}

    def parse(self, page):
        for link in page.css("a"):
            yield Request(link.attr("href"), handler=self.book, render=Render(wait_for="h1", screenshot=True))

    def book(self, page):
        yield Item(key=page.url, title=page.text("h1"), picture=page.screenshot[1:4].decode())
"""
SHELF = (
    "<body><script>for (let n = 1; n <= %d; n += 1) document.body.innerHTML += `<a href=/book/${n}>${n}</a>`</script>"
)
BOOK = (
    "<body><script>fetch(location.pathname.replace('book', 'api')).then(a => a.text()).then(t =>"
    " { document.body.innerHTML = `<h1>${t}</h1>` })</script>"
)


class JavaScriptSite:
    """Its pages are made by scripts. The text of one book does not come until `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []
        site = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                text, kind = site.text_of(self.path)
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "text/plain")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def text_of(self, path: str) -> tuple[str, str]:
        if path == "/":
            return SHELF % BOOKS, "text/html"
        if path.startswith("/book/"):
            return BOOK, "text/html"
        if path == f"/api/{SLOW}":
            self.release.wait(60)
        return (f"Book {path[5:]}", "text/plain") if path.startswith("/api/") else ("", "")

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[JavaScriptSite]:
    find_program("chromium")
    site = JavaScriptSite()
    yield site
    site.close()


def shoal(folder: Path, *arguments: str, frontier: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shoal", *arguments, "--frontier", frontier]
    with (folder / f"{arguments[0]}.log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def test_a_rendered_site_is_crawled_though_browser_and_worker_are_killed(
    site: JavaScriptSite, frontier: str, tmp_path: Path
) -> None:
    (tmp_path / "books.py").write_text(SPIDER.format(url=site.url))
    places = ["--store", "results.db", "--archive", "pages"]
    run = shoal(tmp_path, "run", "books.py", "--kinds", "http", *places, frontier=frontier)
    worker = shoal(tmp_path, "worker", "books.py", "--kinds", "browser", *places, frontier=frontier)
    try:
        slow = f"/api/{SLOW}"
        wait_until(lambda: slow in site.asked, otherwise="the page was not rendered", seconds=60)
        os.kill(_below(worker.pid, b"chromium"), signal.SIGKILL)
        wait_until(lambda: site.asked.count(slow) > 1, otherwise="not done again after the browser's death", seconds=60)
        _kill_parent_of(_below(worker.pid, b"/driver/node"))
        wait_until(lambda: site.asked.count(slow) > 2, otherwise="not done again after the worker's death", seconds=60)
        site.release.set()
        assert run.wait(60) == 0, (tmp_path / "run.log").read_text()
    finally:
        for process in (run, worker):
            if process.poll() is None:
                process.terminate()
            process.wait(30)
    assert _items(tmp_path, frontier) == [(f"Book {n}", "PNG") for n in range(1, BOOKS + 1)]
    assert b"<h1>Book 3</h1>" in _page(tmp_path, f"{site.url}/book/3")
    assert _page(tmp_path, f"{site.url}/book/3", "--screenshot").startswith(b"\x89PNG")


def _items(folder: Path, frontier: str) -> list[tuple[str, str]]:
    out = shoal(folder, "export", "--store", "results.db", "-o", "items.jsonl", frontier=frontier)
    assert out.wait(30) == 0, (folder / "export.log").read_text()
    rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    return sorted((row["title"], row["picture"]) for row in rows)


def _page(folder: Path, url: str, *more: str) -> bytes:
    command = [sys.executable, "-m", "shoal", "page", url, *more, "--archive", "pages"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=30).stdout


def _below(pid: int, name: bytes) -> int:
    """The process of this name below another one; of the browser, the one without a type."""
    for process in processes_below(pid):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if name in words[0] and not any(word.startswith(b"--type=") for word in words):
            return process
    raise AssertionError(f"no {name!r} runs")


def _kill_parent_of(pid: int) -> None:
    """Kill the worker that this process belongs to; it must not outlive its worker."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    browsers = processes_below(parent)
    os.kill(parent, signal.SIGKILL)
    wait_until(
        lambda: not any(Path(f"/proc/{one}").exists() for one in browsers),
        otherwise="a browser outlives its worker",
        seconds=20,
    )
