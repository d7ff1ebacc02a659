"""Metrics of one worker process for Prometheus, told by the process itself: `shoal worker --metrics PORT`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.insight.survey import Survey
from shoal.model import Crawl, CrawlState, Progress, WorkerBeat
from shoal.serve.metrics import Collector
from shoal.worker.workers import Member, Presence

LOOPBACK = "127.0.0.1"


class OwnBeats:
    """Remembers the signs of life that this process sends, the last one of each crawl."""

    def __init__(self) -> None:
        self._beats: dict[str, WorkerBeat] = {}

    def on(self, frontier: Frontier) -> Frontier:
        """The frontier; signs of life are remembered on their way to it."""
        return cast(Frontier, _Heard(frontier, self._beats))

    def collect(self) -> Iterator[Metric]:
        """What `serve` tells of workers, of those in this process alone."""
        surveys = [
            Survey(
                crawl=Crawl(id=crawl, spider=""),
                progress=Progress(state=CrawlState.RUNNING),
                members=[Member(beat, Presence.LEFT if beat.left else Presence.WORKING)],
            )
            # A copy: the event loop goes on while the thread of the HTTP server reads.
            for crawl, beat in dict(self._beats).items()
        ]
        yield from Collector(surveys, advice={}, reached=True).of_workers()


class _Heard:
    def __init__(self, frontier: Frontier, beats: dict[str, WorkerBeat]) -> None:
        self._frontier = frontier
        self._beats = beats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)

    async def beat(self, beat: WorkerBeat) -> None:
        self._beats[beat.crawl] = beat
        await self._frontier.beat(beat)


@contextlib.contextmanager
def telling_metrics(address: str, beats: OwnBeats) -> Iterator[int]:
    """Tell them over HTTP until the block ends; the address is a port of this machine, or HOST:PORT. Gives the port."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--metrics {address}: write a port, as 9100, or an address, as 0.0.0.0:9100")
    registry = CollectorRegistry()
    registry.register(beats)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(port), addr=host or LOOPBACK, registry=registry)
    except OSError as error:
        raise UsageError(f"--metrics {address}: cannot listen there: {error.strerror or error}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
