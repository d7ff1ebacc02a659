"""Counts with their noun: one of a thing is not told as several of them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.crawl_choice import named
from shoal.cli.display.numbers import several
from shoal.cli.display.progress import line_of, picture
from shoal.cli.display.screen import Screen
from shoal.cli.display.summary import Summary, headline, show_summary
from shoal.cli.display.tables import FORMER_SHOWN, LANES_SHOWN, show_lanes, show_workers
from shoal.cli.status import View, show_view
from shoal.cli.why import sentence
from shoal.crawl.opening import Places
from shoal.crawl.places import ResultPlaces
from shoal.exits.refusals import ExitRefusal, ending_of
from shoal.insight.stats import Meter, Snapshot
from shoal.insight.why import Fate
from shoal.model import Crawl, CrawlState, Dead, Heartbeat, LaneStatus, Progress, TaskState, TaskStatus
from shoal.policy.retries import judge, plan
from shoal.settings.table import Settings
from shoal.testing.fakes import lease_for, respond
from shoal.worker.workers import Member, Presence

PLACES = Places(frontier="shoal.db", store="shoal.db")


def beats(number: int) -> list[Heartbeat]:
    return [Heartbeat(worker=f"w{n}", crawl="c", host="h", pid=1, version="1", slots=1) for n in range(number)]


def former(number: int) -> list[Member]:
    return [Member(beat, Presence.LEFT) for beat in beats(number)]


def summary(**fields: Any) -> Summary:
    counts = dict.fromkeys(("pages", "done", "dead", "left", "cancelled", "retried", "lost", "duplicates", "items"), 0)
    names = {"crawl": "c-1", "spider": "c", "store": "shoal.db", "output": ()}
    states = {"state": CrawlState.FINISHED, "resumed": False, "interrupted": False, "robots_ignored": False}
    numbers = {"seconds": 1.0, "pages_per_second": 1.0, "outcomes": {}, "rejected": {}}
    return Summary(**{**counts, **names, **states, **numbers, **fields})


def snapshot(**counts: Any) -> Snapshot:
    worker = Heartbeat(worker="w", crawl="c-1", host="h", pid=1, busy=1, slots=1, pages=1, memory_bytes=1, version="1")
    progress = Progress(state=CrawlState.RUNNING, **counts)
    return Meter().read(Crawl(id="c-1", spider="c"), progress, lanes=[], workers=[worker], now=0.0)


def printed(show: Callable[[Screen], None]) -> str:
    screen = Screen()
    screen.out = Console(file=io.StringIO(), width=200)
    show(screen)
    assert isinstance(screen.out.file, io.StringIO)
    return screen.out.file.getvalue()


def dead(attempts: int) -> Fate:
    task = TaskStatus(state=TaskState.DEAD, attempts=attempts, reason="http_500")
    return Fate(url="https://a.test/", crawl="c-1", key=1, lane="a.test", task=task)


def lanes(number: int) -> list[LaneStatus]:
    return [
        LaneStatus(lane=f"{one}.test", waiting=1, in_flight=0, interval=1.0, cap=1, starts_in=0.0)
        for one in range(number)
    ]


def detail(result: object) -> str:
    assert isinstance(result, Dead)
    return f"{result.reason}; {result.detail}"


def given_up(number: int) -> str:
    lease = lease_for("https://a.test/", task={"max_attempts": number}, attempt=number)
    answer = respond("https://a.test/", status=500)
    return detail(plan(lease, judge(answer), answer, settings=Settings(), rng=random.Random(1), now=0.0))


def given_up_freely(number: int) -> str:
    lease = lease_for("https://a.test/", free_retries=number)
    answer = respond("https://a.test/", status=429)
    settings = Settings(max_free_retries=number)
    return detail(plan(lease, judge(answer), answer, settings=settings, rng=random.Random(1), now=0.0))


def turned_away(number: int) -> str:
    refusal = ExitRefusal(kind="blocked", outcome="http_403", reason="http_403")
    lease = lease_for("https://a.test/", free_retries=number - 1)
    return detail(ending_of(lease, refusal, most_tries=1, exits=number))


SHOWN: dict[str, tuple[Callable[[int], str], str, str]] = {
    "pages of a run": (lambda number: headline(summary(pages=number)), "1 page in", "2 pages in"),
    "lost tasks": (
        lambda number: printed(lambda screen: show_summary(summary(lost=number), screen, places=PLACES)),
        "1 task reclaimed",
        "2 tasks reclaimed",
    ),
    "known links": (
        lambda number: printed(lambda screen: show_summary(summary(duplicates=number), screen, places=PLACES)),
        "1 link led",
        "2 links led",
    ),
    "items in status": (
        lambda number: printed(lambda screen: show_view(View(snapshot(done=1), number, ResultPlaces(), []), screen)),
        ", 1 item\n",
        ", 2 items\n",
    ),
    "retries": (lambda number: line_of(snapshot(done=1, retried=number)), ", 1 retry,", ", 2 retries,"),
    "further lanes": (
        lambda number: printed(
            lambda screen: show_lanes(lanes(LANES_SHOWN + number), screen, crawl=Crawl(id="c", spider="s"))
        ),
        "and 1 lane more",
        "and 2 lanes more",
    ),
    "former workers": (
        lambda number: printed(lambda screen: show_workers(former(FORMER_SHOWN + number), screen, now=0.0)),
        "and 1 former worker more",
        "and 2 former workers more",
    ),
    "workers at work": (lambda number: named(beats(number)), "1 worker (", "2 workers ("),
    "attempts in why": (lambda number: sentence(dead(number)), "after 1 attempt:", "after 2 attempts:"),
    "attempts of a dead letter": (given_up, "given up after 1 attempt", "given up after 2 attempts"),
    "free retries": (given_up_freely, "given up after 1 free retry", "given up after 2 free retries"),
    "exits": (turned_away, "through 1 exit; ", "through 2 exits; "),
    "tries through exits": (turned_away, "after 1 try through", "after 2 tries through"),
}


@pytest.mark.parametrize(("shown", "one", "two"), SHOWN.values(), ids=list(SHOWN))
def test_one_is_told_as_one_and_two_as_several(shown: Callable[[int], str], one: str, two: str) -> None:
    assert one in f"{shown(1)}\n".replace("\n\n", "\n")
    assert two in f"{shown(2)}\n".replace("\n\n", "\n")


def test_a_worker_with_one_slot() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(snapshot(queued=1)))
    assert isinstance(console.file, io.StringIO)
    assert "1 of 1 slot busy" in console.file.getvalue()


@pytest.mark.parametrize(
    ("number", "noun", "told"),
    [(0, "page", "0 pages"), (1, "retry", "1 retry"), (2000, "retry", "2,000 retries"), (3, "day", "3 days")],
)
def test_nouns_that_end_in_y(number: int, noun: str, told: str) -> None:
    assert several(number, noun) == told
