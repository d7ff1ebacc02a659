"""The seam for results that flow on: `open_sink` picks the kind by URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import UsageError
from shoal.sink.base import Sink
from shoal.sink.sink_urls import SinkUrl


def open_sink(url: SinkUrl, *, environ: Mapping[str, str] = os.environ) -> Sink:
    """The sink at a URL; nothing is connected yet. Refuses one that cannot be used: an option, a secret or a driver is
    missing."""
    match url.kind:
        case "stdout" | "file":
            from shoal.sink.jsonl_sink import FileSink, StdoutSink

            return StdoutSink() if url.kind == "stdout" else FileSink(url.path)
        case "webhook":
            from shoal.sink.webhook_sink import WebhookSink

            return WebhookSink(url, environ=environ)
        case "redis":
            return _open_redis(url)
        case _:
            raise UsageError(f"the sink {url.shown} is of a kind that this version does not have")


def _open_redis(url: SinkUrl) -> Sink:
    try:
        from shoal.sink.redis_sink import RedisSink
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "hiredis"):
            raise
        raise UsageError("redis:// needs its driver: pip install 'shoal[redis]'") from None
    sink: Sink = RedisSink(url)
    return sink
