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
    if url.kind == "stdout":
        from shoal.sinks.jsonl import StdoutSink

        return StdoutSink()
    make = load(backend_of("sink", url.scheme), scheme=url.scheme)
    match url.kind:
        case "file":
            sink: Sink = make(url.path)
        case "webhook":
            sink = make(url, environ=environ)
        case _:
            sink = make(url)
    return sink
