"""The seam for results that flow on: `open_sink` picks the kind by URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import UsageError
from shoal.sink.base import Sink
from shoal.sink.sink_urls import SinkUrl
from shoal.version import install_command


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
                from shoal.sink.redis_sink import RedisSink

                return RedisSink(url)
            case "amqp":
                from shoal.sink.amqp_sink import AmqpSink

                return AmqpSink(url)
            case _:
                from shoal.sink.sqs_sink import SqsSink

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
        raise UsageError(f"{url.scheme}:// needs its driver: {install_command(extra)}") from None
