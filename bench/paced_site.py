"""Many hosts of one small site, each on a loopback address of its own, and when each of their requests came.

nginx serves them and notes the times by its own clock, with real-time priority where that is allowed: a site that
waits for a processor would see requests late, and then close together."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.nginx import find_nginx, free_port, wait_until_up

PAGE_BYTES = 16 * 1024
LINKS = 32
WORD = "shoal "
CONFIG = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 65536;
pid {work}/nginx.pid;
error_log {work}/nginx-error.log warn;
{user}
events {{ worker_connections 16384; }}
http {{
  types {{ text/html html; text/plain txt; }}
  default_type text/html;
  charset utf-8;
  log_format times "$msec $server_addr $remote_addr $request_uri";
  access_log {work}/times.log times buffer=1m;
  sendfile on;
  keepalive_timeout 300s;
  keepalive_requests 100000000;
  client_body_temp_path {work}/client;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  server {{
    listen 0.0.0.0:{port} backlog=4096;
    root {root};
    location = /-/status {{ stub_status; access_log off; }}
  }}
}}
"""


class Arrival(NamedTuple):
    """A request as the site saw it. `source` is the address that it came from."""

    time: float
    host: str
    source: str
    path: str


class PacedSite(NamedTuple):
    """A running site. Every address of 127.0.0.0/8 is one of its hosts."""

    port: int
    log: Path
    process: int

    def url(self, host: str) -> str:
        return f"http://{host}:{self.port}/0.html"


def host_names(count: int) -> list[str]:
    """Loopback addresses: each is a host of its own, with a pace and a robots.txt of its own."""
    return [f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}" for number in range(count)]


def build(folder: Path, *, pages: int) -> None:
    """Pages that lead to each other like a tree, from the first one on, and a robots.txt that allows them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")
    for number in range(pages):
        targets = [(LINKS * number + step) % pages for step in range(1, LINKS + 1)]
        links = "".join(f'<a href="/{target}.html">{WORD}{target}</a>\n' for target in targets)
        head = f"<!doctype html><title>page {number}</title><h1>Page {number}</h1><p>"
        text = WORD * ((PAGE_BYTES - len(head) - len(links)) // len(WORD))
        (folder / f"{number}.html").write_text(f"{head}{text}</p>{links}")


@contextlib.contextmanager
def paced_site(work: Path, *, pages: int) -> Iterator[PacedSite]:
    """Serve it until the block ends; the log is whole afterwards."""
    root, port = work / "pages", free_port()
    build(root, pages=pages)
    user = "user root;" if os.geteuid() == 0 else ""
    config = work / "nginx.conf"
    config.write_text(CONFIG.format(work=work.resolve(), root=root.resolve(), port=port, user=user))
    log = work / "times.log"
    log.unlink(missing_ok=True)
    command = [find_nginx(), "-p", str(work), "-c", str(config.resolve())]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=_hurry)
    try:
        wait_until_up(process, f"http://127.0.0.1:{port}", work=work)
        yield PacedSite(port, log, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=10)


def arrivals(log: Path) -> list[Arrival]:
    """All requests, in the order in which they came."""
    found = []
    for line in log.read_text().splitlines():
        at, host, source, path = line.split(" ", 3)
        found.append(Arrival(float(at), host, source, path))
    return sorted(found)


def _hurry() -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
