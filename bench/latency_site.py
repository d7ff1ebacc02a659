"""A site that takes its time: `python -m bench.latency_site --pages N --delay S`. The site of the case E.

Every answer is there before it is asked for and goes out `delay` seconds after its request, by a timer of the event
loop. All of 127.0.0.0/8 is this machine: each loopback address is a host, with all pages. It prints its port, then
serves until its standard input is closed. `GET /log` gives what it saw since the last one, by its own clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import Counter
from typing import Any

import uvloop

LINKS = 20
PAGE_BYTES = 4096
SLICE_SECONDS = 0.1
WORDS = "harbour lantern archive orchard compass winter atlas tide garden paper river station signal window market "


def path_of(number: int) -> str:
    return f"/page-{number}.html"


def page_of(number: int, pages: int) -> bytes:
    """A page of 4 kB with twenty links: to its children in a tree, so that all are reachable, or to any pages."""
    first = number * LINKS + 1
    targets = [target if target < pages else target % pages for target in range(first, first + LINKS)]
    links = "".join(f'<li><a href="{path_of(target)}">page {target}</a></li>' for target in targets)
    head = f"<!doctype html><html><head><title>Page {number}</title></head><body><h1>Page {number}</h1><ul>{links}</ul>"
    text = f"{number} {WORDS * 60}"[: PAGE_BYTES - len(head) - 30]
    return f"{head}<p>{text}</p></body></html>".encode()


def answer(body: bytes, *, status: str = "200 OK", kind: str = "text/html; charset=utf-8") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Log:
    """What the site saw: starts and answers by its own clock, and how busy it was itself."""

    def __init__(self) -> None:
        self.requests = 0
        self.first = self.last = 0.0
        self.in_flight: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.starts: Counter[int] = Counter()
        self._cpu = cpu_seconds()

    def start(self, host: str) -> None:
        now = time.monotonic()
        self.requests += 1
        self.first = self.first or now
        self.starts[int((now - self.first) / SLICE_SECONDS)] += 1
        count = self.in_flight[host] = self.in_flight[host] + 1
        if count > self.peak[host]:
            self.peak[host] = count

    def end(self, host: str) -> None:
        self.in_flight[host] -= 1
        self.last = time.monotonic()

    def told(self) -> dict[str, Any]:
        seconds = self.last - self.first
        slices = [self.starts[index] for index in range(max(self.starts, default=0) + 1)]
        busy = cpu_seconds() - self._cpu
        return {
            "requests": self.requests,
            "seconds": seconds,
            "most_at_once": max(self.peak.values(), default=0),
            "starts": slices,
            "idle": 1 - busy / seconds if seconds else 1.0,
        }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Site:
    def __init__(self, pages: int, delay: float) -> None:
        self.answers = {path_of(number).encode(): answer(page_of(number, pages)) for number in range(pages)}
        self.missing = answer(b"not found", status="404 Not Found", kind="text/plain")
        self.delay = delay
        self.log = Log()


class Connection(asyncio.Protocol):
    """One request after the other, without bodies."""

    def __init__(self, site: Site, loop: asyncio.AbstractEventLoop) -> None:
        self._site = site
        self._loop = loop
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._host = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            path = self._read.split(b" ", 2)[1]
            self._read = self._read[end + 4 :]
            self._serve(path)

    def _serve(self, path: bytes) -> None:
        site = self._site
        if path == b"/log":
            told, site.log = site.log.told(), Log()
            self._transport.write(answer(json.dumps(told).encode(), kind="application/json"))
            return
        site.log.start(self._host)
        self._loop.call_later(site.delay, self._answer, site.answers.get(path, site.missing), site.log)

    def _answer(self, whole: bytes, log: Log) -> None:
        log.end(self._host)
        if not self._transport.is_closing():
            self._transport.write(whole)


async def serve(site: Site) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(site, loop), "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.latency_site", description=__doc__)
    parser.add_argument("--pages", type=int, default=16_000)
    parser.add_argument("--delay", type=float, default=0.3)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Site(options.pages, options.delay)))


if __name__ == "__main__":
    main()
