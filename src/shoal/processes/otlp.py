"""Sends spans to an OpenTelemetry collector over OTLP/HTTP, from a thread of its own. Needs the extra `otel`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import UsageError
from shoal.version import __version__, install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span

NEEDED: Final = f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need OpenTelemetry: {install_command('otel')}"
LAST_SEND_SECONDS: Final = 5.0


class Collector:
    """Where spans go. Its address, headers and batches come from the usual variables, `OTEL_…`.

    What cannot be sent is dropped, and said once: no page waits for a collector."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("shoal", __version__)

    @classmethod
    def open(cls, *, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Collector:
        """Import what is needed and begin the thread."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise UsageError(NEEDED) from None
        _silence()
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over these: people name their services.
        own = {"service.name": environ.get("OTEL_SERVICE_NAME") or "shoal", "service.version": __version__}
        provider = TracerProvider(resource=Resource(own).merge(_given(environ)), shutdown_on_exit=False)
        loop = asyncio.get_running_loop()
        exporter = _said_once(OTLPSpanExporter(), lambda line: loop.call_soon_threadsafe(say, line))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def begin(self, name: str, parent: Span | None, attributes: Mapping[str, Any], *, at: int) -> Span:
        """A span that began at a time, in nanoseconds since 1970."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context=context, attributes=attributes, start_time=at)

    async def close(self) -> None:
        """Send what is left, but do not wait long for a collector that is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SEND_SECONDS):
                await asyncio.to_thread(self._provider.shutdown)


def _given(environ: Mapping[str, str]) -> Resource:
    """What the environment says of this service."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return OTELResourceDetector().detect() if environ.get("OTEL_RESOURCE_ATTRIBUTES") else Resource.get_empty()


def _silence() -> None:
    """OpenTelemetry logs each failure for itself; here one line says it."""
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _said_once(inner: SpanExporter, say: Callable[[str], Any]) -> SpanExporter:
    """The exporter; when it begins to fail a line says so, until it has worked again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class SaidOnceExporter(SpanExporter):
        is_failing = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = inner.export(spans)
            fails = result is not SpanExportResult.SUCCESS
            if fails and not self.is_failing:
                with contextlib.suppress(RuntimeError):  # the event loop may be closed by now
                    say("traces cannot be sent: is OTEL_EXPORTER_OTLP_ENDPOINT right? The crawl goes on without them")
            self.is_failing = fails
            return result

        def shutdown(self) -> None:
            inner.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return SaidOnceExporter()
