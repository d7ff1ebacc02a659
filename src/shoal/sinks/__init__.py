"""The seam for results that flow on: `open_sink` picks the kind by URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import UsageError
from shoal.sinks.base import Sink
from shoal.sinks.urls import SinkUrl


def open_sink(url: SinkUrl, *, environ: Mapping[str, str] = os.environ) -> Sink:
    """The sink at a URL; nothing is connected yet. Refuses one that cannot be used: an option, a secret or a driver is
    missing."""
    match url.kind:
        case "stdout" | "file":
            from shoal.sinks.jsonl import FileSink, StdoutSink

            return StdoutSink() if url.kind == "stdout" else FileSink(url.path)
        case "webhook":
            from shoal.sinks.webhook import WebhookSink

            return WebhookSink(url, environ=environ)
        case "redis":
            return _driven("redis", url)
        case "amqp":
            return _driven("amqp", url)
        case _:
            return _driven("sqs", url)


def _driven(extra: str, url: SinkUrl) -> Sink:
    """A sink whose driver is an extra."""
    try:
        match extra:
            case "redis":
                from shoal.sinks.redis import RedisSink

                return RedisSink(url)
            case "amqp":
                from shoal.sinks.rabbitmq import AmqpSink

                return AmqpSink(url)
            case _:
                from shoal.sinks.sqs import SqsSink

                return SqsSink(url)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (
            "redis",
            "hiredis",
            "aiormq",
            "pamqp",
            "aiobotocore",
            "botocore",
        ):
            raise
        raise UsageError(f"{url.scheme}:// needs its driver: pip install 'shoal[{extra}]'") from None
