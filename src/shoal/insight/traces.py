"""Traces of a sample of pages, from lease to settle, sent to an OpenTelemetry collector over OTLP/HTTP from a thread of
its own. Needs the extra `otel`; without tracing none of these objects exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import UsageError
from shoal.fetch.base import Fetch, Fetcher, Response
from shoal.frontier.base import Frontier
from shoal.journey.handlers import Handlers
from shoal.logs import PAGE, page_fields
from shoal.model import Dead, Done, Handed, Lease, LeaseBatch, Result, Retry, SettleReport
from shoal.spider.page import Page
from shoal.store.base import FetchRow, ItemRow, Store
from shoal.version import __version__, install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MOST_OPEN: Final = 10_000
NEEDED: Final = f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need OpenTelemetry: {install_command('otel')}"
LAST_SEND_SECONDS: Final = 5.0


def wants_traces(share: float, *, environ: Mapping[str, str]) -> bool:
    """Whether pages are traced: the environment names a collector, and the share is not 0."""
    return share > 0 and any(environ.get(name) for name in ENDPOINTS)


class Traces:
    """The open traces of one worker, by the tokens of their leases."""

    def __init__(self, collector: Collector, *, share: float, worker: str, rng: random.Random | None = None) -> None:
        self._collector = collector
        self._share = share
        self._worker = worker
        self._rng = rng or random.Random()  # noqa: S311 -- a sample, not secrets
        self._open: dict[int, Span] = {}

    def frontier(self, frontier: Frontier) -> Frontier:
        """Wraps the frontier: leases begin traces, settles end them."""
        return cast(Frontier, _TracedFrontier(frontier, self))

    def store(self, store: Store) -> Store:
        """Wraps the store: its writes are steps of their pages' traces."""
        return cast(Store, _TracedStore(store, self))

    def fetcher(self, fetcher: Fetcher) -> Fetcher:
        """Wraps the fetcher: its requests are steps of their page's trace."""
        return _TracedFetcher(fetcher, self)

    def handlers(self, handlers: Handlers) -> Handlers:
        """Wraps the handlers: each run is a step of its page's trace."""
        return cast(Handlers, _TracedHandlers(handlers, self))

    async def close(self) -> None:
        """End the traces of pages that were not settled here, and send the last spans."""
        for token in list(self._open):
            self._end(token, "left")
        await self._collector.close()

    def leased(self, leases: Iterable[Lease], *, began: int) -> None:
        """Begin traces for a sample of these leases; the lease call is their first step."""
        now = time.time_ns()
        for lease in leases:
            if len(self._open) < MOST_OPEN and self._rng.random() < self._share:
                about = page_fields(lease)
                attributes = {
                    "shoal.crawl": lease.crawl,
                    "shoal.worker": self._worker,
                    "shoal.key": about["key"],
                    "shoal.attempt": lease.attempt,
                    "shoal.exit": lease.exit,
                    "shoal.handler": lease.task.handler,
                    "url.full": about["url"],
                    "server.address": about["host"],
                }
                self._open[lease.token] = self._collector.begin("page", None, attributes, at=began)
                self.step("lease", lease.token, began=began, ended=now)

    def is_open(self, token: int) -> bool:
        return token in self._open

    def step(self, name: str, token: int, *, began: int, ended: int, **attributes: Any) -> None:
        """Add a finished step to the trace of a lease."""
        span = self._collector.begin(name, self._open[token], attributes, at=began)
        span.end(ended)

    @contextmanager
    def during(self, name: str, token: int) -> Iterator[dict[str, Any]]:
        """Time a step of the page with this lease; the dict takes attributes of the step."""
        said: dict[str, Any] = {}
        began = time.time_ns()
        try:
            yield said
        except BaseException as error:
            said["error.type"] = type(error).__name__
            raise
        finally:
            if token in self._open:
                self.step(name, token, began=began, ended=time.time_ns(), **said)

    def settled(self, results: Sequence[Result], report: SettleReport, *, began: int) -> None:
        """The last step of the traces of these results."""
        now, stale = time.time_ns(), {lease.token for lease in report.stale}
        for index, result in enumerate(results):
            token = result.lease.token
            if token in self._open and index not in report.failed:
                self.step("settle", token, began=began, ended=now)
                self._end(token, "lease lost" if token in stale else _end_of(result))

    def lost(self, leases: Iterable[Lease]) -> None:
        """End the traces of leases that were lost."""
        for lease in leases:
            self._end(lease.token, "lease lost")

    def _end(self, token: int, how: str) -> None:
        if (span := self._open.pop(token, None)) is not None:
            span.set_attribute("shoal.result", how)
            span.end()


