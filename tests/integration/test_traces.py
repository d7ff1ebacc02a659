"""Traces of pages, as a real receiver of OTLP/HTTP reads them."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal.insight.traces import wants_traces
from shoal.testing.servers.http_receiver import HttpReceiver, http_receiver
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 30
STEPS = {"page", "lease", "fetch", "handle", "write", "settle"}


def spans_of(receiver: HttpReceiver) -> list[tuple[Any, dict[str, str]]]:
    """Every span that came in, with the attributes of its service."""
    found = []
    for request in receiver.received:
        assert request.path == "/v1/traces"
        assert request.headers["content-type"] == "application/x-protobuf"
        body = gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {one.key: one.value.string_value for one in part.resource.attributes}
            found += [(span, service) for scope in part.scope_spans for span in scope.spans]
    return found


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def crawled(folder: Folder, site: SiteProcess, endpoint: str, *flags: str, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "OTEL_"))}
    spider = folder.spider(site.url)
    variables = {**kept, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **environ}
    command = [sys.executable, "-m", "shoal", "run", spider, *flags]
    run = subprocess.run(command, cwd=folder.path, env=variables, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_every_step_of_a_traced_page_is_under_its_span(folder: Folder, site: SiteProcess) -> None:
    with http_receiver() as receiver:
        crawled(folder, site, receiver.url, "--set", "trace_share=1", OTEL_SERVICE_NAME="shop")
    spans = spans_of(receiver)
    assert {service["service.name"] for _, service in spans} == {"shop"}
    roots = {span.span_id: span for span, _ in spans if span.name == "page"}
    steps: dict[bytes, list[str]] = defaultdict(list)
    for span, _ in spans:
        if span.name != "page":
            root = roots[span.parent_span_id]
            assert span.trace_id == root.trace_id
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
            steps[span.parent_span_id].append(span.name)
    about = [attributes(span) for span in roots.values()]
    done = [one for one in about if one["shoal.result"] == "done: ok"]
    assert len({one["url.full"] for one in done}) >= PRODUCTS
    assert all(one["shoal.crawl"] == "books-1" and one["shoal.worker"] and one["shoal.key"] for one in about)
    whole = [Counter(names) for key, names in steps.items() if attributes(roots[key])["shoal.result"] == "done: ok"]
    assert all(set(names) == STEPS - {"page"} for names in whole)


@pytest.mark.full
def test_only_a_share_of_the_pages_is_traced(folder: Folder, site: SiteProcess) -> None:
    with http_receiver() as receiver:
        crawled(folder, site, receiver.url, "--set", "trace_share=0.000001")
    assert [span.name for span, _ in spans_of(receiver)] in ([], ["page"])


@pytest.mark.full
def test_a_collector_that_is_away_is_said_once_and_costs_no_page(folder: Folder, site: SiteProcess) -> None:
    with http_receiver() as receiver:
        gone = receiver.url
    said = crawled(folder, site, gone, "--set", "trace_share=1", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert "Traceback" not in said
    assert said.count("traces cannot be sent") <= 1


@pytest.mark.parametrize(
    ("share", "environ", "wanted"),
    [
        (0.01, {}, False),
        (0.01, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (0.0, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        (0.01, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        (0.01, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
    ],
)
def test_traces_are_on_only_where_a_collector_is_named(share: float, environ: dict[str, str], wanted: bool) -> None:
    assert wants_traces(share, environ=environ) is wanted


def test_nothing_of_opentelemetry_is_loaded_where_it_is_off(tmp_path: Path) -> None:
    code = "import shoal.crawl, shoal.cli.process.run_process, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
