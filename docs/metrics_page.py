"""The page of the metrics, from what collects them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from markdown_page import page, table
from shoal.serve.metrics import Collector, SinkCollector


def metrics_page() -> str:
    """Every metric: its name as Prometheus sees it, its type, its labels, what it is, and who tells it."""
    nothing = Collector([], advice={}, reached=True)
    by_workers = {family.name for family in nothing.of_workers()}
    parts = [
        "# Metrics",
        'What `shoal serve` tells at `/metrics`. Those marked with "yes" a worker tells, too, with `--metrics`. How to '
        "collect them: [Metrics](../how-to/metrics.md).",
        "## Crawls, hosts, exits and workers",
        _table(nothing.collect(), by_workers),
        "## Sinks",
        "By their number in `shoal sink status`.",
        _table(SinkCollector([], now=0.0).collect(), by_workers),
    ]
    return page(parts)


def _table(families: Iterable[Metric], by_workers: set[str]) -> str:
    rows = [
        (
            f"`{family.name}{'_total' * (family.type == 'counter')}`",
            family.type,
            ", ".join(_labels(family)),
            family.documentation,
            "yes" * (family.name in by_workers),
        )
        for family in families
    ]
    return table(("metric", "type", "labels", "what it is", "by a worker"), rows)


def _labels(family: Metric) -> tuple[str, ...]:
    # A family without samples shows its labels nowhere else.
    names: tuple[str, ...] = getattr(family, "_labelnames", ())
    return names
