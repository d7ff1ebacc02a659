"""Metrics for Prometheus: of all crawls and sinks at `shoal serve`, of one process at `shoal worker --metrics PORT`.
Label values are bounded: no URLs, only the busiest hosts and the latest workers."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from shoal.duties.history import OTHER, commonest
from shoal.errors import UsageError
from shoal.exits.figures import HEALTH, health_of
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice
from shoal.insight.survey import Survey, summed
from shoal.insight.utilisation import THINGS
from shoal.model import FETCH_BUCKETS, Crawl, CrawlState, Heartbeat, LaneStatus, Progress
from shoal.serve.board import Surveyor
from shoal.serve.duties import SinkSeen
from shoal.store.base import COUNTED
from shoal.version import __version__
from shoal.worker.workers import Member, Presence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HOSTS_SHOWN = 50
NAMES_SHOWN = 30
LOOPBACK = "127.0.0.1"


class SinkCollector:
    """Metrics of sinks."""

    def __init__(self, sinks: Sequence[SinkSeen], *, now: float) -> None:
        self._sinks = sinks
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """The metrics of each sink. Its trouble is text, not a label: `shoal sink status` shows it."""
        labels = ["store", "spider", "sink"]
        waiting = GaugeMetricFamily(
            "shoal_sink_waiting", f"Changes that wait for a sink, counted up to {COUNTED:,}.", labels=labels
        )
        behind = GaugeMetricFamily(
            "shoal_sink_behind_seconds", "How long the oldest of them has waited; 0: none waits.", labels=labels
        )
        delivered = CounterMetricFamily("shoal_sink_delivered", "Changes that a sink has got.", labels=labels)
        failing = GaugeMetricFamily(
            "shoal_sink_failing", "1: the latest changes could not be delivered, and are tried again.", labels=labels
        )
        for seen in self._sinks:
            state = seen.state
            names = [seen.store, state.place.spider, str(state.id)]
            waiting.add_metric(names, state.waiting)
            behind.add_metric(names, max(0.0, self._now - state.oldest) if state.waiting else 0.0)
            delivered.add_metric(names, state.sent)
            failing.add_metric(names, int(bool(state.trouble)))
        yield from (waiting, behind, delivered, failing)


class Collector:
    """Metrics of crawls, from surveys and advice."""

    def __init__(self, surveys: Sequence[Survey], *, advice: Mapping[str, Advice], reached: bool) -> None:
        self._surveys = surveys
        self._advice = advice
        self._reached = reached

    def collect(self) -> Iterator[Metric]:
        """All metrics, each with the values of every crawl."""
        build = GaugeMetricFamily("shoal_build_info", "The version of shoal that serves.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield GaugeMetricFamily(
            "shoal_frontier_up", "Whether the frontier answered when these figures were read.", value=int(self._reached)
        )
        for part in (self._crawls, self._counts, self._work, self._hosts, self._exits, self._workers):
            yield from part()

    def of_workers(self) -> Iterator[Metric]:
        """The metrics that come from workers alone."""
        yield from self._work()
        yield from self._workers()

    def _crawls(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "shoal_crawl_state", "The state of a crawl: 1 for the one it is in.", labels=["crawl", "spider", "state"]
        )
        tasks = GaugeMetricFamily(
            "shoal_tasks", "Tasks of a crawl by state; done and dead ones stay.", labels=["crawl", "state"]
        )
        kinds = GaugeMetricFamily(
            "shoal_waiting_tasks",
            "Tasks that wait, by kind; only of crawls with several kinds.",
            labels=["crawl", "kind"],
        )
        for survey in self._surveys:
            crawl, progress = survey.crawl, survey.progress
            for state in CrawlState:
                states.add_metric([crawl.id, crawl.spider, state.value], int(state is progress.state))
            for name in ("queued", "delayed", "leased", "done", "dead", "cancelled"):
                tasks.add_metric([crawl.id, name], getattr(progress, name))
            for kind, waiting in progress.kinds.items():
                kinds.add_metric([crawl.id, kind], waiting)
        yield from (states, tasks, kinds)

    def _counts(self) -> Iterator[Metric]:
        plain = {
            "retried": ("shoal_retries", "Attempts at pages that were put off to a later one."),
            "lost": ("shoal_leases_lost", "Leases that ran out or were lost with their worker."),
            "stale": ("shoal_stale_results", "Results that came after their lease was lost, and were refused."),
            "duplicates": ("shoal_duplicates", "Links to pages that were known already."),
            "feeders_lost": ("shoal_feeders_lost", "Feeders that ended before they had fed everything."),
            "cost": ("shoal_cost", "What requests through pools have cost, in the currency of the settings."),
        }
        for field, (name, help_text) in plain.items():
            yield self._per_crawl(name, help_text, field)
        outcomes = CounterMetricFamily("shoal_pages", "Pages that ended, by outcome.", labels=["crawl", "outcome"])
        rejected = CounterMetricFamily("shoal_rejected_links", "Links kept out, by rule.", labels=["crawl", "reason"])
        for survey in self._surveys:
            for name, count in commonest(survey.progress.outcomes, most=NAMES_SHOWN).items():
                outcomes.add_metric([survey.crawl.id, name], count)
            for name, count in commonest(survey.progress.rejected, most=NAMES_SHOWN).items():
                rejected.add_metric([survey.crawl.id, name], count)
        yield from (outcomes, rejected)

    def _work(self) -> Iterator[Metric]:
        """Sums of the figures of the latest workers of each crawl."""
        fetches = CounterMetricFamily(
            "shoal_fetches", "Requests that ended, by class of status.", labels=["crawl", "status"]
        )
        times = HistogramMetricFamily("shoal_fetch_seconds", "How long requests took.", labels=["crawl"])
        calls = {
            "lease": SummaryMetricFamily("shoal_lease_call_seconds", "Lease calls of workers.", labels=["crawl"]),
            "settle": SummaryMetricFamily("shoal_settle_seconds", "Settle calls of workers.", labels=["crawl"]),
            "write": SummaryMetricFamily("shoal_store_write_seconds", "Writes to the store.", labels=["crawl"]),
        }
        parts = CounterMetricFamily(
            "shoal_cpu_seconds", "CPU of workers, by what it was used for.", labels=["crawl", "part"]
        )
        received = CounterMetricFamily("shoal_received_bytes", "Bytes of answers.", labels=["crawl"])
        pages = CounterMetricFamily(
            "shoal_page_requests",
            "Requests that rendered pages made themselves: all, and connections for them that the guard refused.",
            labels=["crawl", "verdict"],
        )
        for survey in self._surveys:
            crawl, total = survey.crawl.id, summed(member.beat.figures for member in survey.members)
            for status, count in sorted(total.statuses.items()):
                fetches.add_metric([crawl, status], count)
            times.add_metric([crawl], cumulative(total.fetch_times), total.fetch_seconds)
            calls["lease"].add_metric([crawl], total.lease_calls, total.lease_seconds)
            calls["settle"].add_metric([crawl], total.settles, total.settle_seconds)
            calls["write"].add_metric([crawl], total.writes, total.write_seconds)
            received.add_metric([crawl], total.received_bytes)
            if total.page_requests:
                pages.add_metric([crawl, "asked"], total.page_requests)
                pages.add_metric([crawl, "refused"], total.page_refused)
            named = {"parse": total.parse_cpu, "handler": total.handler_cpu, "store": total.store_cpu}
            for part, seconds in named.items():
                parts.add_metric([crawl, part], seconds)
            parts.add_metric([crawl, OTHER], max(0.0, total.cpu_seconds - sum(named.values())))
        yield from (fetches, times, *calls.values(), parts, received, pages)

    def _hosts(self) -> Iterator[Metric]:
        labels = ["crawl", "host"]
        waiting = GaugeMetricFamily("shoal_host_waiting", "Tasks that wait, of the busiest hosts.", labels=labels)
        flying = GaugeMetricFamily("shoal_host_in_flight", "Requests in flight, of the busiest hosts.", labels=labels)
        allowed = GaugeMetricFamily(
            "shoal_host_allowed_rate", "Starts per second that the pace of a host allows; +Inf: any.", labels=labels
        )
        rest = GaugeMetricFamily("shoal_host_starts_in_seconds", "Seconds until the next start.", labels=labels)
        for survey in self._surveys:
            for lane in busiest(survey.lanes):
                names = [survey.crawl.id, lane.lane]
                waiting.add_metric(names, lane.waiting)
                flying.add_metric(names, lane.in_flight)
                allowed.add_metric(names, 1 / lane.interval if lane.interval > 0 else float("inf"))
                rest.add_metric(names, max(0.0, lane.starts_in))
        yield from (waiting, flying, allowed, rest)

    def _exits(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("shoal_exits", "Exits towards hosts, by state.", labels=["crawl", "state"])
        requests = CounterMetricFamily(
            "shoal_exit_requests", "Requests through exits, by verdict.", labels=["crawl", "verdict"]
        )
        for survey in self._surveys:
            if not survey.crawl.pools:
                continue
            counted = Counter(health_of(one) for one in survey.exits)
            for state in HEALTH:
                states.add_metric([survey.crawl.id, state], counted[state])
            for verdict in ("ok", "blocked", "failed"):
                requests.add_metric([survey.crawl.id, verdict], sum(getattr(one, verdict) for one in survey.exits))
        yield from (states, requests)

    def _workers(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("shoal_workers", "The latest workers, by presence.", labels=["crawl", "presence"])
        labels = ["crawl", "worker"]
        kinds = {
            "busy": GaugeMetricFamily("shoal_worker_busy", "Pages in hand.", labels=labels),
            "slots": GaugeMetricFamily("shoal_worker_slots", "Requests that it may have on their way.", labels=labels),
            "load": GaugeMetricFamily("shoal_worker_load", "The share of a core that it needs.", labels=labels),
            "memory_bytes": GaugeMetricFamily("shoal_worker_memory_bytes", "Resident memory.", labels=labels),
        }
        pages = CounterMetricFamily("shoal_worker_pages", "Pages done by a worker.", labels=labels)
        cpu = CounterMetricFamily("shoal_worker_cpu_seconds", "CPU used by the process of a worker.", labels=labels)
        for survey in self._surveys:
            counted = Counter(member.presence for member in survey.members)
            for presence in Presence:
                count.add_metric([survey.crawl.id, presence.value], counted[presence])
            for member in survey.at_work:
                names = [survey.crawl.id, member.beat.worker]
                for field, family in kinds.items():
                    family.add_metric(names, getattr(member.beat, field))
                pages.add_metric(names, member.beat.pages)
                cpu.add_metric(names, member.beat.figures.cpu_seconds)
        yield from (count, *kinds.values(), pages, cpu, *self._advised())

    def _advised(self) -> Iterator[Metric]:
        """Advice, for autoscalers and dashboards."""
        wanted = GaugeMetricFamily(
            "shoal_workers_wanted",
            "How many workers are worth running, by the kind of tasks; the sum is the number for the crawl.",
            labels=["crawl", "kind"],
        )
        used = GaugeMetricFamily(
            "shoal_utilisation", "How much of each thing a crawl uses: 1 is all of it.", labels=["crawl", "thing"]
        )
        for crawl, advice in self._advice.items():
            for one in advice.kinds:
                wanted.add_metric([crawl, one.kind], one.workers_wanted)
            for thing in THINGS:
                used.add_metric([crawl, thing], getattr(advice.shares, thing))
        yield from (wanted, used)

    def _per_crawl(self, name: str, help_text: str, field: str) -> Metric:
        """A counter from the progress of each crawl."""
        family = CounterMetricFamily(name, help_text, labels=["crawl"])
        for survey in self._surveys:
            family.add_metric([survey.crawl.id], getattr(survey.progress, field))
        return family


def busiest(lanes: Iterable[LaneStatus]) -> list[LaneStatus]:
    """The hosts with the most waiting tasks."""
    return sorted(lanes, key=lambda lane: (-lane.waiting, -lane.in_flight, lane.lane))[:HOSTS_SHOWN]


def cumulative(times: Sequence[int]) -> list[tuple[str, float]]:
    """Counts by FETCH_BUCKETS, cumulative as Prometheus wants them."""
    total, buckets = 0, []
    for bound, count in zip((*FETCH_BUCKETS, float("inf")), times, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
    return buckets


def metrics_text(surveyor: Surveyor, sinks: Sequence[SinkSeen] = (), *, reached: bool) -> bytes:
    """The metrics of this process and of all crawls, in the text format of Prometheus. `reached` False: no metrics of
    crawls, they would be old."""
    registry = CollectorRegistry()
    collector = Collector(
        surveyor.surveys if reached else [], advice=surveyor.advice if reached else {}, reached=reached
    )
    registry.register(collector)
    registry.register(SinkCollector(sinks, now=time.time()))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class OwnBeats:
    """Remembers the last heartbeat of this process for each crawl."""

    def __init__(self) -> None:
        self._beats: dict[str, Heartbeat] = {}

    def on(self, frontier: Frontier) -> Frontier:
        """Wraps the frontier: remembers heartbeats and passes them on."""
        return cast(Frontier, _Heard(frontier, self._beats))

    def collect(self) -> Iterator[Metric]:
        """The metrics of workers as `serve` has them, for this process alone."""
        surveys = [
            Survey(
                crawl=Crawl(id=crawl, spider=""),
                progress=Progress(state=CrawlState.RUNNING),
                members=[Member(beat, Presence.LEFT if beat.left else Presence.WORKING)],
            )
            # A copy: the event loop changes the dict while the HTTP server's thread reads.
            for crawl, beat in dict(self._beats).items()
        ]
        yield from Collector(surveys, advice={}, reached=True).of_workers()


class _Heard:
    def __init__(self, frontier: Frontier, beats: dict[str, Heartbeat]) -> None:
        self._frontier = frontier
        self._beats = beats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)

    async def beat(self, beat: Heartbeat) -> None:
        self._beats[beat.crawl] = beat
        await self._frontier.beat(beat)


@contextlib.contextmanager
def telling_metrics(address: str, beats: OwnBeats) -> Iterator[int]:
    """Serve the metrics over HTTP during the block, at a port of this machine or at HOST:PORT. The block gets the
    port."""
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
