"""The seam for results that flow on: `open_sink` picks the kind by URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.backends import backend_of, load
from shoal.sinks.base import Sink
from shoal.sinks.urls import SinkUrl


def open_sink(url: SinkUrl, *, environ: Mapping[str, str] = os.environ) -> Sink:
    """The sink at a URL; nothing is connected yet. Refuses one that cannot be used: an option, a secret or a driver is
    missing."""
    if url.kind in ("stdout", "file"):
        from shoal.sinks.jsonl import FileSink, StdoutSink

        return StdoutSink() if url.kind == "stdout" else FileSink(url.path)
    make = load(backend_of("sink", url.scheme), scheme=url.scheme)
    sink: Sink = make(url, environ=environ) if url.kind == "webhook" else make(url)
    return sink
