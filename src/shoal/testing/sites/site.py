"""Web sites on loopback for tests and the demo: a catalogue, and a graph of numbered pages.

Both know the expected result of a crawl and log every request by their own clock. They run in the current event loop,
or as a process: `python -m shoal.testing.sites.site --products 300 --log hits.jsonl`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path

from shoal.testing.sites.catalogue_site import CatalogueSite
from shoal.testing.sites.graph_site import GraphSite
from shoal.testing.sites.loopback import Hit, busiest_window, pace_violations, read_log

__all__ = ["CatalogueSite", "GraphSite", "Hit", "busiest_window", "pace_violations", "read_log"]


def main() -> None:
    """Serve until SIGTERM, SIGINT or the end of standard input."""
    parser = argparse.ArgumentParser(prog="python -m shoal.testing.sites.site", description=main.__doc__)
    parser.add_argument("--products", type=int, default=200, help="products of the catalogue")
    parser.add_argument("--graph", type=int, default=0, metavar="PAGES", help="serve a graph of this many pages")
    parser.add_argument("--links", type=int, default=8, help="links per page of the graph")
    parser.add_argument("--apart", type=int, default=0, metavar="PAGES", help="further pages to which no link leads")
    parser.add_argument("--marks", type=_marks, default={}, help="texts that pages of the graph show, as JSON")
    parser.add_argument("--marks-once", type=_marks, default={}, help="the same, in the first answer only")
    parser.add_argument("--hosts", help="loopback addresses, comma-separated")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer")
    parser.add_argument("--slow-host-latency", type=float, default=0.5, help="the same for the slow host")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="append every request to this file, one JSON line each")
    site = _build(parser.parse_args())
    with asyncio.Runner(loop_factory=_fast_loop) as runner:
        runner.run(_serve(site))


def _fast_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def _build(options: argparse.Namespace) -> CatalogueSite | GraphSite:
    hosts = (
        options.hosts.split(",") if options.hosts else ["127.0.0.1"] if options.graph else ["127.0.0.1", "127.0.0.2"]
    )
    if options.graph:
        return GraphSite(
            pages=options.graph,
            links=options.links,
            seed=options.seed,
            hosts=hosts,
            latency=options.latency,
            port=options.port,
            log=options.log,
            apart=options.apart,
            marks=options.marks,
            marks_once=options.marks_once,
        )
    return CatalogueSite(
        products=options.products,
        seed=options.seed,
        hosts=hosts,
        latency=options.latency,
        slow_host_latency=options.slow_host_latency,
        port=options.port,
        log=options.log,
    )


def _marks(text: str) -> dict[int, str]:
    """Marks by the number of their page."""
    return {int(number): mark for number, mark in json.loads(text).items()}


async def _serve(site: CatalogueSite | GraphSite) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if _is_pipe(sys.stdin.fileno()):
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, stop)
    async with site:
        sys.stdout.write(json.dumps({"url": site.url, "urls": site.urls, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def _stop_at_end(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()


def _is_pipe(descriptor: int) -> bool:
    """Only the end of a pipe shows that the parent process has ended; a terminal or /dev/null does not."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


if __name__ == "__main__":
    main()