def _end_of(result: Result) -> str:
    if isinstance(result, Done):
        return f"done: {result.outcome}"
    if isinstance(result, Retry | Dead):
        # Only the class of the reason: its text may quote the page.
        return f"{'retried' if isinstance(result, Retry) else 'dead'}: {result.reason.partition(':')[0]}"[:100]
    return f"handed over: {result.task.kind}" if isinstance(result, Handed) else "released"


class _Traced:
    """Passes all other methods on to the wrapped object."""

    def __init__(self, part: Any, traces: Traces) -> None:
        self._part = part
        self._traces = traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class _TracedFrontier(_Traced):
    async def lease(self, crawls: Sequence[str], limit: int, **options: Any) -> LeaseBatch:
        began = time.time_ns()
        batch: LeaseBatch = await self._part.lease(crawls, limit, **options)
        self._traces.leased(batch.leases, began=began)
        return batch

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        began = time.time_ns()
        report: SettleReport = await self._part.settle(results)
        self._traces.settled(results, report, began=began)
        return report

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        lost: list[Lease] = await self._part.extend(leases, seconds=seconds)
        self._traces.lost(lost)
        return lost


class _TracedStore(_Traced):
    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], **options: Any) -> dict[int, str]:
        began = time.time_ns()
        unstorable: dict[int, str] = await self._part.write(items, fetches, **options)
        ended = time.time_ns()
        for row in fetches:
            if self._traces.is_open(row.token):
                self._traces.step("write", row.token, began=began, ended=ended, **{"shoal.batch": len(fetches)})
        return unstorable


class _TracedFetcher(_Traced):
    async def fetch(self, request: Fetch) -> Any:
        lease = PAGE.get()
        if lease is None or not self._traces.is_open(lease.token):
            return await self._part.fetch(request)
        with self._traces.during("fetch", lease.token) as said:
            answer = await self._part.fetch(request)
            said["http.request.method"] = request.method
            if isinstance(answer, Response):
                said |= {"http.response.status_code": answer.status, "http.response.body.size": answer.wire_size}
            else:
                said["error.type"] = str(answer.kind)
        return answer

    async def close(self) -> None:
        await self._part.close()


class _TracedHandlers(_Traced):
    async def run(self, page: Page, *, token: int = 0) -> Any:
        if not self._traces.is_open(token):
            return await self._part.run(page, token=token)
        with self._traces.during("handle", token) as said:
            harvest = await self._part.run(page, token=token)
            said["shoal.items"] = len(harvest.items)
        return harvest


class Collector:
    """Sends spans. Address, headers and batches come from the usual variables, `OTEL_…`.

    Spans that cannot be sent are dropped, which is reported once: no page waits for a collector."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("shoal", __version__)

    @classmethod
    def open(cls, *, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Collector:
        """Import OpenTelemetry and start the thread."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise UsageError(NEEDED) from None
        _silence()
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these.
        own = {"service.name": environ.get("OTEL_SERVICE_NAME") or "shoal", "service.version": __version__}
        provider = TracerProvider(resource=Resource(own).merge(_given(environ)), shutdown_on_exit=False)
        loop = asyncio.get_running_loop()
        exporter = _said_once(OTLPSpanExporter(), lambda line: loop.call_soon_threadsafe(say, line))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def begin(self, name: str, parent: Span | None, attributes: Mapping[str, Any], *, at: int) -> Span:
        """A span that began at this time, in nanoseconds since 1970."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=at)

    async def close(self) -> None:
        """Send the last spans, without waiting long for a collector that is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SEND_SECONDS):
                await asyncio.to_thread(self._provider.shutdown)


def _given(environ: Mapping[str, str]) -> Resource:
    """The attributes of this service from the environment."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return OTELResourceDetector().detect() if environ.get("OTEL_RESOURCE_ATTRIBUTES") else Resource.get_empty()


def _silence() -> None:
    """Drops OpenTelemetry's log of each failure: one line is reported instead."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _said_once(inner: SpanExporter, say: Callable[[str], Any]) -> SpanExporter:
    """Wraps the exporter: the first failure is reported, and the next one after a success."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class SaidOnceExporter(SpanExporter):
        is_failing = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = inner.export(spans)
            fails = result is not SpanExportResult.SUCCESS
            if fails and not self.is_failing:
                with contextlib.suppress(RuntimeError):  # the event loop may be closed
                    say("traces cannot be sent: is OTEL_EXPORTER_OTLP_ENDPOINT right? The crawl goes on without them")
            self.is_failing = fails
            return result

        def shutdown(self) -> None:
            inner.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return SaidOnceExporter()
