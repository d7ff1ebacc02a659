"""What does a page cost when every page is on another host? `python -m bench.hosts`: many hosts once each, robots.txt
obeyed, against as many requests to one host, in the same run."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.crawl import MIB
from bench.crawlers import HERE, WORK, fresh_folder
from bench.nginx import free_port, requests_served, serve
from bench.redis_server import redis_server
from bench.site import SitePlan, build_site

SAMPLE_SECONDS = 0.2
SITE = WORK / "hosts-site"


class Figures(NamedTuple):
    """What one crawl took in its worker process."""

    crawl: str
    requests: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    most_descriptors: int

    @property
    def cpu_per_request(self) -> float:
        """In milliseconds."""
        return self.cpu_seconds / self.requests * 1000


def main() -> None:
    options = _options()
    plan = SitePlan(pages=2 * options.hosts)
    build_site(plan, folder=SITE)
    port = free_port()
    # All of 127.0.0.0/8 is this machine.
    site = serve(SITE, port=port, work=WORK / "nginx-hosts", address="0.0.0.0", connections=19_000)
    frontier = redis_server(WORK / "redis-hosts") if options.redis else nullcontext()
    with site as address, frontier as server:
        flags = ["--frontier", server.url] if server else []
        wide = [f"http://{name}:{port}/{plan.path(number)}" for number, name in enumerate(host_names(options.hosts))]
        rows = [
            crawl("one host", [f"{address}/{plan.path(0)}"], *flags, pages=plan.pages, address=address, deep=True),
            crawl("all hosts", wide, *flags, pages=options.hosts, address=address, deep=False),
        ]
    print_table(rows, hosts=options.hosts)
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__)
    parser.add_argument("--hosts", type=int, default=20_000, help="hosts, each with one page")
    parser.add_argument("--redis", action="store_true", help="the frontier in Redis instead of SQLite")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def host_names(count: int) -> list[str]:
    """Loopback addresses: each is a host of its own, with ports of its own."""
    return [f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}" for number in range(count)]


def crawl(name: str, starts: Sequence[str], *flags: str, pages: int, address: str, deep: bool) -> Figures:
    """Crawl with one worker, and watch its process until it ends."""
    folder = fresh_folder("hosts-run")
    (folder / "starts.txt").write_text("\n".join(starts))
    environment = os.environ | {"BENCH_STARTS": str(folder / "starts.txt"), "BENCH_DEEP": "1" if deep else ""}
    command = [sys.executable, "-m", "shoal", "run", str(HERE / "hosts_spider.py"), "--workers", "1", *flags]
    before = requests_served(address)
    with (folder / "output.log").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            descriptors = _most_descriptors(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    _check(process.returncode, pages=pages, folder=folder)
    return Figures(
        name,
        requests=requests_served(address) - before - 1,  # the status page counts its own visits
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
        most_descriptors=descriptors,
    )


def _most_descriptors(pid: int) -> int:
    """Watch a child until it has ended: the most descriptors that it had open."""
    process, most = psutil.Process(pid), 0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        try:
            most = max(most, process.num_fds())
        except psutil.Error:
            break
        time.sleep(SAMPLE_SECONDS)
    return most


def _check(code: int, *, pages: int, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    if code or found != pages:
        raise SystemExit(f"{found:,} of {pages:,} pages, exit code {code}: see {folder / 'output.log'}")


def print_table(rows: Sequence[Figures], *, hosts: int) -> None:
    print(f"\n{hosts:,} hosts once each, with their robots.txt, and as many requests to one host")
    print(f"{'':12}{'requests':>10}{'requests/s':>12}{'CPU ms per request':>20}{'peak MiB':>10}{'descriptors':>13}")
    for row in rows:
        print(
            f"{row.crawl:12}{row.requests:10,}{row.requests / row.seconds:12,.0f}{row.cpu_per_request:20.3f}"
            f"{row.peak_bytes / MIB:10,.0f}{row.most_descriptors:13,}"
        )
    print(f"a request to a new host costs {rows[1].cpu_per_request / rows[0].cpu_per_request:.2f} times the CPU")


if __name__ == "__main__":
    main()
