"""Which page a request belongs to, and when a visit is given back before it began."""

from __future__ import annotations

import time

import pytest
import scrapy

from shoal.model import Lease, Task
from shoal.scrapy.settings import arguments, is_page_command
from shoal.scrapy.visits import CURRENT, LATE_SECONDS, Visit, Visits


def visit_of(url: str, given: list[Visit], *, interval: float = 0.0) -> Visit:
    lease = Lease(crawl="c-1", task=Task(url=url, key=1, lane="a.test"), token=1, attempt=1, interval=interval)
    now = time.monotonic()
    return Visit(lease=lease, give=given.append, land=lambda: None, offered=now, first_offered=now)


def visits() -> Visits:
    return Visits(wake=lambda: None, later=lambda step: None)


def test_a_redirect_belongs_to_its_page_in_whichever_context_it_arrives() -> None:
    all_, other, own = visits(), visit_of("https://a.test/other", []), visit_of("https://a.test/", [])
    all_.begin(own, scrapy.Request("https://a.test/"))
    redirect = scrapy.Request("https://a.test/new")
    all_.landed(own, redirect)
    token = CURRENT.set(other)
    try:
        assert all_.finder(redirect) is own
        assert all_.finder(scrapy.Request("https://a.test/link")) is other
    finally:
        CURRENT.reset(token)


def test_a_visit_that_missed_its_start_slot_is_given_back_for_another_one() -> None:
    given: list[Visit] = []
    all_, late, due = visits(), visit_of("https://a.test/1", given, interval=0.2), visit_of("https://a.test/2", given)
    late.offered -= 1.0
    due.offered -= 1.0  # its lane has no interval
    all_.offer(late)
    all_.offer(due)
    assert all_.next() is due
    assert (given, late.is_late, late.is_over) == ([late], True, False)


def test_visits_begin_in_the_end_though_the_reactor_is_always_late_and_keep_their_distance() -> None:
    given: list[Visit] = []
    all_ = visits()
    first, second = (visit_of(f"https://a.test/{number}", given, interval=30.0) for number in range(2))
    for late in (first, second):
        late.offered, late.first_offered = late.offered - 10.0, late.offered - LATE_SECONDS
        all_.offer(late)
    assert (all_.next(), given) == (first, [])
    all_.begin(first, scrapy.Request("https://a.test/0"))
    assert (all_.next(), given) == (None, [second])


def test_a_visit_whose_lease_was_lost_does_not_begin() -> None:
    all_, lost = visits(), visit_of("https://a.test/", [])
    all_.offer(lost)
    lost.is_withdrawn = True
    assert all_.next() is None


PYTHON = ("/usr/bin/python3", "-X", "utf8", "-Wd")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("/usr/bin/python3", "/usr/bin/scrapy", "crawl", "shop", "-a", "tag=a=b", "-an=1"), {"tag": "a=b", "n": "1"}),
        ((*PYTHON, "-m", "scrapy", "--loglevel=INFO", "crawl", "shop", "-a", "tag=x", "-O", "a.json"), {"tag": "x"}),
        ((*PYTHON, "-m", "scrapyd.runner", "crawl", "shop", "-a", "_job=7", "-a", "tag=x"), {"tag": "x"}),
        ((*PYTHON, "-m", "scrapy", "runspider", "shop.py"), {}),
        ((*PYTHON, "crawl_all.py", "crawl", "-a", "tag=x"), {}),
        (("/usr/bin/python3",), {}),
    ],
)
def test_the_arguments_are_those_of_the_command_line(words: tuple[str, ...], given: dict[str, str]) -> None:
    assert arguments(words) == given
    assert not is_page_command(words)


def test_a_command_that_tries_a_page_is_known_by_its_name() -> None:
    assert is_page_command((*PYTHON, "/venv/bin/scrapy", "--nolog", "shell", "https://a.test/"))
    assert is_page_command((*PYTHON, "-m", "scrapy", "parse", "https://a.test/"))
    assert not is_page_command((*PYTHON, "tools.py", "check"))
