"""Sinks: where new and changed items are sent, beside the store. `open_sink` picks the kind by URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.backends import backend_of, load
from shoal.sinks.base import Sink
from shoal.sinks.urls import SinkUrl


def open_sink(url: SinkUrl, *, environ: Mapping[str, str] = os.environ) -> Sink:
    """The sink at a URL; nothing is connected yet. UsageError: an option, a secret or a driver is missing."""
    if url.kind == "stdout":
        from shoal.sinks.jsonl import StdoutSink

        return StdoutSink()
    make = load(backend_of("sink", url.scheme), scheme=url.scheme)
    sink: Sink = make(url, environ=environ) if url.kind == "webhook" else make(url)
    return sink
