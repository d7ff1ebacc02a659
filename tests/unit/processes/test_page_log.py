"""What a worker logs of its pages, and that it logs nothing of them where nobody asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from worker_in_memory import HOST, Bench

from shoal import Page
from shoal.journey.results import Finished
from shoal.logs import EVENTS, FIELDS, SAID, Events, fields_of
from shoal.model import CrawlState, Done, Lease
from shoal.run.coordinator import StateChanges
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import ScriptedFetcher, respond, task_for
from shoal.worker.outages import Outage
from shoal.worker.page_log import PageLog

Heard = list[tuple[str, dict[str, Any]]]


class Listening(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard: Heard = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append((record.getMessage(), getattr(record, FIELDS)))


@pytest.fixture
def heard(request: pytest.FixtureRequest) -> Iterator[Heard]:
    """The events from a level on."""
    logger, handler = logging.getLogger(EVENTS), Listening()
    logger.setLevel(getattr(request, "param", logging.DEBUG))
    logger.propagate = False
    logger.addHandler(handler)
    yield handler.heard
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def names(heard: Heard) -> list[str]:
    return [name for name, _ in heard]


async def test_every_page_has_a_line_when_it_is_settled(heard: Heard) -> None:
    bench = Bench({"/": "/a", "/a": ""})
    await bench.begin("/")
    await bench.run()
    assert names(heard) == ["worker started", "page done", "page done", "worker left"]
    _, first = heard[1]
    assert (first["crawl"], first["worker"], first["url"]) == ("c", "w", f"{HOST}/")
    assert (first["status"], first["outcome"], first["attempt"]) == (200, "ok", 1)
    assert heard[-1][1]["pages"] == 2


async def test_retries_and_dead_letters_are_told_with_their_reason(heard: Heard) -> None:
    bench = Bench({})
    bench.fetcher = ScriptedFetcher(otherwise=respond(f"{HOST}/", status=500))
    await bench.begin("/")
    await bench.run()
    told = [(name, fields["attempt"], fields["status"]) for name, fields in heard if name.startswith("page")]
    assert told == [*(("page retried", attempt, 500) for attempt in (1, 2, 3)), ("page dead", 4, 500)]
    assert all(fields["reason"] for name, fields in heard if name.startswith("page"))


@pytest.mark.parametrize("heard", [logging.INFO], indirect=True)
async def test_pages_that_went_well_are_left_out_from_info_on(heard: Heard) -> None:
    bench = Bench({"/": "/a", "/a": ""})
    await bench.begin("/")
    await bench.run()
    assert names(heard) == ["worker started", "worker left"]


def test_there_is_no_page_log_where_nobody_wants_its_lines() -> None:
    assert PageLog.if_wanted(Events(crawl="c")) is None


def test_a_result_that_came_too_late_is_a_lost_lease(heard: Heard) -> None:
    log, lease = PageLog(Events(crawl="c", worker="w")), Lease(crawl="c", task=task_for(f"{HOST}/"), token=7)
    log.stored([Finished(Done(lease=lease))])
    log.settled([Done(lease=lease)], stale={7})
    assert names(heard) == ["lease lost"]


async def test_a_spiders_lines_have_the_page_on_them(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"/": ""})
    urls: list[str] = []

    class Reading(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            urls.append(fields_of(record).get("url", ""))
            return True

    def parse(page: Page) -> None:
        bench.spider.log.warning("looked at %s", page.url)

    bench.spider.parse = parse  # type: ignore[method-assign]  # a handler that logs
    bench.spider.log.logger.addFilter(Reading())
    await bench.begin("/")
    await bench.run()
    assert urls == [f"{HOST}/"]
    assert "looked at" in caplog.text


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(heard: Heard) -> None:
    clock = FakeClock()
    outage = Outage("the store", clock=clock, events=Events(crawl="c", worker="w"))
    for _ in range(2):
        outage.begin(OSError("gone"))
    clock.advance(5.0)
    for _ in range(2):
        outage.end()
    assert names(heard) == ["outage begun", "outage ended"]
    assert heard[0][1] | {"reason": "gone", SAID: True} == heard[0][1]
    assert heard[1][1]["seconds"] == 5.0


def test_a_pause_is_told_once_and_so_is_its_end(heard: Heard) -> None:
    states = StateChanges()
    for state in (CrawlState.RUNNING, CrawlState.PAUSED, CrawlState.PAUSED, CrawlState.RUNNING):
        states.see("c", state, reason="by hand" if state is CrawlState.PAUSED else "")
    assert names(heard) == ["crawl paused", "crawl resumed"]
    assert heard[0][1]["reason"] == "by hand"
